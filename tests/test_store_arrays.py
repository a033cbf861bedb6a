from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.errors import DamagedDataset
from rlds_cli.store import arrays

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"]
DTYPES += ["float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("size", [0, 1, 39, 41, 100])
def test_a_file_of_another_size_is_damage(tmp_path: Path, size: int) -> None:
    arrays.write(tmp_path / "a", np.arange(3, dtype="int64"))
    os.truncate(tmp_path / "a/c/0", size)
    with pytest.raises(DamagedDataset, match=rf"has {size} bytes; 40 expected"):
        arrays.read(tmp_path / "a")


def test_a_missing_file_is_damage_not_zeros(tmp_path: Path) -> None:
    arrays.write(tmp_path / "a", np.arange(3))
    (tmp_path / "a/c/0").unlink()
    with pytest.raises(DamagedDataset, match="is missing"):
        arrays.read(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"shape": 3}', '{"shape": [3], "data_type": "no"}'])
def test_a_document_that_says_nothing_is_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "zarr.json").write_text(text)
    with pytest.raises(DamagedDataset, match=r"zarr\.json cannot be read"):
        arrays.read(tmp_path)
    assert not arrays.is_array(tmp_path)


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
