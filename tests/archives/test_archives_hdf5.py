from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds_cli.archives.formats import hdf5
from rlds_cli.archives.formats.hdf5 import attributes, datasets, is_hdf5, open_file, plain, walk
from rlds_cli.archives.formats.hdf5_rows import RowReader
from rlds_cli.archives.names import row_field
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
        self.refused(tmp_path / "a.h5", "x is a broken link")

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
        self.refused(tmp_path / "a.h5", "further names for 30 objects")

    @pytest.mark.parametrize("name", [b"..", b"../x", b"a/../../x", b"tab\there", b"null\x7f", b"\xff\xfe"])
    def test_hostile_names(self, tmp_path: Path, name: bytes) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as f:
            create = h5py.h5p.create(h5py.h5p.LINK_CREATE)
            create.set_create_intermediate_group(True)
            space = h5py.h5s.create_simple((3,))
            h5py.h5d.create(f.id, name, h5py.h5t.NATIVE_INT32, space, lcpl=create)
        self.refused(tmp_path / "a.h5", "is not a valid field name")

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


def test_walk_gives_names_in_the_order_that_the_file_keeps(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", track_order=True) as f:
        f["b"], f["a"] = 1, 2
        f.create_group("named", track_order=False).update({"d": 3, "c": 4})
        f["kind"] = np.dtype("i2")  # a type by itself is neither a dataset nor a group
    with open_file(tmp_path / "a.h5") as f:
        assert [name for name, _ in walk(f)] == ["b", "a", "named", "named/c", "named/d"]
        assert isinstance(dict(walk(f))["named"], h5py.Group)


def test_names_that_no_file_should_have(tmp_path: Path) -> None:
    for raw, said in (
        (b"a\xff", r"b'a\\xff' is not a valid field name"),
        (b"a\n", r"'a\\n' is not a valid field name"),
    ):
        with h5py.File(tmp_path / "a.h5", "w") as f:
            f[raw] = 1
        with pytest.raises(UnsafeArchive, match=said), open_file(tmp_path / "a.h5"):
            pass


def test_unchecked_open_is_quick_and_still_safe_where_read(tmp_path: Path) -> None:
    other = make(tmp_path / "other.h5", secret=np.arange(3))
    path = make(tmp_path / "a.h5", x=np.arange(3))
    with h5py.File(path, "a") as f:
        f["link"] = h5py.ExternalLink(other, "secret")
    with open_file(path, check=False) as f:
        assert f["x"][:].tolist() == [0, 1, 2]
        with pytest.raises(UnsafeArchive):
            datasets(f)


@pytest.mark.thorough
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
