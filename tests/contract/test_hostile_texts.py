"""CSV, JSON lines, tar, npz and TFRecord files that were made to do harm."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlds_cli.archives.formats import compressed, text_tables, tfrecord
from rlds_cli.archives.formats.tfrecord import masked
from rlds_cli.base.files import child
from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive
from rlds_cli.make.importing import import_files


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_READ_MEMORY", "1GiB")


@pytest.fixture
def here() -> Iterator[None]:
    """What is refused by its numbers is refused by the process that reads, which is this one then."""
    with child.here():
        yield


def refused(path: Path, error: type[ArchiveError], match: str) -> None:
    with pytest.raises(error, match=match):
        import_files(path, "local/hostile")
    assert not list(Path(os.environ["RLDS_HOME"]).glob("datasets/local/*"))


ROW = '{"observation": [0.5, 1.5], "action": 1, "done": true'


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "deep",
    ["[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000],
    ids=["lists", "objects"],
)
def test_values_that_are_nested_deeply_end_the_process_that_reads(tmp_path: Path, deep: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{ROW}}}\n{ROW}, "x": {deep}}}\n')
    refused(tmp_path / "a.jsonl", ArchiveError, "a.jsonl")


def test_brackets_in_texts_are_no_nesting(here: None, tmp_path: Path) -> None:
    lines = [f'{ROW}, "note": "{"[" * 500} \\" {"{" * 500}"}}' for _ in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    assert import_files(tmp_path / "a.jsonl", "local/fine").num_episodes == 3


@pytest.mark.parametrize("count", [4_200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_json_lines_each_with_a_column_of_its_own(count: int, tmp_path: Path) -> None:
    lines = [f'{ROW}, "x{k}": 1}}' for k in range(count)]  # as many columns as rows
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    refused(tmp_path / "a.jsonl", UnsafeArchive, "columns or more; at most 4,096|takes more than 1.0 GiB")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("nested", [False, True])
def test_json_lines_of_very_many_keys(nested: bool, here: None, tmp_path: Path) -> None:
    keys = ", ".join(f'"x{k}": {{"v": 1}}' if nested else f'"x{k}": 1' for k in range(6_000))
    (tmp_path / "a.jsonl").write_text(f"{ROW}, {keys}}}\n")
    refused(tmp_path / "a.jsonl", UnsafeArchive, "6,003 columns")


def test_a_table_of_very_many_columns(here: None, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", observations=np.zeros((5, 2)), **{f"x{k}": np.zeros(5) for k in range(5_000)})
    refused(tmp_path / "a.npz", UnsafeArchive, "5,001 columns")


def test_a_csv_of_very_many_columns(here: None, tmp_path: Path) -> None:
    names = [f"x{k}" for k in range(20_000)]
    (tmp_path / "a.csv").write_text(",".join([*names, names[-1]]) + "\n")
    refused(tmp_path / "a.csv", UnsafeArchive, "20,001 columns")


def test_a_line_without_an_end(here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "MAX_LINE", 1 << 20)
    monkeypatch.setattr(text_tables, "BLOCK_BYTES", 1 << 18)
    (tmp_path / "a.jsonl").write_text(f'{ROW}}}\n{ROW}, "x": "{"y" * (2 << 20)}"}}\n')
    refused(tmp_path / "a.jsonl", UnsafeArchive, "a line of more than")


# -- tar


def pax(record: bytes) -> bytes:
    """A tar file whose first member is a pax header of one record."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, kind, content in (("PaxHeader", b"x", record), ("a.npz", b"0", b"abc")):
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), kind
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize(
    "record",
    [
        b"99999999999999999999 path=x\n",
        b"9" * 5000 + b" path=x\n",
        b"0 path=x\n",
        b"3 path=x\n",
        b"-1 path=x\n",
        b"12 path=x\n12 path=y\n",
        b"path=x\n",
        b"12 path\n",
    ],
)
def test_lengths_of_pax_records(tmp_path: Path, record: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(pax(record))
    with compressed.open_unpacked(tmp_path / "a.tar") as stream, pytest.raises(CorruptArchive, match="the pax header"):
        list(compressed.members(stream))


@pytest.mark.parametrize("size", ["9" * 5000, "\u00b2", "-5", "1e3"])
def test_sizes_of_pax_records(tmp_path: Path, size: str) -> None:
    text = f" size={size}\n".encode()
    length = len(text) + len(str(len(text) + 4))
    (tmp_path / "a.tar").write_bytes(pax(str(length).encode() + text))
    with compressed.open_unpacked(tmp_path / "a.tar") as stream:
        assert [(m.name, m.size) for m in compressed.members(stream)] == [("a.npz", 3)]  # as the header itself says


# -- npz


def test_an_npz_of_rows_without_values(here: None, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as z:
        for name in ("observations", "actions", "rewards"):
            file = io.BytesIO()
            header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 60, 0)}
            np.lib.format.write_array_header_1_0(file, header)
            z.writestr(f"{name}.npy", file.getvalue())
    refused(tmp_path / "a.npz", CorruptArchive, "says its shape is")


# -- TFRecord


def test_a_packed_record_is_smaller_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "MAX_PACKED_RECORD", 1 << 20)
    length = struct.pack("<Q", 2 << 20)
    crc = struct.pack("<I", masked(tfrecord.google_crc32c.value(length)))
    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(length + crc + bytes(2 << 20)))
    with pytest.raises(UnsafeArchive, match="at most 1,048,576 are read"):
        list(tfrecord.records(tmp_path / "a.tfrecord"))
