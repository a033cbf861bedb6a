"""Parquet files whose few bytes stand for more than memory holds."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlds_cli.archives.lerobot import description
from rlds_cli.archives.minari.arrow_storage import _reading as arrow_reading
from rlds_cli.archives.plain import boundaries
from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive
from rlds_cli.formats import arrow_tables, parquet
from rlds_cli.importing import import_archive

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))


def repeated(text: str | bytes, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [text])


def flat(path: Path, rows: int, **columns: Any) -> Path:
    table = {"observation": np.zeros(rows), "action": np.zeros(rows), "done": np.arange(rows) % 10 == 9}
    table = {k: pa.array(v) for k, v in table.items()} | columns
    pq.write_table(pa.table(table), path, compression="zstd", store_schema=False, row_group_size=rows)
    return path


def refused(path: Path, match: str) -> None:
    with pytest.raises(UnsafeArchive, match=match):
        import_archive(path, "local/hostile")
    assert not list(Path(os.environ["RLDS_HOME"]).glob("datasets/local/*"))


def test_a_dictionary_of_one_long_text(tmp_path: Path) -> None:
    path = flat(tmp_path / "a.parquet", 8192, note=repeated("x" * MIB, 8192))
    assert path.stat().st_size < 10_000  # and 8 GiB when it is read
    refused(path, "claims .* bytes, and has")


def test_rows_of_long_texts_come_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FREE_BYTES", 1 << 40)
    path = flat(tmp_path / "a.parquet", 8192, note=repeated("x" * MIB, 8192))
    with parquet.opened(path) as f:
        batch = next(parquet.batches(f, path, ["note"], 8192))
    assert 64 < len(batch) <= 128  # of a megabyte each


def test_honest_dictionaries_and_images_are_read_in_large_batches(tmp_path: Path) -> None:
    rows, rng = 4000, np.random.default_rng(0)
    texts = pa.array([f"task {k}" for k in rng.integers(0, 50, rows)])
    images = pa.array([rng.bytes(300) for _ in range(rows)])
    path = flat(tmp_path / "a.parquet", rows, note=texts, image=images)
    with parquet.opened(path) as f:
        found = list(parquet.batches(f, path, None, 1 << 13))
    assert [len(b) for b in found] == [rows]
    assert found[0].column("image").to_pylist() == images.to_pylist()


def test_a_row_of_a_list_that_has_all_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FREE_LISTS", 4 * MIB)
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(MIB, np.int8)), pa.array([1.5]))
    lists = pa.ListArray.from_arrays(pa.array([0, MIB], pa.int32()), values)
    pq.write_table(pa.table({"x": lists}), tmp_path / "a.parquet", compression="zstd", store_schema=False)
    with (
        pytest.raises(UnsafeArchive, match="in lists claims 8,388,608 bytes"),
        parquet.opened(tmp_path / "a.parquet") as f,
    ):
        next(parquet.batches(f, tmp_path / "a.parquet", None, 1))


def test_rows_that_share_a_long_value_count_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 rows of 64 KiB, which a column of dictionary type holds once: 12.5 MiB, of a file of about a kilobyte."""
    value = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200, np.int32)), pa.array(["x" * (64 << 10)]))
    path = tmp_path / "a.parquet"
    for column in (value, pa.StructArray.from_arrays([value], ["y"]), pa.ListArray.from_arrays([0, 200], value)):
        pq.write_table(pa.table({"x": column}), path, compression="zstd")
        with parquet.opened(path) as f:
            monkeypatch.setattr(parquet, "FREE_BYTES", 8 * MIB)
            with pytest.raises(UnsafeArchive, match=r"claims 1\d,\d{3},\d{3} rows or bytes"):
                list(parquet.batches(f, path, None, 200))
            monkeypatch.undo()


def test_a_page_that_unpacks_to_a_thousandfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"compression": "zstd", "use_dictionary": False, "store_schema": False}
    pq.write_table(pa.table({"x": [bytes(32 * MIB)]}), tmp_path / "a.parquet", **options)
    with parquet.opened(tmp_path / "a.parquet") as f:  # whose footer is believed
        monkeypatch.setattr(parquet, "FREE_BYTES", MIB)
        with pytest.raises(UnsafeArchive, match="the column x"):
            next(parquet.batches(f, tmp_path / "a.parquet", None, 1))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_headers_of_pages(tmp_path: Path, compression: str, version: str) -> None:
    """3,000 numbers of 8 bytes, and 3,000 texts of 2 in a dictionary of 100 texts of 600 characters."""
    texts = [f"{k:03}" * 200 for k in range(100)]
    table = pa.table({"a": np.arange(3000), "b": [texts[k % 100] for k in range(3000)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression=compression, data_page_version=version, use_dictionary=["b"])
    stat = path.stat()
    found = parquet.row_bytes(str(path), (stat.st_size, stat.st_mtime_ns))
    assert found == {"a": 8, "b": 608}


def test_damaged_headers_of_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(100)}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:20] = b"\xff" * 16
    path.write_bytes(content)
    with pytest.raises(CorruptArchive, match="header of a page"), parquet.opened(path) as f:
        next(parquet.batches(f, path, None, 10))


def test_reading_begins_with_the_row_group_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    options = {"row_group_size": 10, "use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(pa.table({"x": np.arange(40.0)}), path, **options)
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(3.0, 9).tobytes())] ^= 1  # in the first row group
    path.write_bytes(content)
    with parquet.open_parquet(path) as f:
        rows = f.rows(["x", "missing:x"])
        assert rows.read(23, 25)["x"].tolist() == [23, 24]
        assert rows.read(37, 99)["x"].tolist() == [37, 38, 39]
        assert [len(v) for v in rows._kept.values()] == [3, 3]
        assert f.rows(["x"]).read(40, 50)["x"].tolist() == []
        with pytest.raises(CorruptArchive):
            f.rows(["x"]).read(9, 11)


def test_a_row_group_has_as_many_values_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [5, None, 7], "y": [[1, 2], [], [3]]}), path)
    stat = path.stat()
    assert set(parquet.row_bytes(str(path), (stat.st_size, stat.st_mtime_ns))) == {"x", "y"}
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        chunk = parquet._footer("a", content)[0][0]
        column = pq.read_metadata(path).schema.column(0)
        with pytest.raises(CorruptArchive, match="3 values in a row group of 4"):
            parquet._of_chunk("a", content, chunk, column, 4)


@pytest.mark.parametrize(
    ("limit", "message"),
    [("FREE_MARKS", "done mark episodes, and take 3,000 bytes"), ("FREE_EPISODES", "the first of 300 episodes")],
)
def test_episodes_take_no_more_memory_than_the_files_account_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    path = flat(tmp_path / "a.parquet", 3000)
    monkeypatch.setattr(boundaries, "MARKS_RATIO", 0)
    monkeypatch.setattr(boundaries, limit, 200 - path.stat().st_size)
    refused(path, message)


def test_descriptions_of_lerobot_are_measured(tmp_path: Path) -> None:
    path = flat(tmp_path / "tasks.parquet", 8192, task=repeated("x" * MIB, 8192))
    with pytest.raises(UnsafeArchive):
        description.read_table(path)
    assert description.read_table(path, ["action"]).num_rows == 8192


# -- Arrow


def arrow(path: Path, compression: str | None, rows: int = 5, batches: int = 2) -> Path:
    table = pa.table({"observations": np.zeros(rows * batches), "actions": np.arange(rows * batches)})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_file(f, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_arrow_files_are_read(tmp_path: Path, compression: str | None) -> None:
    path = arrow(tmp_path / "part-0.arrow", compression, rows=1000)
    found = list(arrow_tables.batches(path))
    assert [b.num_rows for b in found] == [1000, 1000] and arrow_tables.count(path) == 2000
    assert found[1]["actions"].to_pylist() == list(range(1000, 2000))


def test_arrow_buffers_that_unpack_to_a_thousandfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_tables, "FREE_BYTES", MIB)
    path = tmp_path / "part-0.arrow"
    zeros = pa.table({"observations": np.zeros(4 * MIB)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_file(f, zeros.schema, options=options) as writer:
        writer.write_table(zeros)
    with pytest.raises(UnsafeArchive, match="claims 33,554,432 bytes"):
        list(arrow_tables.batches(path))


def test_the_metadata_of_arrow_messages_may_be_anything(tmp_path: Path) -> None:
    content = arrow(tmp_path / "part-0.arrow", "lz4").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        damaged[int(rng.integers(8, 700))] = int(rng.integers(256))
        (tmp_path / "part-0.arrow").write_bytes(damaged)
        try:
            with arrow_reading(tmp_path / "part-0.arrow"):
                list(arrow_tables.batches(tmp_path / "part-0.arrow"))
        except ArchiveError:
            continue
