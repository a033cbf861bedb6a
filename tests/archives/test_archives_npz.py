"""npz files: NumPy's own reading is the truth; what is hostile or damaged is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.archives.formats.npz import MAX_HEADER, is_npz, open_npz, parse_header
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive

RNG = np.random.default_rng(0)
ARRAYS = {
    "observations": RNG.normal(size=(1000, 3)).astype("f4"),
    "image": RNG.integers(0, 255, (1000, 4, 4, 3), dtype="u1"),
    "big_endian": RNG.integers(-9, 9, (1000, 2)).astype(">i4"),
    "transposed": np.asfortranarray(RNG.normal(size=(1000, 5))),
    "flags": RNG.random(1000) < 0.1,
    "empty": np.zeros((1000, 0)),
    "scalar": np.float64(7),
    "text": np.array("hopper"),
    "group/key": np.arange(1000),
}


def raw(directory: Path, members: dict[str, bytes], **kinds: int) -> Path:
    with zipfile.ZipFile(directory / "x.npz", "w", **kinds) as z:
        for name, content in members.items():
            z.writestr(name, content)
    return directory / "x.npz"


def npy(array: np.ndarray) -> bytes:
    f = io.BytesIO()
    np.save(f, array)
    return f.getvalue()


def header(text: str, version: int = 1) -> bytes:
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text.encode()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_are_those_that_numpy_reads(tmp_path: Path, save: object) -> None:
    save(tmp_path / "a.npz", **ARRAYS)  # type: ignore[operator]
    assert is_npz(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as truth, open_npz(tmp_path / "a.npz") as npz:
        assert {n: (m.shape, m.dtype) for n, m in npz.members.items()} == {
            n: (v.shape, v.dtype) for n, v in truth.items()
        }
        for name, values in truth.items():
            found = npz.array(name)
            np.testing.assert_array_equal(found, values)
            assert found.dtype.isnative and found.dtype == values.dtype.newbyteorder("=")
        long = [n for n in truth if truth[n].shape]
        with npz.rows(long) as rows:
            for start, stop in ((0, 100), (99, 300), (300, 300), (420, 999), (998, 1100), (1000, 1001)):
                block = rows.read(start, stop)
                for name in long:
                    np.testing.assert_array_equal(block[name], truth[name][start:stop])
            with pytest.raises(ValueError, match="lies before row"):
                rows.read(0, 10)


def test_what_a_block_gave_stays(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(100))
    with open_npz(tmp_path / "a.npz") as npz, npz.rows(["x"]) as rows:
        first = rows.read(0, 10)["x"]
        rows.read(9, 20)
        assert first.tolist() == list(range(10))


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], object))
    with pytest.raises(UnsafeArchive, match="x holds Python objects"), open_npz(tmp_path / "a.npz"):
        pass


@pytest.mark.parametrize("name", ["../x.npy", "/x.npy", "a//x.npy", "a\\x.npy", "a/\x1b.npy"])
def test_names_that_climb_are_refused(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(UnsafeArchive, match="not a valid field name"),
        open_npz(raw(tmp_path, {name: npy(np.zeros(3))})),
    ):
        pass


def test_a_column_of_zeros_is_no_bomb(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(100 << 20, "u1"), y=RNG.random(100_000))
    with open_npz(tmp_path / "a.npz") as npz:
        with pytest.raises(UnknownLayout, match="at most 1,000 are expected"):
            npz.array("x", most=1000)
        with npz.rows(["x"]) as rows:
            assert not rows.read(0, 1 << 20)["x"].any()


def test_a_header_that_lies_about_its_size(tmp_path: Path) -> None:
    lie = header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n")
    with (
        pytest.raises(CorruptArchive, match=r"x says \[1000000000000\] float64 .* and has 24 bytes"),
        open_npz(raw(tmp_path, {"x.npy": lie + bytes(24)})),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n", CorruptArchive, "shape"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }\n", CorruptArchive, "shape"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", UnsafeArchive, "Python objects"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", UnknownLayout, "a field cannot hold"),
        ("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,), }\n", UnknownLayout, "a field cannot hold"),
        ("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }\n", CorruptArchive, "understood"),
        ("(" * 5000, CorruptArchive, "understood"),
        ("{}", CorruptArchive, "understood"),
    ],
)
def test_headers_that_are_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_header("x", io.BytesIO(header(text)), "a.npz")


def test_an_endless_header_is_not_read() -> None:
    endless = b"\x93NUMPY\x02\x00" + (MAX_HEADER + 1).to_bytes(4, "little")
    with pytest.raises(CorruptArchive, match="header of 65,537 bytes"):
        parse_header("x", io.BytesIO(endless), "a.npz")
    with pytest.raises(UnknownLayout, match=r"version 3\.0"):
        parse_header("x", io.BytesIO(b"\x93NUMPY\x03\x00" + bytes(100)), "a.npz")


def test_two_members_of_one_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as z:
        z.writestr("x.npy", npy(np.zeros(3)))
        with pytest.warns(UserWarning, match="Duplicate"):
            z.writestr("x.npy", npy(np.ones(3)))
    with pytest.raises(UnsafeArchive, match="stands twice"), open_npz(tmp_path / "x.npz"):
        pass


def test_other_compressions_and_encryption(tmp_path: Path) -> None:
    path = raw(tmp_path, {"x.npy": npy(np.zeros(3))}, compression=zipfile.ZIP_LZMA)
    with pytest.raises(UnknownLayout, match="compressed by method 14"), open_npz(path):
        pass
    path = raw(tmp_path, {"x.npy": npy(np.zeros(3))})
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(UnsafeArchive, match="encrypted"), open_npz(path):
        pass


def test_what_is_no_npz(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.npz", b"<!DOCTYPE html><html>", "HTML page"),
        ("b.npz", b"", "it is empty"),
        ("c.npz", b"whatever else", "not an npz file"),
    ):
        (tmp_path / name).write_bytes(content)
        assert not is_npz(tmp_path / name)
        with pytest.raises(CorruptArchive, match=message), open_npz(tmp_path / name):
            pass
    np.savez(tmp_path / "d.npz", x=RNG.random(1000))
    content = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(content[:4000])
    with pytest.raises(CorruptArchive, match="truncated or damaged"), open_npz(tmp_path / "d.npz"):
        pass
    assert not is_npz(tmp_path / "missing.npz")


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=RNG.random(10_000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0x40
    (tmp_path / "a.npz").write_bytes(content)
    with open_npz(tmp_path / "a.npz") as npz, pytest.raises(CorruptArchive, match="x cannot be read"):
        npz.array("x")


HEADERS = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda text, v: header(text, v), st.text(max_size=120).filter(str.isascii), st.sampled_from([1, 2])),
    st.builds(
        lambda d, o, s: header(f"{{'descr': {d!r}, 'fortran_order': {o!r}, 'shape': {s!r}, }}\n"),
        st.text(max_size=6).filter(str.isascii),
        st.one_of(st.booleans(), st.integers()),
        st.one_of(st.tuples(st.integers(), st.integers()), st.integers(), st.text(max_size=3).filter(str.isascii)),
    ),
)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # NumPy's own, of the truth
@settings(max_examples=66)
@given(HEADERS)
def test_any_header_is_read_or_refused(content: bytes) -> None:
    try:
        member = parse_header("x", io.BytesIO(content), "a.npz")
    except ArchiveError:
        return
    f = io.BytesIO(content)
    np.lib.format.read_magic(f)
    shape, _, dtype = (
        np.lib.format.read_array_header_1_0(f) if content[6] == 1 else np.lib.format.read_array_header_2_0(f)
    )
    assert (member.shape, member.dtype, member.offset) == (shape, dtype, f.tell())


@settings(max_examples=50)
@given(st.data())
def test_any_damage_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        with open_npz(path) as npz:
            for name in npz.members:
                npz.array(name)
    except ArchiveError:
        pass


def _small() -> bytes:
    f = io.BytesIO()
    np.savez_compressed(f, x=np.arange(12).reshape(4, 3), y=np.zeros(5, bool))
    return f.getvalue()


SMALL = _small()


def test_a_file_that_was_written_again_is_looked_at_again(tmp_path: Path) -> None:
    for dtype, name in (("f4", "a"), ("i4", "a"), ("i4", "b")):
        np.savez(tmp_path / "x.npz", **{name: np.arange(5).astype(dtype)})
        for _ in range(2):
            with open_npz(tmp_path / "x.npz") as npz:
                assert {n: m.dtype for n, m in npz.members.items()} == {name: np.dtype(dtype)}
                assert npz.array(name).tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CorruptArchive, match="truncated or damaged"), open_npz(tmp_path / "x.npz"):
        pass
