"""Tar archives as streams: the same members as Python's tarfile gives, and none that should not be there."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_archives import write_tar

from rlds_cli.archives.formats.compressed import is_tar, members, open_unpacked
from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive

CONTENTS = [
    ("a.npz", b"one"),
    ("deep/" * 18 + "b.npy", b"x" * 1024),
    ("n" * 250, b"\0" * 700),
    ("ä/ü.npz", b""),
    ("./c.npz", b"last"),
]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def contents(path: Path) -> list[tuple[str, bytes]]:
    with open_unpacked(path) as stream:
        return [(m.name, b"".join(iter(lambda m=m: m.read(300), b""))) for m in members(stream)]


def written(path: Path, kind: str, mode: str = "w") -> Path:
    fits = CONTENTS if kind != "ustar" else CONTENTS[:2] + CONTENTS[3:]
    with tarfile.open(path, mode, format=FORMATS[kind]) as tar:  # type: ignore[call-overload]
        directory = tarfile.TarInfo("deep")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        for name, content in fits:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1234567890.5
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_members_are_those_of_tarfile(tmp_path: Path, kind: str, mode: str) -> None:
    path = written(tmp_path / "x.tar", kind, mode)
    with tarfile.open(path) as tar:
        truth = [(m.name, tar.extractfile(m).read()) for m in tar if m.isreg()]  # type: ignore[union-attr]
    assert contents(path) == [(name.removeprefix("./"), content) for name, content in truth]
    with open_unpacked(path) as stream:
        assert is_tar(stream)


def test_what_is_not_read_is_passed_over(tmp_path: Path) -> None:
    with open_unpacked(written(tmp_path / "x.tar", "gnu")) as stream:
        seen = [(m.number, m.name[:5], m.read(2)) for m in members(stream)]
    assert [number for number, _, _ in seen] == [0, 1, 2, 3, 4]
    assert [(name, head) for _, name, head in seen] == [
        ("a.npz", b"on"),
        ("deep/", b"xx"),
        ("nnnnn", b"\0\0"),
        ("ä/ü.n", b""),
        ("c.npz", b"la"),
    ]


def odd(change: Callable[[tarfile.TarInfo], None]) -> tarfile.TarInfo:
    info = tarfile.TarInfo("fine.npz")
    change(info)
    return info


def kind(value: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = value, target

    return change


def called(name: str) -> Callable[[tarfile.TarInfo], None]:
    return lambda info: setattr(info, "name", name)


REFUSED = {
    "is an absolute path": called("/etc/passwd"),
    "leaves its directory": called("a/../../b.npz"),
    "is an absolute path ": called("C:/b.npz"),
    "backslash or a control character": called("a\\b.npz"),
    "is a symbolic link": kind(tarfile.SYMTYPE, "/etc/passwd"),
    "is a hard link": kind(tarfile.LNKTYPE, "a.npz"),
    "is a character device": kind(tarfile.CHRTYPE),
    "is a block device": kind(tarfile.BLKTYPE),
    "is a named pipe": kind(tarfile.FIFOTYPE),
    "is of no known kind": kind(b"Q"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("form", FORMATS)
def test_members_that_reach_out_are_refused(tmp_path: Path, why: str, form: str) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=FORMATS[form]) as tar:
        tar.addfile(tarfile.TarInfo("before.npz"))
        tar.addfile(odd(REFUSED[why]))
    with pytest.raises(UnsafeArchive, match=why.strip()):
        contents(tmp_path / "x.tar")


def patched(path: Path, change: Callable[[bytearray], None]) -> Path:
    """The first header changed, with its checksum made right again."""
    raw = bytearray(path.read_bytes())
    change(raw)
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(raw)
    return path


def test_impossible_sizes_are_refused(tmp_path: Path) -> None:
    for digits in (b"77777777777\0", b"\x80" + (1 << 40).to_bytes(11, "big"), b"\xff" + b"\xff" * 11, b"no number!!\0"):
        write_tar(tmp_path / "x.tar", [("a.npz", b"few")], "w")

        def change(raw: bytearray, digits: bytes = digits) -> None:
            raw[124:136] = digits

        with pytest.raises(UnsafeArchive, match="claims"):
            contents(patched(tmp_path / "x.tar", change))


def test_headers_that_would_fill_memory_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.npz")
        info.pax_headers = {"comment": "x" * (2 << 20)}
        tar.addfile(info)
    with pytest.raises(UnsafeArchive, match="has a header of 2,0"):
        contents(tmp_path / "x.tar")


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.npz")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        tar.addfile(info)
    with pytest.raises(UnsafeArchive, match="sparse"):
        contents(tmp_path / "x.tar")


@pytest.mark.parametrize("at", [100, 512, 600, 1024, 1500, 2000])
def test_archives_that_end_early_are_truncated(tmp_path: Path, at: int) -> None:
    write_tar(tmp_path / "x.tar", [("a.npz", b"1" * 512), ("b.npz", b"2" * 600)], "w")
    (tmp_path / "x.tar").write_bytes((tmp_path / "x.tar").read_bytes()[:at])
    with pytest.raises(CorruptArchive, match=r"x\.tar is truncated") as e:
        contents(tmp_path / "x.tar")
    assert "fetch it again" in str(e.value.hint)


def test_damage_between_members_is_no_end(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [("a.npz", b"1" * 512), ("b.npz", b"2" * 600)], "w")
    raw = bytearray((tmp_path / "x.tar").read_bytes())
    raw[1024 + 5] ^= 0xFF
    (tmp_path / "x.tar").write_bytes(raw)
    with tarfile.open(tmp_path / "x.tar") as tar:
        assert len(tar.getmembers()) == 1  # what tarfile makes of it
    with pytest.raises(CorruptArchive, match="the header of a member is damaged"):
        contents(tmp_path / "x.tar")


@pytest.mark.thorough
@settings(max_examples=50)
@given(st.data())
def test_any_change_is_content_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.tar"
    written(path, data.draw(st.sampled_from([*FORMATS])))
    raw = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    try:
        for name, _ in contents(path):
            assert not name.startswith("/") and ".." not in name.split("/")
    except ArchiveError:
        pass
