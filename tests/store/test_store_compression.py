from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from rlds_cli.base.files import arrays
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import compression, layouts
from rlds_cli.store.compression import read_range
from rlds_cli.ted import Field


def some(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.random.default_rng(0).random(shape) * 100).astype(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (1000,), (1000, 3), (10, 4, 5), (0,), (0, 3), (5, 0)])
def test_there_and_back(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    values, f = some(shape, dtype), Field("x", dtype, shape[1:])
    arrays.write(tmp_path / "plain", values)
    compression.encode(tmp_path / "plain", tmp_path / "packed", f, compressed=True)
    assert layouts.layout(tmp_path / "packed").compressed
    assert not layouts.layout(tmp_path / "plain").compressed
    decoded = compression.open_column(tmp_path / "packed")
    assert decoded.dtype == values.dtype
    assert np.array_equal(decoded, values)
    assert not decoded.flags.writeable
    compression.encode(tmp_path / "packed", tmp_path / "again", f, compressed=False)
    assert np.array_equal(layouts.read(tmp_path / "again"), values)
    files = [
        sorted(p.relative_to(d).as_posix() for p in d.rglob("*") if p.is_file())
        for d in (tmp_path / "plain", tmp_path / "again")
    ]
    assert files[0] == files[1]


@pytest.mark.slow
def test_several_shards_and_any_range_of_them(tmp_path: Path) -> None:
    values = np.arange(3 * (9 << 20), dtype=np.float64).reshape(-1, 3)  # 216 MB raw: shards are 64 MiB
    arrays.write(tmp_path / "a", values)
    compression.compress(tmp_path / "a", Field("a", "float64", (3,)))
    assert len(list((tmp_path / "a/c").iterdir())) == 4
    for a, b in ((0, 5), (2_796_200, 2_796_205), (len(values) - 3, len(values)), (7, 7)):
        assert np.array_equal(read_range(tmp_path / "a", a, b), values[a:b])


def test_zeros_are_written_too(tmp_path: Path) -> None:
    arrays.write(tmp_path / "a", np.zeros((1000, 3)))
    compression.compress(tmp_path / "a", Field("a", "float64", (3,)))
    shards = [p for p in (tmp_path / "a/c").rglob("*") if p.is_file()]
    assert len(shards) == 1
    shards[0].unlink()
    for read in (lambda: compression.open_column(tmp_path / "a"), lambda: read_range(tmp_path / "a", 0, 5)):
        with pytest.raises(DamagedDataset, match="is missing"):
            read()


def test_frames_are_two_arrays(tmp_path: Path) -> None:
    f = Field("pixels", "uint8", (8, 8, 3), "both", "frames", "jpeg")
    arrays.write(tmp_path / "p/bytes", some((100,), "uint8"))
    arrays.write(tmp_path / "p/offsets", np.array([[0, 40], [40, 100]]))
    arrays.write_group(tmp_path / "p")
    compression.encode(tmp_path / "p", tmp_path / "q", f, compressed=True)
    group = zarr.open_group(str(tmp_path / "q"), mode="r")
    assert np.asarray(group["offsets"][...]).tolist() == [[0, 40], [40, 100]]
    assert np.array_equal(np.asarray(group["bytes"][...]), layouts.read(tmp_path / "p/bytes"))


def test_flipped_bits_are_damage(tmp_path: Path) -> None:
    arrays.write(tmp_path / "a", some((5000, 3), "float64"))
    compression.compress(tmp_path / "a", Field("a", "float64", (3,)))
    shard = next(p for p in (tmp_path / "a/c").rglob("*") if p.is_file())
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(DamagedDataset):
        compression.open_column(tmp_path / "a")


def test_rows_of_a_plain_array_are_a_map(tmp_path: Path) -> None:
    values = some((50, 2), "float32")
    arrays.write(tmp_path / "a", values)
    read = read_range(tmp_path / "a", 10, 20)
    assert np.array_equal(read, values[10:20])
    assert not read.flags.owndata
