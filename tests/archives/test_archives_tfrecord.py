"""TFRecord framing: against files framed by hand, one byte changed, cut anywhere, packed in every way."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from tfds_files import framed, mask, write_records

from rlds_cli.archives.formats import compressed, tfrecord
from rlds_cli.archives.formats.tfrecord import masked
from rlds_cli.errors import CorruptArchive, UnsafeArchive

RECORDS = [b"", b"a", b"some bytes" * 7, bytes(range(256)) * 9000]


def test_the_checksum_is_rotated_and_moved() -> None:
    # crc32c of "123456789" is 0xe3069283; its low 15 bits go to the front: 0x2507c60d; plus 0xa282ead8.
    assert mask(b"123456789") == masked(0xE3069283) == 0xC78AB0E5


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [False, True])
def test_records_come_as_written(tmp_path: Path, packed: bool) -> None:
    path = write_records(tmp_path / "x.tfrecord", RECORDS, packed=packed)
    found = list(tfrecord.records(path))
    assert [r.data for r in found] == RECORDS
    assert [r.number for r in found] == [0, 1, 2, 3]
    assert [r.offset for r in found] == [0, 16, 33, 33 + 16 + 70]
    assert tfrecord.is_tfrecord(path)


def test_gzip_of_several_members_with_padding(tmp_path: Path) -> None:
    content = b"".join(map(framed, RECORDS))
    cut = len(content) // 3
    path = tmp_path / "x.tfrecord"
    path.write_bytes(gzip.compress(content[:cut]) + gzip.compress(content[cut:]) + bytes(512))
    assert [r.data for r in tfrecord.records(path)] == RECORDS


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"")
    assert list(tfrecord.records(path)) == []
    assert not tfrecord.is_tfrecord(path)


@pytest.mark.parametrize("content", [b"plain text, no record at all", b"\x1f\x8b\x08 no gzip", b"\x1f\x8b"])
def test_what_is_no_tfrecord(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert not tfrecord.is_tfrecord(path)
    with pytest.raises(CorruptArchive):
        list(tfrecord.records(path))


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_anywhere_is_an_error_that_says_where(tmp_path: Path, packed: bool) -> None:
    path = write_records(tmp_path / "x.tfrecord", [b"first record", b"second record"], packed=packed)
    whole, ends = path.read_bytes(), {0, 28, 57}
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if not packed and size in ends:
            assert len(list(tfrecord.records(path))) == sorted(ends).index(size)
        elif size:
            with pytest.raises(CorruptArchive, match=r"x.tfrecord.*(at byte|gzip stream|cannot be)"):
                list(tfrecord.records(path))


def test_where_a_record_breaks_off(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.tfrecord", [b"first record", b"second record"])
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CorruptArchive) as e:
        list(tfrecord.records(path))
    assert "record 1 at byte 28: the file ends inside it: the file has 6 of its 13 bytes" in e.value.message
    assert e.value.hint == f"delete {path} and fetch it again"


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = write_records(tmp_path / "x.tfrecord", [b"the only record"])
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        with pytest.raises(CorruptArchive, match="record 0 at byte 0: the checksum of its"):
            list(tfrecord.records(path))


@pytest.mark.parametrize("packed", [False, True])
def test_lengths_are_bounded_before_memory_is_taken(tmp_path: Path, packed: bool) -> None:
    length = struct.pack("<Q", 1 << 27)
    content = length + struct.pack("<I", mask(length)) + bytes(100)
    path = tmp_path / "x.tfrecord"
    path.write_bytes(gzip.compress(content) if packed else content)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptArchive, match=r"the file ends inside it|stream ends at byte"):
            list(tfrecord.records(path))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(UnsafeArchive, match="record 0 at byte 0: claims 134,217,728 bytes; at most 1,000 are read"):
        list(tfrecord.records(path, limit=1000))


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    path = tmp_path / "x.tfrecord"
    path.write_bytes(packer.compress(framed(bytes(16 << 20))) + packer.flush())
    assert path.stat().st_size < 80_000
    with pytest.raises(UnsafeArchive, match="more than 1,000 for each are refused"):
        list(tfrecord.records(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CorruptArchive, match="cannot be read"):
        list(tfrecord.records(tmp_path))
    with pytest.raises(CorruptArchive, match="cannot be read"):
        list(tfrecord.records(tmp_path / "none"))


@pytest.mark.thorough
def test_many_small_records_in_gzip(tmp_path: Path) -> None:
    records = [np.random.default_rng(i).bytes(i % 90) for i in range(3000)]
    path = write_records(tmp_path / "x.tfrecord", records, packed=True)
    assert [r.data for r in tfrecord.records(path)] == records
