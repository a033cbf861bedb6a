from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.base.files import arrays
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import layouts

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64"]


def some(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return (rng.random(shape) * 100 - 20 if dtype[0] != "u" else rng.random(shape) * 100).astype(dtype)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (5,), (7, 3), (3, 2, 4), (0,), (0, 3), (4, 0)])
def test_zarr_reads_what_we_wrote(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    values = some(shape, dtype)
    arrays.write(tmp_path / "a", values)
    array = zarr.open_array(str(tmp_path / "a"), mode="r")
    assert array.dtype == values.dtype
    assert np.array_equal(np.asarray(array[...]), values)
    assert np.array_equal(layouts.read(tmp_path / "a"), values)


def test_tensorstore_reads_several_inner_chunks(tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    values = some((300_000, 3), "float32")  # 3.6 MB: four inner chunks
    arrays.write(tmp_path / "a", values)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    read = tensorstore.open(spec, read=True).result()
    assert np.array_equal(read.read().result(), values)
    assert np.array_equal(np.asarray(zarr.open_array(str(tmp_path / "a"), mode="r")[...]), values)


def test_the_file_begins_with_the_raw_rows(tmp_path: Path) -> None:
    values = some((10, 2), "float64")
    arrays.write(tmp_path / "a", values)
    raw = (tmp_path / "a/c/0/0").read_bytes()
    assert raw[:160] == values.tobytes()
    # One inner chunk that holds all ten rows: its offset and size follow at once.
    assert np.frombuffer(raw[160:], "<u8").tolist() == [0, 160]


def test_the_tail_is_padding_and_index(tmp_path: Path) -> None:
    values = some((40_000, 7), "float64")  # 56 B a row, 18,724 rows in 1 MiB
    arrays.write(tmp_path / "a", values)
    raw = (tmp_path / "a/c/0/0").read_bytes()
    inner = 18_724 * 56
    assert len(raw) == 3 * inner + 3 * 16 == arrays.file_size(values.shape, "float64")
    assert raw[values.nbytes :] == arrays.tail(values.shape, "float64")
    assert not any(raw[values.nbytes : 3 * inner])
    assert np.frombuffer(raw[3 * inner :], "<u8").reshape(3, 2).tolist() == [[i * inner, inner] for i in range(3)]


def test_big_endian_values_are_stored_little_endian(tmp_path: Path) -> None:
    arrays.write(tmp_path / "a", np.array([1, 2, 3], ">i4"))
    assert (tmp_path / "a/c/0").read_bytes()[:12] == np.array([1, 2, 3], "<i4").tobytes()
    assert layouts.read(tmp_path / "a").tolist() == [1, 2, 3]


def test_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    values = some((6, 4), "float32")[::2, ::-1]
    arrays.write(tmp_path / "a", values)
    assert np.array_equal(layouts.read(tmp_path / "a"), values)


def test_maps_are_read_only(tmp_path: Path) -> None:
    for name, values in (("a", some((5,), "float32")), ("b", some((0, 3), "float32"))):
        arrays.write(tmp_path / name, values)
        read = layouts.read(tmp_path / name)
        with pytest.raises(ValueError, match="read-only"):
            read[...] = 1


def test_nothing_has_no_file(tmp_path: Path) -> None:
    arrays.write(tmp_path / "a", some((0, 3), "float32"))
    assert [p.name for p in (tmp_path / "a").rglob("*")] == ["zarr.json"]
    assert layouts.read(tmp_path / "a").shape == (0, 3)


def test_rows_written_out_of_order_become_an_array(tmp_path: Path) -> None:
    values = some((1000, 3), "int16")
    file = arrays.data_file(tmp_path / "a", 2)
    file.parent.mkdir(parents=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT)
    for a in (600, 0, 300):
        arrays.write_at(fd, a * 6, values[a : a + 300])
    arrays.write_at(fd, 900 * 6, values[900:])
    arrays.write_at(fd, 1000 * 6, values)  # an interrupted run wrote too much
    os.close(fd)
    arrays.finish(tmp_path / "a", values.shape, "int16")
    assert np.array_equal(np.asarray(zarr.open_array(str(tmp_path / "a"), mode="r")[...]), values)


@pytest.mark.parametrize("size", [0, 1, 39, 41, 100])
def test_a_file_of_another_size_is_damage(tmp_path: Path, size: int) -> None:
    arrays.write(tmp_path / "a", np.arange(3, dtype="int64"))
    os.truncate(tmp_path / "a/c/0", size)
    with pytest.raises(DamagedDataset, match=rf"has {size} bytes; 40 expected"):
        layouts.read(tmp_path / "a")


def test_a_missing_file_is_damage_not_zeros(tmp_path: Path) -> None:
    arrays.write(tmp_path / "a", np.arange(3))
    (tmp_path / "a/c/0").unlink()
    with pytest.raises(DamagedDataset, match="is missing"):
        layouts.read(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"shape": 3}', '{"shape": [3], "data_type": "no"}'])
def test_a_document_that_says_nothing_is_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "zarr.json").write_text(text)
    with pytest.raises(DamagedDataset, match=r"zarr\.json cannot be read"):
        layouts.read(tmp_path)
    assert not layouts.is_array(tmp_path)


def test_groups_and_arrays_are_told_apart(tmp_path: Path) -> None:
    arrays.write_group(tmp_path / "g", {"a": 1})
    arrays.write(tmp_path / "g/x", np.arange(3))
    assert not layouts.is_array(tmp_path / "g")
    assert layouts.is_array(tmp_path / "g/x")
    layouts.check_group(tmp_path / "g")
    with pytest.raises(DamagedDataset, match="node of type 'array'"):
        layouts.check_group(tmp_path / "g/x")
    group = zarr.open_group(str(tmp_path / "g"), mode="r")
    assert dict(group.attrs) == {"a": 1}
    assert list(group.array_keys()) == ["x"]


@pytest.mark.thorough
@pytest.mark.parametrize("texts", [[], [""], ["a", "", "ü"], ["x\0y", "日本", "\udcff"], ["a\n"] * 1000])
def test_strings(tmp_path: Path, texts: list[str]) -> None:
    arrays.write_strings(tmp_path / "s", texts)
    assert layouts.read_strings(tmp_path / "s") == texts
    offsets = np.asarray(zarr.open_array(str(tmp_path / "s/offsets"), mode="r")[...])
    assert offsets.tolist() == [0, *np.cumsum([len(t.encode("utf-8", "surrogateescape")) for t in texts]).tolist()]


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.integers(1, 3_000_000), st.integers(1, 64), st.sampled_from(["uint8", "float32", "float64"]))
def test_sizes_and_documents_agree(rows: int, width: int, dtype: str) -> None:
    shape = (rows, width)
    document = arrays.document(shape, dtype)
    json.dumps(document)
    (shard, _), (inner, _) = (
        document["chunk_grid"]["configuration"]["chunk_shape"],
        document["codecs"][0]["configuration"]["chunk_shape"],
    )
    item = width * np.dtype(dtype).itemsize
    assert shard % inner == 0
    assert shard >= rows
    assert shard - rows < inner
    assert inner * item <= max(1 << 20, item)
    assert arrays.file_size(shape, dtype) == shard * item + shard // inner * 16
