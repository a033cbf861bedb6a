from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from rlds_cli.archives.exports.parquet import ParquetWriter  # noqa: E402

KINDS = ("float32", "float64", "int32", "int64", "uint8", "int16", "float16", "bool")


def lists(values: np.ndarray[Any, Any], *, nullable: bool = False) -> Any:
    """Return an array [n, width] as lists of one length."""
    flat = pa.array(values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(
        flat, type=pa.list_(pa.field("item", flat.type, nullable), values.shape[1])
    )


def steps(first: int, count: int, kind: str = "float32", width: int = 17) -> Any:
    """Return rows with lists of one length among other columns."""
    rng = np.random.default_rng(first)
    columns = {
        "observation.state": lists(rng.integers(0, 2 if kind == "bool" else 99, (count, width)).astype(kind)),
        "image": pa.array([{"bytes": bytes([k % 256]) * 9, "path": None} for k in range(count)]),
        "action": lists(rng.standard_normal((count, 2))),
        "frame_index": pa.array(np.arange(first, first + count)),
        "say": pa.array([None if k % 7 == 0 else f"step {k % 5}" for k in range(count)], pa.string()),
        "nested": pa.array(rng.integers(0, 9, (count, 2, 3)).tolist(), pa.list_(pa.list_(pa.int64()))),
        "may lack": lists(rng.standard_normal((count, 3)), nullable=True),
        "reward": pa.array(rng.standard_normal(count), pa.float32()),
    }
    return pa.table(columns, pa.schema([pa.field(n, c.type, n in ("image", "say")) for n, c in columns.items()]))


OPTIONS: dict[str, Any] = {
    "compression": "none",
    "use_dictionary": ["say"],
    "write_statistics": ["frame_index"],
    "column_encoding": {"frame_index": "DELTA_BINARY_PACKED"},
}


def written(path: Path, tables: list[Any]) -> Any:
    writer = ParquetWriter(path, tables[0].schema, **OPTIONS)
    for table in tables:
        writer.write(table)
    writer.close()
    return pq.ParquetFile(path)


def by_pyarrow(path: Path, tables: list[Any]) -> Any:
    with pq.ParquetWriter(path, tables[0].schema, **OPTIONS) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, len(table)))
    return pq.ParquetFile(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [2, 8, 17])
def test_files_hold_what_those_of_pyarrow_hold(tmp_path: Path, kind: str, width: int) -> None:
    tables = [steps(0, 300, kind, width), steps(300, 1, kind, width), steps(301, 63, kind, width)]
    own, other = written(tmp_path / "own", tables), by_pyarrow(tmp_path / "other", tables)
    assert own.schema_arrow.equals(other.schema_arrow, check_metadata=True)
    assert own.schema.equals(other.schema)
    assert own.read().equals(pa.concat_tables(tables))
    for k, table in enumerate(tables):
        assert own.read_row_group(k).equals(table)
        assert own.read_row_group(k, ["action.list.element", "reward"]).equals(table.select(["action", "reward"]))
    about, also = own.metadata, other.metadata
    assert (about.num_rows, about.num_columns, about.created_by) == (364, also.num_columns, also.created_by)
    for k in range(3):
        group, of = about.row_group(k), also.row_group(k)
        assert group.num_rows == of.num_rows
        assert group.total_byte_size == sum(group.column(c).total_uncompressed_size for c in range(about.num_columns))
        for c in range(about.num_columns):
            assert group.column(c).path_in_schema == of.column(c).path_in_schema
            assert group.column(c).num_values == of.column(c).num_values
            assert group.column(c).statistics == of.column(c).statistics


@pytest.mark.parametrize("page", [1, 1000, 4096])
def test_pages_end_with_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr("rlds_cli.archives.exports.parquet._PAGE", page)
    tables = [steps(0, 100), steps(100, 77)]
    file = written(tmp_path / "a", tables)
    assert file.read().equals(pa.concat_tables(tables))
    batches = list(file.iter_batches(10, columns=["observation.state.list.element", "frame_index"]))
    assert sum(len(b) for b in batches) == 177
    found = file.metadata.row_group(0).column(0)
    encoded = found.to_dict()["encodings"]
    assert set(encoded) == {"PLAIN", "RLE"}


def test_rows_are_found_by_the_bounds_of_other_columns(tmp_path: Path) -> None:
    tables = [steps(k * 50, 50) for k in range(4)]
    written(tmp_path / "a", tables)
    found = pq.read_table(tmp_path / "a", filters=[("frame_index", ">=", 148), ("frame_index", "<", 151)])
    assert found.equals(pa.concat_tables(tables).slice(148, 3).combine_chunks())


def test_slices_and_several_pieces_of_rows(tmp_path: Path) -> None:
    table = pa.concat_tables([steps(0, 40), steps(40, 40)]).slice(13, 50)
    assert written(tmp_path / "a", [table]).read().equals(table)


def test_only_lists_and_none(tmp_path: Path) -> None:
    both = steps(0, 30)
    only = both.select(["action", "frame_index"])
    none = both.select(["frame_index", "reward"])
    options = {"compression": "none"}
    for table in (only, none):
        writer = ParquetWriter(tmp_path / "a", table.schema, **options)
        writer.write(table)
        writer.close()
        assert pq.read_table(tmp_path / "a").equals(table)


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = steps(0, 3000)
    for count in range(6):  # writes that there is room for
        writer = ParquetWriter(tmp_path / "a", table.schema, **OPTIONS)
        full = _Full(writer._out.file, count)
        monkeypatch.setattr(writer._out, "file", full)
        with pytest.raises(OSError, match="No space left") as found:
            writer.write(table)
        assert found.value.errno == errno.ENOSPC
        writer.close()
        assert full.inner.closed


class _Full:
    """A file on a disk with room for ``count`` writes."""

    def __init__(self, inner: Any, count: int) -> None:
        self.inner, self.count = inner, count

    def write(self, data: Any) -> None:
        self.count -= 1
        if self.count < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.inner.write(data)

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None:
        self.inner.close()
