from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.archives.formats.hdf5 import Layout
from rlds_cli.archives.formats.hdf5_rows import PlainRows, RowReader, nan_count
from rlds_cli.archives.formats.tables import open_flat
from rlds_cli.errors import CorruptArchive, UnknownLayout


def make(path: Path, **columns: Any) -> Path:
    with h5py.File(path, "w") as f:
        for key, value in columns.items():
            f[key.replace("__", "/")] = value
    return path


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((160,), (16,)),
    ((160, 5), (24, 2)),
    ((160, 5), (160, 5)),
    ((53, 4, 3), (5, 3, 3)),
    ((50, 0), (7, 1)),
]


@pytest.fixture
def every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.archives.formats.hdf5_rows.MIN_CHUNK_BYTES", 0)


@pytest.mark.usefixtures("every_chunk")
class TestRows:
    @pytest.mark.sampled(24)
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
            pytest.raises(UnknownLayout, match="x holds texts that are not UTF-8"),
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
        for step in (1, 7, 16, 100, n):
            with h5py.File(path) as f, RowReader(path, {"x": f["x"]}) as rows:
                for start in range(0, n, step):
                    seen = rows.read(start, min(start + step, n))["x"]
                    want = f["x"][start : start + step]
                    assert seen.dtype.newbyteorder("=") == want.dtype.newbyteorder("=")
                    assert np.array_equal(seen, want)


@pytest.mark.thorough
@settings(max_examples=40)
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


class TestPlainRows:
    @pytest.mark.parametrize("dtype", ["bool", "u1", "i2", "f2", "<f4", ">f4", "<f8", ">i8", "c8", "enumeration"])
    @pytest.mark.parametrize("shape", [(30,), (30, 3), (30, 2, 3), (30, 0), (0, 3)])
    @pytest.mark.parametrize("chunks", [None, 7])
    def test_equal_h5py(self, tmp_path: Path, dtype: str, shape: tuple[int, ...], chunks: int | None) -> None:
        kind = h5py.enum_dtype({"reach": 0, "grasp": 1}, basetype="i2") if dtype == "enumeration" else np.dtype(dtype)
        values = np.random.default_rng(0).integers(0, 2, shape).astype(kind)
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            pieces = None if chunks is None or 0 in shape else (chunks, *shape[1:])
            f.create_dataset("a/x", data=values, dtype=kind, chunks=pieces)
        with h5py.File(path) as f, open_flat(path) as table:
            for start, stop in ((0, 30), (0, 31), (3, 9), (20, 40), (30, 31), (5, 5)):
                with table.rows(["a/x"]) as rows:
                    seen = rows.read(start, stop)["a/x"]
                want = f["a/x"][start:stop]
                assert seen.dtype == want.dtype
                assert np.array_equal(seen, want)

    def test_a_dataset_in_the_header_of_its_object(self, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as f:
            compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            compact.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((5,))
            h5py.h5d.create(f.id, b"x", h5py.h5t.NATIVE_INT32, space, compact).write(
                h5py.h5s.ALL, h5py.h5s.ALL, np.arange(5, dtype="i4")
            )
        with open_flat(path) as table, table.rows(["x"]) as rows:
            assert rows.read(1, 9)["x"].tolist() == [1, 2, 3, 4]

    def test_numbers_beside_packed_ones_and_texts(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.h5", x=np.arange(6), say=["a", "b", "c"] * 2)
        with h5py.File(path, "a") as f:
            f.create_dataset("packed", data=np.arange(6), compression="gzip")
        with open_flat(path) as table, table.rows(["x", "packed", "say"]) as rows:
            seen = rows.read(2, 4)
        assert {k: v.tolist() for k, v in seen.items()} == {"x": [2, 3], "packed": [2, 3], "say": ["c", "a"]}

    @pytest.mark.parametrize("rows", [3, 5])
    def test_a_dataset_of_another_length_than_it_was_checked_with(self, tmp_path: Path, rows: int) -> None:
        path = make(tmp_path / "a.h5", x=np.arange(4.0))
        layouts = {"x": Layout((rows,), np.dtype(float), is_plain=True)}
        with (
            h5py.File(path) as f,
            PlainRows(path, f, layouts) as reader,
            pytest.raises(CorruptArchive, match=r"a\.h5: /x cannot be read"),
        ):
            reader.read(0, rows)


def test_nan_count() -> None:
    assert nan_count(np.array([1.0, np.nan, np.inf, np.nan])) == 2
    assert nan_count(np.array([np.inf, -np.inf])) == 0
    assert nan_count(np.full(100, 60000, "f2")) == 0
    assert nan_count(np.arange(3)) == 0
    assert nan_count(np.array(["a", None], object)) == 0
