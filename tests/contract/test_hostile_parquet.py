"""Parquet files whose few bytes stand for more than memory holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlds_cli.archives.formats import arrow_files, parquet
from rlds_cli.archives.minari.arrow_storage import _reading as arrow_reading
from rlds_cli.archives.plain import boundaries
from rlds_cli.base.files import child
from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive
from rlds_cli.make.importing import import_files

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_READ_MEMORY", "512MiB")


def repeated(text: str | bytes, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [text])


def flat(path: Path, rows: int, **columns: Any) -> Path:
    table = {"observation": np.zeros(rows), "action": np.zeros(rows), "done": np.arange(rows) % 10 == 9}
    table = {k: pa.array(v) for k, v in table.items()} | columns
    pq.write_table(pa.table(table), path, compression="zstd", store_schema=False, row_group_size=rows)
    return path


def refused(path: Path, match: str) -> None:
    with pytest.raises(UnsafeArchive, match=match):
        import_files(path, "local/hostile")
    assert not list(Path(os.environ["RLDS_HOME"]).glob("datasets/local/*"))


def test_a_dictionary_of_one_long_text(tmp_path: Path) -> None:
    path = flat(tmp_path / "a.parquet", 8192, note=repeated("x" * MIB, 8192))
    assert path.stat().st_size < 10_000  # and 8 GiB when it is read
    refused(path, "reading it takes more than 512.0 MiB of memory|becomes more than")


def test_honest_dictionaries_and_images_are_read_in_large_batches(tmp_path: Path) -> None:
    rows, rng = 4000, np.random.default_rng(0)
    texts = pa.array([f"task {k}" for k in rng.integers(0, 50, rows)])
    images = pa.array([rng.bytes(300) for _ in range(rows)])
    path = flat(tmp_path / "a.parquet", rows, note=texts, image=images)
    with parquet.opened(path) as f:
        found = list(parquet.batches(f, path, None, 1 << 13))
    assert [len(b) for b in found] == [rows]
    assert found[0].column("image").to_pylist() == images.to_pylist()


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
    with child.here():
        refused(path, message)


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
    found = list(arrow_files.batches(path))
    assert [b.num_rows for b in found] == [1000, 1000] and arrow_files.count(path) == 2000
    assert found[1]["actions"].to_pylist() == list(range(1000, 2000))


def test_the_metadata_of_arrow_messages_may_be_anything(tmp_path: Path) -> None:
    content = arrow(tmp_path / "part-0.arrow", "lz4").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        damaged[int(rng.integers(8, 700))] = int(rng.integers(256))
        (tmp_path / "part-0.arrow").write_bytes(damaged)
        try:
            with arrow_reading(tmp_path / "part-0.arrow"):
                list(arrow_files.batches(tmp_path / "part-0.arrow"))
            with arrow_files.open_arrow(tmp_path / "part-0.arrow", fill=True) as f, f.rows(f.columns) as rows:
                rows.read(0, 10)
        except ArchiveError:
            continue
