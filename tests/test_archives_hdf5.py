from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds_cli.archives import hdf5
from rlds_cli.archives.hdf5 import attributes, datasets, is_hdf5, open_file, plain, row_field, walk
from rlds_cli.archives.hdf5_rows import RowReader, nan_count
from rlds_cli.errors import CorruptArchive, MissingPackage, NoPermission, UnknownLayout, UnsafeArchive
from rlds_cli.ted import Field


def make(path: Path, **columns: Any) -> Path:
    with h5py.File(path, "w") as f:
        for key, value in columns.items():
            f[key.replace("__", "/")] = value
    return path


def opened(path: Path) -> None:
    with open_file(path):
        pass


class TestNotHdf5:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"<!DOCTYPE html><html>404</html>", "HTML page"),
            (b"\n  <html>sign in</html>", "HTML page"),
            (b"<?xml version='1.0'?><Error>NoSuchKey</Error>", "HTML page"),
            (b"", "it is empty"),
            (b"PK\x03\x04 a zip", r"not an HDF5 file \(10 bytes\)"),
            (hdf5.MAGIC, "truncated or damaged"),
        ],
    )
    def test_is_said(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "a.h5"
        path.write_bytes(content)
        with pytest.raises(CorruptArchive, match=message):
            opened(path)

    def test_missing_and_directory(self, tmp_path: Path) -> None:
        with pytest.raises(CorruptArchive, match="no such file"):
            opened(tmp_path / "none.h5")
        with pytest.raises(CorruptArchive, match="is a directory"):
            opened(tmp_path)
        assert not is_hdf5(tmp_path)
        assert not is_hdf5(tmp_path / "none.h5")

    def test_truncated(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.h5", x=np.zeros(10_000))
        os.truncate(path, path.stat().st_size - 100)
        assert is_hdf5(path)
        with pytest.raises(CorruptArchive, match="truncated"):
            opened(path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_no_permission(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.h5", x=np.zeros(3))
        path.chmod(0)
        with pytest.raises(NoPermission):
            opened(path)

    @pytest.mark.parametrize("at", range(0, 4000, 397))
    def test_flipped_bytes_never_end_otherwise(self, tmp_path: Path, at: int) -> None:
        path = make(tmp_path / "a.h5", a__x=np.zeros(10), b__y=np.arange(4), b__z="text")
        data = bytearray(path.read_bytes())
        data[at % len(data) : at % len(data) + 24] = b"\xff" * 24
        path.write_bytes(data)
        try:
            with open_file(path) as f:
                for name, d in datasets(f).items():
                    with hdf5.reading(path, name):
                        plain(d)
        except (CorruptArchive, UnsafeArchive):
            pass

    def test_user_block(self, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w", userblock_size=1024) as f:
            f.create_dataset("x", data=np.arange(5000.0), compression="gzip", chunks=(1000,))
        assert is_hdf5(path)
        with open_file(path) as f, RowReader(path, {"x": f["x"]}) as rows:
            assert rows.read(0, 5000)["x"].tolist() == [*range(5000)]

    def test_file_that_is_open_with_other_locking(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.h5", x=np.zeros(3))
        with h5py.File(path), open_file(path) as f:
            assert list(f) == ["x"]


class TestUnsafe:
    def refused(self, path: Path, message: str) -> None:
        with pytest.raises(UnsafeArchive, match=message):
            opened(path)

    def test_external_link(self, tmp_path: Path) -> None:
        other = make(tmp_path / "other.h5", secret=np.arange(3))
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f["g/link"] = h5py.ExternalLink(other, "secret")
        self.refused(tmp_path / "a.h5", r"g/link is a link to another file \(.*other\.h5\)")

    def test_dangling_soft_link(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f["x"] = h5py.SoftLink("/nowhere")
        self.refused(tmp_path / "a.h5", "x is a link that leads nowhere")

    def test_virtual_dataset_of_another_file(self, tmp_path: Path) -> None:
        other = make(tmp_path / "other.h5", secret=np.arange(3))
        with h5py.File(tmp_path / "a.h5", "w") as f:
            source = h5py.VirtualLayout((3,), "i8")
            source[:] = h5py.VirtualSource(str(other), "secret", (3,))
            f.create_virtual_dataset("x", source)
        self.refused(tmp_path / "a.h5", "x is a virtual dataset that reads other files")

    def test_virtual_dataset_of_the_same_file_is_fine(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f["real"] = np.arange(3)
            source = h5py.VirtualLayout((3,), "i8")
            source[:] = h5py.VirtualSource(".", "real", (3,))
            f.create_virtual_dataset("x", source)
        with open_file(tmp_path / "a.h5") as f, RowReader(tmp_path / "a.h5", {"x": f["x"]}) as rows:
            assert rows.read(1, 3)["x"].tolist() == [1, 2]

    def test_external_storage(self, tmp_path: Path) -> None:
        (tmp_path / "raw").write_bytes(bytes(80))
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f.create_dataset("x", (10,), "f8", external=[(str(tmp_path / "raw"), 0, 80)])
        self.refused(tmp_path / "a.h5", "x keeps its data in another file")

    @pytest.mark.parametrize("shape", [(1 << 40,), (1 << 50, 0), (1 << 20, 1 << 20)])
    def test_absurd_shape(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            chunks = tuple(max(min(n, 1000), 1) for n in shape)
            f.create_dataset("x", shape, "f4", chunks=chunks, compression="gzip", maxshape=(None,) * len(shape))
        self.refused(tmp_path / "a.h5", "x claims .* and stores 0 bytes")

    def test_zeros_that_were_really_written_are_fine(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f.create_dataset("x", data=np.zeros((100 << 20,), "u1"), compression="gzip", compression_opts=9)
            f.create_dataset("y", (1 << 20,), "f4", chunks=True)
        opened(tmp_path / "a.h5")

    def test_group_in_itself(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f["g/deeper/x"] = 1
            f["g/deeper/back"] = f["g"]
        self.refused(tmp_path / "a.h5", "g/deeper/back is a link to a group that it lies in")
        with h5py.File(tmp_path / "b.h5", "w") as f:
            f["root"] = h5py.SoftLink("/")
        self.refused(tmp_path / "b.h5", "root is a link to a group that it lies in")

    def test_deep_nesting(self, tmp_path: Path) -> None:
        make(tmp_path / "fine.h5", **{"__".join("g" * 30): 1})
        opened(tmp_path / "fine.h5")
        self.refused(make(tmp_path / "a.h5", **{"__".join("g" * 60): 1}), "nested more than 32 deep")

    def test_many_links_to_the_same_groups(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            inner = f.create_group("0")
            for depth in range(1, 30):
                outer = f.create_group(str(depth))
                outer["a"] = outer["b"] = inner
                inner = outer
        monkeypatch.setattr(hdf5, "MAX_OBJECTS", 2000)
        self.refused(tmp_path / "a.h5", "more than 2,000 objects")

    @pytest.mark.parametrize("name", [b"..", b"../x", b"a/../../x", b"tab\there", b"null\x7f", b"\xff\xfe"])
    def test_hostile_names(self, tmp_path: Path, name: bytes) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            create = h5py.h5p.create(h5py.h5p.LINK_CREATE)
            create.set_create_intermediate_group(True)
            space = h5py.h5s.create_simple((3,))
            h5py.h5d.create(f.id, name, h5py.h5t.NATIVE_INT32, space, lcpl=create)
        self.refused(tmp_path / "a.h5", "is no name for a field")

    def test_unknown_filter(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((3,))
            plist.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, ())
            h5py.h5d.create(f.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((3,)), plist)
        with pytest.raises(MissingPackage, match="filter 32999"):
            opened(tmp_path / "a.h5")


def test_types_that_numpy_cannot_hold(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        wide = h5py.h5t.IEEE_F64LE.copy()
        wide.set_size(32)
        wide.set_precision(256)
        wide.set_fields(255, 200, 55, 0, 200)
        h5py.h5d.create(f.id, b"x", wide, h5py.h5s.create_simple((3,)))
    with pytest.raises(CorruptArchive, match="x is of a type that NumPy cannot hold"):
        opened(tmp_path / "a.h5")


def test_walk_gives_every_name_once_aliases_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["a/x"] = np.arange(3)
        f["b"] = f["a/x"]
        f["c"] = f["a"]
        f["d"] = h5py.SoftLink("/a/x")
        f["kind"] = np.dtype("f4")
    with open_file(tmp_path / "a.h5") as f:
        assert sorted(name for name, _ in walk(f)) == ["a", "a/x", "b", "c", "c/x", "d"]
        assert list(datasets(f)) == ["a/x", "b", "c/x", "d"]


def test_unchecked_open_is_quick_and_still_safe_where_read(tmp_path: Path) -> None:
    other = make(tmp_path / "other.h5", secret=np.arange(3))
    path = make(tmp_path / "a.h5", x=np.arange(3))
    with h5py.File(path, "a") as f:
        f["link"] = h5py.ExternalLink(other, "secret")
    with open_file(path, check=False) as f:
        assert f["x"][:].tolist() == [0, 1, 2]
        with pytest.raises(UnsafeArchive):
            datasets(f)


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("action", np.zeros((3, 2), ">f4"), Field("action", "float32", (2,), "root")),
        ("observation", np.zeros(3, bool), Field("observation", "bool", (), "both")),
        ("observation/a", np.zeros((3, 1), "u2"), Field("observation/a", "uint16", (1,), "both")),
        ("next/reward", np.zeros((3, 1)), Field("next/reward", "float64", (), "next")),
        ("info/say", ["a", "b", "c"], Field("info/say", "str", (), "root", "text")),
        ("info/say", np.array([[b"a"], [b"b"]]), Field("info/say", "str", (), "root", "text")),
        ("observational", np.zeros(3, "f2"), Field("observational", "float16", (), "root")),
    ],
)
def test_row_field(tmp_path: Path, name: str, value: Any, field: Field) -> None:
    with h5py.File(make(tmp_path / "a.h5", x=value)) as f:
        assert row_field(name, f["x"], scalar=name == "next/reward") == field


def test_row_field_of_what_no_field_holds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["texts"] = [["a", "b"]]
        f["pair"] = np.zeros(3, [("a", "i4")])
        f["ref"] = np.array([f.ref], h5py.ref_dtype)
        f["long"] = np.zeros(3, "V20")
    with h5py.File(tmp_path / "a.h5") as f:
        for key in f:
            with pytest.raises(UnknownLayout, match=f"/{key} holds"):
                row_field("x", f[key])


def test_plain(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.h5",
        text="ä",
        bytes=np.bytes_(b"SAC"),
        texts=["a", "b"],
        number=3,
        empty=h5py.Empty("f4"),
        pair=np.array((1, 2.5), [("a", "i4"), ("b", "f8")]),
    )
    with h5py.File(path) as f:
        assert plain(f["text"]) == "ä"
        assert plain(f["bytes"]) == "SAC"
        assert plain(f["texts"]) == "a\nb"
        assert plain(f["number"]) == np.array(3)
        assert plain(f["empty"]) is None
        assert plain(f["pair"]) == "(1, 2.5)"


def test_attributes(tmp_path: Path) -> None:
    path = make(tmp_path / "a.h5", x=1)
    with h5py.File(path, "a") as f:
        f.attrs["fps"] = 50
        f.attrs["robot"] = "franka"
        f.attrs["raw"] = np.bytes_(b"abc")
        f.attrs["joints"] = ["a", "b"]
        f.attrs["gains"] = np.arange(3.0)
        f.attrs["none"] = h5py.Empty("f4")
        f.attrs["self"] = f.ref
    with open_file(path) as f:
        found = dict(attributes(f))
    assert found["attributes/fps"] == 50
    assert found["attributes/robot"] == "franka"
    assert found["attributes/raw"] == "abc"
    assert found["attributes/joints"] == "a\nb"
    assert np.array_equal(found["attributes/gains"], [0, 1, 2])
    assert isinstance(found["attributes/self"], str)
    assert "attributes/none" not in found


def test_nan_count() -> None:
    assert nan_count(np.array([1.0, np.nan, np.inf, np.nan])) == 2
    assert nan_count(np.array([np.inf, -np.inf])) == 0
    assert nan_count(np.full(100, 60000, "f2")) == 0
    assert nan_count(np.arange(3)) == 0
    assert nan_count(np.array(["a", None], object)) == 0


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1000,), (64,)),
    ((1000, 5), (100, 2)),
    ((1000, 5), (1000, 5)),
    ((333, 4, 3), (10, 3, 3)),
    ((50, 0), (7, 1)),
]


@pytest.fixture
def every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.archives.hdf5_rows.MIN_CHUNK_BYTES", 0)


@pytest.mark.usefixtures("every_chunk")
class TestRows:
    @pytest.mark.parametrize("dtype", ["bool", "u1", "i2", "f2", "<f4", ">f4", "<f8", ">i8"])
    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize(("shape", "chunks"), SHAPES)
    def test_equal_h5py(
        self, tmp_path: Path, dtype: str, shuffle: bool, shape: tuple[int, ...], chunks: tuple[int, ...]
    ) -> None:
        values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 99, shape).astype(dtype)
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            kinds: dict[str, Any] = {} if 0 in shape else {"compression": "gzip", "shuffle": shuffle, "chunks": chunks}
            f.create_dataset("x", data=values, **kinds)
        self.compare(path, shape[0])

    @pytest.mark.parametrize(
        "kinds",
        [
            {"compression": "lzf"},
            {"compression": "gzip", "fletcher32": True},
            {"compression": "gzip", "scaleoffset": 0},
            {"chunks": (10, 2)},
            {},
        ],
    )
    def test_other_storage_goes_through_h5py(self, tmp_path: Path, kinds: dict[str, Any]) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            f.create_dataset("x", data=np.arange(600).reshape(300, 2), **kinds)
        self.compare(path, 300)

    def test_chunks_that_were_never_written_hold_the_fill_value(self, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            d = f.create_dataset("x", (100, 4), "f4", chunks=(10, 2), compression="gzip", fillvalue=7)
            d[20:30, :2] = 1
            d[95:] = 2
        self.compare(path, 100)

    def test_chunks_stored_as_they_are(self, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            d = f.create_dataset("x", (20,), "f8", chunks=(10,), compression="gzip", shuffle=True)
            d[:] = np.arange(20)
            d.id.write_direct_chunk((10,), np.arange(100.0, 110).tobytes(), filter_mask=0b11)
        with h5py.File(path) as f, RowReader(path, {"x": f["x"]}) as rows:
            assert rows.read(0, 20)["x"].tolist() == [*range(10), *range(100, 110)]

    def test_enumerations_and_texts(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.h5", say=["a", "b"] * 15)
        with h5py.File(path, "a") as f:
            phase = h5py.enum_dtype({"reach": 0, "grasp": 1}, basetype="i2")
            f.create_dataset("x", data=np.arange(30) % 2, dtype=phase, compression="gzip", chunks=(10,))
        with h5py.File(path) as f, RowReader(path, {"x": f["x"], "say": f["say"]}) as rows:
            seen = rows.read(3, 6)
            assert seen["x"].tolist() == [1, 0, 1]
            assert seen["say"].tolist() == ["b", "a", "b"]

    def test_texts_that_are_none(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.h5", x=np.array([b"\xff\xfe", b"b"]))
        with (
            h5py.File(path) as f,
            RowReader(path, {"x": f["x"]}) as rows,
            pytest.raises(CorruptArchive, match="x cannot be read"),
        ):
            rows.read(0, 2)

    @pytest.mark.parametrize("damage", ["inside", "cut"])
    def test_damaged_chunks(self, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            f.create_dataset("x", data=np.random.default_rng(0).normal(size=5000), compression="gzip", chunks=(1000,))
            info = f["x"].id.get_chunk_info(2)
        data = bytearray(path.read_bytes())
        start = info.byte_offset + (info.size // 2 if damage == "inside" else 0)
        data[start : start + 60] = bytes(60)
        path.write_bytes(data)
        with h5py.File(path) as f, RowReader(path, {"x": f["x"]}) as rows:
            assert len(rows.read(0, 2000)["x"]) == 2000
            with pytest.raises(CorruptArchive, match=r"a\.h5: /x cannot be read"):
                rows.read(2000, 3000)

    def test_every_chunk_is_inflated_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            f.create_dataset("x", data=np.arange(4000.0).reshape(1000, 4), compression="gzip", chunks=(128, 2))
        fetched: list[tuple[int, ...]] = []
        with h5py.File(path) as f, RowReader(path, {"x": f["x"]}) as rows:
            stored = rows._bands["x"]._stored
            monkeypatch.setattr(rows._bands["x"], "_stored", lambda at, c: (fetched.append((at, *c)), stored(at, c))[1])
            for start in range(0, 1000, 50):
                rows.read(start, min(start + 51, 1000))
            assert not rows._bands["x"]._bands.keys() - {6, 7}
        assert len(fetched) == len(set(fetched)) == 16

    def test_views_stay_as_they_were(self, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            f.create_dataset("x", data=np.arange(1000), compression="gzip", chunks=(100,))
        with h5py.File(path) as f, RowReader(path, {"x": f["x"]}) as rows:
            seen = [rows.read(a, a + 70)["x"] for a in range(0, 910, 70)]
        assert np.array_equal(np.concatenate(seen), np.arange(910))

    def compare(self, path: Path, n: int) -> None:
        for step in (1, 7, 64, 100, n):
            with h5py.File(path) as f, RowReader(path, {"x": f["x"]}) as rows:
                for start in range(0, n, step):
                    seen = rows.read(start, min(start + step, n))["x"]
                    want = f["x"][start : start + step]
                    assert seen.dtype.newbyteorder("=") == want.dtype.newbyteorder("=")
                    assert np.array_equal(seen, want)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 60),
    chunk=st.tuples(st.integers(1, 20), st.integers(1, 4)),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
@pytest.mark.usefixtures("every_chunk")
def test_any_blocks_of_any_chunks(tmp_path: Path, rows: int, chunk: tuple[int, int], cuts: list[int]) -> None:
    values = np.arange(rows * 3).reshape(rows, 3)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        f.create_dataset("x", data=values, compression="gzip", chunks=(min(chunk[0], rows), min(chunk[1], 3)))
    bounds = sorted({0, rows, *(c for c in cuts if c < rows)})
    with h5py.File(path) as f, RowReader(path, {"x": f["x"]}) as reader:
        for start, stop in pairwise(bounds):
            more = min(stop + 1, rows)
            assert np.array_equal(reader.read(start, more)["x"], values[start:more])
