"""gzip, xz and plain files as streams, against Python's own modules."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.archives.formats import compressed
from rlds_cli.archives.formats.compressed import open_unpacked
from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive

CONTENT = np.random.default_rng(0).integers(0, 4, 3_000_000, dtype="u1").tobytes()
PACK = {"plain": bytes, "gzip": lambda b: gzip.compress(b, 1), "xz": lambda b: lzma.compress(b, preset=0)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("ahead", [0, 1 << 30])
def test_content_comes_out_whole_in_any_pieces(
    tmp_path: Path, kind: str, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "AHEAD_FROM", ahead)
    path = tmp_path / "x"
    path.write_bytes(PACK[kind](CONTENT))
    out = bytearray(len(CONTENT))
    with open_unpacked(path) as f:
        assert f.read(7) == CONTENT[:7]
        assert f.skip(1_500_000) == 1_500_000
        view, at = memoryview(out), 0
        while n := f.readinto(view[at : at + 1_048_577]):
            at += n
        assert out[:at] == CONTENT[1_500_007:]
        assert (f.read(5), f.skip(5), f.readinto(memoryview(bytearray(5)))) == (b"", 0, 0)


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_several_streams_and_padding_are_one_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(PACK[kind](b"one ") + PACK[kind](b"two") + b"\0" * 8)
    with open_unpacked(path) as f:
        assert f.read(100) == b"one two"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["gzip", "xz"])
@pytest.mark.parametrize("ahead", [0, 1 << 30])
def test_what_breaks_off_is_truncated(tmp_path: Path, kind: str, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "AHEAD_FROM", ahead)
    path = tmp_path / "x.bin"
    path.write_bytes(PACK[kind](CONTENT)[:-100])
    with pytest.raises(CorruptArchive, match=rf"x\.bin is truncated: its {kind} stream") as e, open_unpacked(path) as f:
        f.skip(len(CONTENT) + 1)
    assert e.value.hint == f"delete {path} and fetch it again"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_damage_is_said(tmp_path: Path, kind: str) -> None:
    packed = bytearray(PACK[kind](CONTENT))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "x"
    path.write_bytes(packed)
    with pytest.raises(CorruptArchive, match="cannot be unpacked"), open_unpacked(path) as f:
        f.skip(len(CONTENT) + 1)


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "FREE_BYTES", 1 << 20)
    path = tmp_path / "bomb"
    path.write_bytes(lzma.compress(bytes(20 << 20)))
    with pytest.raises(UnsafeArchive, match="more than 1,000 for each"), open_unpacked(path) as f:
        f.skip(20 << 20)


def test_a_dictionary_of_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.xz"
    path.write_bytes(lzma.compress(b"few", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]))
    with pytest.raises(UnsafeArchive, match="192 MiB"), open_unpacked(path) as f:
        f.read(3)


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.binary(max_size=200), st.sampled_from([b"\x1f\x8b\x08\x00", b"\xfd7zXZ\x00\x00\x04"]))
def test_any_bytes_are_content_or_an_error(tmp_path_factory: pytest.TempPathFactory, tail: bytes, head: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x"
    path.write_bytes(head + tail)
    try:
        with open_unpacked(path) as f:
            f.read(1000)
    except ArchiveError:
        pass
