"""The checksums of Parquet pages, which few files have: one flipped bit is an error wherever Parquet is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_archives import Content, write_v3

from rlds_cli.archives.formats.categories import open_table
from rlds_cli.archives.formats.parquet import open_parquet
from rlds_cli.archives.minari import arrow_storage
from rlds_cli.errors import CorruptArchive
from rlds_cli.make.importing import import_files


def flip(path: Path, needle: bytes) -> None:
    """Turn one bit of a value, where it is stored as it is."""
    data = bytearray(path.read_bytes())
    assert data.count(needle) >= 1
    data[data.index(needle) + len(needle) // 2] ^= 0x04
    path.write_bytes(bytes(data))


def write(path: Path, table: pa.Table, *, checksums: bool) -> Path:
    pq.write_table(table, path, write_page_checksum=checksums, compression="none", use_dictionary=False)
    return path


def plain(path: Path) -> None:
    with open_parquet(path) as f, f.rows(["x"]) as rows:
        rows.read(0, 64)


def minari(path: Path) -> None:
    list(arrow_storage._batches(path))


def categories(path: Path) -> None:
    with open_table(path) as table:
        list(table.blocks(["x"], 64))


@pytest.mark.thorough
@pytest.mark.parametrize("read", [plain, minari, categories])
def test_a_flipped_bit_is_an_error(tmp_path: Path, read: Callable[[Path], None]) -> None:
    x = np.random.default_rng(0).normal(size=64)
    path = write(tmp_path / "a.parquet", pa.table({"x": x}), checksums=True)
    read(path)
    flip(path, x[30:33].tobytes())
    with pytest.raises(CorruptArchive, match="CRC"):
        read(path)


@pytest.mark.parametrize("where", ["data", "meta/episodes"])
def test_a_flipped_bit_of_lerobot_is_an_error(tmp_path: Path, where: str) -> None:
    c = Content()
    root = write_v3(tmp_path / "a", c)
    for path in (root / where).rglob("*.parquet"):
        write(path, pq.read_table(path), checksums=True)
    import_files(root, "local/sound")
    first = next((root / where).rglob("file-000.parquet"))
    needle = c.column("action")[2:4].tobytes() if where == "data" else np.array(c.lengths, np.int64).tobytes()
    flip(first, needle)
    with pytest.raises(CorruptArchive, match="CRC"):
        import_files(shutil.copytree(root, tmp_path / "b"), "local/b")
