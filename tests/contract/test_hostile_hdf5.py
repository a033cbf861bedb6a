"""HDF5 files whose few bytes stand for more than memory holds, or for files of somebody else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from rlds_cli.archives import Archive, Replan, reader
from rlds_cli.archives.formats import hdf5, hdf5_rows
from rlds_cli.base.files import child
from rlds_cli.errors import CorruptArchive, RldsError, UnsafeArchive
from rlds_cli.make.importing import import_files

MIB = 1 << 20
SHARED = 2 * MIB  # of one text
ROWS = 20_000
_LIMITED = "reading it takes more than 512.0 MiB of memory|becomes more than"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_READ_MEMORY", "512MiB")


def flat(path: Path, rows: int = ROWS) -> h5py.File:
    f = h5py.File(path, "w")
    f["observations"], f["actions"] = np.zeros((rows, 2), "f4"), np.zeros((rows, 1), "f4")
    f["rewards"], f["terminals"] = np.zeros(rows, "f4"), np.arange(rows) % 10 == 9
    return f


def share(path: Path, key: str) -> None:
    """Let all values of a contiguous dataset name the place of the first one."""
    with h5py.File(path) as f:
        d = f[key]
        offset, rows = d.id.get_offset(), len(d)
    content = bytearray(path.read_bytes())
    content[offset : offset + 16 * rows] = bytes(content[offset : offset + 16]) * rows
    path.write_bytes(content)


def refused(path: Path, match: str, **options: object) -> None:
    with pytest.raises(UnsafeArchive, match=match):
        import_files(path, "local/hostile", **options)  # type: ignore[arg-type]
    assert not list(Path(os.environ["RLDS_HOME"]).glob("datasets/local/*"))


def test_values_that_share_one_place_of_the_heap(tmp_path: Path) -> None:
    with flat(tmp_path / "a.h5") as f:
        d = f.create_dataset("note", (ROWS,), h5py.string_dtype())
        d[0] = "x" * SHARED
    share(tmp_path / "a.h5", "note")
    assert (tmp_path / "a.h5").stat().st_size < 4 * MIB  # and 40 GB when it is read
    refused(tmp_path / "a.h5", _LIMITED)


def test_an_attribute_of_texts_that_share_one_place(tmp_path: Path) -> None:
    with flat(tmp_path / "a.h5") as f:
        f.attrs["names"] = ["x" * SHARED, *["y"] * 2000]
    content = (tmp_path / "a.h5").read_bytes()
    at = content.find((SHARED).to_bytes(4, "little"))
    while content[at + 16 : at + 20] != b"\1\0\0\0":
        at = content.find((SHARED).to_bytes(4, "little"), at + 1)
        assert at >= 0
    (tmp_path / "a.h5").write_bytes(content[:at] + content[at : at + 16] * 2001 + content[at + 16 * 2001 :])
    refused(tmp_path / "a.h5", _LIMITED)


def test_honest_texts_are_read(tmp_path: Path) -> None:
    texts = [f"text {k}" for k in range(50)]
    with flat(tmp_path / "a.h5", 50) as f:
        f["info/plain"] = texts
        f.create_dataset("info/packed", data=texts, dtype=h5py.string_dtype(), chunks=(7,), compression="gzip")
        f.create_dataset("info/lzf", data=texts, dtype=h5py.string_dtype(), chunks=(7,), compression="lzf")
        f.attrs["names"] = ["a", "b"]
    ds = import_files(tmp_path / "a.h5", "local/fine")
    for name in ("plain", "packed", "lzf"):
        assert list(ds.episode(0)[f"info/{name}"])[:10] == texts[:10]


@pytest.mark.skipif(not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP), reason="HDF5 without szip")
def test_szip_leaves_alone_what_it_does_not_make_smaller(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(100, 4)).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("x", data=values, chunks=(10, 4), compression="szip")
        assert f["x"].id.get_chunk_info(0).filter_mask == 1
    with hdf5.open_file(tmp_path / "a.h5") as f:
        assert np.array_equal(f["x"][()], values)


def test_large_chunks_of_incompressible_values_are_fine(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(200_000)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("x", data=values, chunks=(200_000,), compression="gzip", shuffle=True, fletcher32=True)
    for _ in range(2):
        with hdf5.open_file(tmp_path / "a.h5") as f:
            assert np.array_equal(f["x"][()], values)


def test_a_row_of_a_gigabyte(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as f:
        d = f.create_dataset("x", (2, 1 << 27), "f8", chunks=(1, 1 << 20), compression="gzip")
        d[0, : 1 << 22] = 0
    with (
        pytest.raises(UnsafeArchive, match="of which a row has 1,073,741,824 bytes"),
        hdf5.open_file(tmp_path / "a.h5"),
    ):
        pass


def test_high_and_narrow_chunks_are_not_unpacked_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_rows, "MAX_BAND", 1 << 20)
    monkeypatch.setattr(hdf5_rows, "MAX_REPEATED_RATIO", 1 << 20)
    values = np.zeros((1 << 15, 8))
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("x", data=values, chunks=(1 << 15, 1), compression="gzip")
    with h5py.File(tmp_path / "a.h5") as f, hdf5_rows.RowReader(tmp_path / "a.h5", {"x": f["x"]}) as rows:
        assert rows._bands == {}
        assert np.array_equal(rows.read(5, 9)["x"], values[5:9])


def test_a_small_file_of_high_and_narrow_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_rows, "MAX_BAND", 1 << 20)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("observations", data=np.zeros((1 << 15, 8)), chunks=(1 << 15, 1), compression="gzip")
        f["actions"], f["rewards"] = np.zeros((1 << 15, 1), "f4"), np.zeros(1 << 15, "f4")
        f["terminals"] = np.arange(1 << 15) % 128 == 127
    with child.here():
        refused(tmp_path / "a.h5", "a row cannot be read without unpacking 2,097,152 bytes")


def directed(f: h5py.File, depth: int) -> None:
    """Groups with two names each for the next one: 2**depth paths."""
    group = f
    for _ in range(depth):
        group = group.create_group("a")
        group.parent["b"] = group
    group["x"] = np.zeros(3)


def names_of_one(f: h5py.File, _: int) -> None:
    f["x"] = np.zeros(3)
    for k in range(2 * hdf5.MAX_ALIASES):
        f[f"y{k}"] = f["x"]


def soft_names(f: h5py.File, _: int) -> None:
    f["x"] = np.zeros(3)
    for k in range(2 * hdf5.MAX_ALIASES):
        f[f"y{k}"] = h5py.SoftLink("/x")


@pytest.mark.parametrize("make", [directed, names_of_one, soft_names])
def test_many_names_for_the_same_objects(
    tmp_path: Path, make: Callable[[h5py.File, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "MAX_ALIASES", 100)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        make(f, 18)
    with pytest.raises(UnsafeArchive, match=r"\d+ further names for"), hdf5.open_file(tmp_path / "a.h5"):
        pass


def virtual(f: h5py.File, key: str, source: str, rows: int | None = 4) -> None:
    layout = h5py.VirtualLayout((4,), "f4", maxshape=(rows,))
    layout[...] = h5py.VirtualSource(".", source, (4,))
    f.create_virtual_dataset(key, layout)


def of_itself(f: h5py.File) -> None:
    virtual(f, "x", "x")


def of_each_other(f: h5py.File) -> None:
    virtual(f, "x", "y")
    virtual(f, "y", "x")


def of_many(f: h5py.File) -> None:
    layout = h5py.VirtualLayout((4, 4), "f4", maxshape=(None, 4))
    layout[: h5py.h5s.UNLIMITED : 1, :] = h5py.VirtualSource(".", "%b", (1, 4))
    f.create_virtual_dataset("x", layout)


def of_a_link(f: h5py.File) -> None:
    f["y"] = h5py.ExternalLink("other.h5", "secret")
    virtual(f, "x", "y")


@pytest.mark.parametrize("make", [of_itself, of_each_other, of_many, of_a_link])
def test_virtual_datasets_of_no_real_one(tmp_path: Path, make: Callable[[h5py.File], None]) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["secret"] = np.ones(4, "f4")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        make(f)
    with pytest.raises(UnsafeArchive), hdf5.open_file(tmp_path / "a.h5"):
        pass


def test_a_virtual_dataset_without_end_opens_no_other_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """HDF5 asks the sources for their shapes when it is asked for that of the dataset; a pipe would never answer."""
    layout = h5py.VirtualLayout((4,), "f4", maxshape=(None,))
    source = h5py.VirtualSource(tmp_path / "pipe", "x", (4,), maxshape=(None,))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_virtual_dataset("x", layout)
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "a.h5", "reads other files")


def test_a_name_of_an_attribute_that_is_no_unicode(tmp_path: Path) -> None:
    with flat(tmp_path / "a.h5", 20) as f:
        h5py.h5a.create(f.id, b"\xff\xfe/../..", h5py.h5t.STD_I32LE, h5py.h5s.create(h5py.h5s.SCALAR))
    with child.here():
        ds = import_files(tmp_path / "a.h5", "local/fine")
    assert ds.num_episodes == 2


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(20, [("a", "f4"), ("b", "S3")]),
        np.zeros(20, "V7"),
        np.zeros(20, "c16"),
        np.zeros(20, h5py.enum_dtype({"A": 0, "B": 1}, "u1")),
        np.array(["x"] * 20, "S3"),
        np.zeros(20, h5py.ref_dtype),
    ],
    ids=["compound", "opaque", "complex", "enum", "text", "reference"],
)
@pytest.mark.parametrize("key", ["observations", "rewards", "terminals", "timeouts", "episode_id"])
def test_values_of_other_types(tmp_path: Path, value: np.ndarray, key: str) -> None:  # type: ignore[type-arg]
    with flat(tmp_path / "a.h5", 20) as f:
        f.pop(key, None)
        f[key] = value if value.dtype != h5py.ref_dtype else np.array([f.ref] * 20, h5py.ref_dtype)
    for format in ("d4rl", "plain"):
        try:
            plan = reader(format).plan(Archive(tmp_path, (tmp_path / "a.h5",)))
            for part in plan.parts:
                for _ in reader(format).read(plan, part):
                    pass
            dict(reader(format).metadata(plan))
        except (RldsError, Replan):
            continue


@pytest.mark.skipif(not hasattr(np, "float128"), reason="no such numbers on this machine")
def test_long_doubles_are_read(tmp_path: Path) -> None:
    with flat(tmp_path / "a.h5", 50) as f:
        f["info/long"] = np.arange(50, dtype=np.longdouble)
    with child.here():
        ds = import_files(tmp_path / "a.h5", "local/fine")
    assert ds.episode(0)["info/long"][:3, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("where", ["attribute", pytest.param("column", marks=pytest.mark.slow)])
def test_free_room_of_no_size_in_a_heap(tmp_path: Path, where: str) -> None:
    """The library goes round and round in it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        f["observations"], f["actions"], f["note"] = np.zeros((4, 2)), np.zeros((4, 1)), ["a"] * 4
        if where == "attribute":
            del f["note"]
            f.attrs["names"] = ["x", "yz"]
    content = bytearray(path.read_bytes())
    at = content.index(b"GCOL") + 16
    while content[at]:
        at += 24  # texts of at most 8 bytes
    content[at + 8 : at + 16] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(CorruptArchive, match="a heap of texts or lists is damaged"):
        import_files(path, "local/hostile")
