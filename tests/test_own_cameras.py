"""Cameras of a lab's own files: encoded images in every layout, kept as they are, with pixels equal to Pillow's."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from PIL import Image

import rlds_cli
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.importing import import_files
from rlds_cli.loader import Loader
from rlds_cli.maintenance.verification import trace

LENGTHS = [4, 6]
CAMERA = "observation/cam"


def image(seed: int, codec: str = "jpeg", size: tuple[int, int] = (24, 32)) -> bytes:
    """An encoded image that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, codec)
    return file.getvalue()


def pixels(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


def padded(images: list[bytes]) -> Any:
    rows = np.zeros((len(images), max(map(len, images)) + 7), np.uint8)
    for row, data in zip(rows, images, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return rows


def vlen(group: h5py.Group, name: str, images: list[bytes]) -> None:
    made = group.create_dataset(name, (len(images),), h5py.vlen_dtype(np.uint8))
    for row, data in enumerate(images):
        made[row] = np.frombuffer(data, np.uint8)


def columns(images: list[bytes]) -> dict[str, Any]:
    """The other columns of a table of two episodes."""
    n = len(images)
    return {
        "obs/q": np.arange(n, dtype=np.float32),
        "action": np.ones((n, 2), np.float32),
        "episode_id": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
    }


def hdf5_file(path: Path, images: list[bytes], put: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path / "rows.h5", "w") as f:
        for name, values in columns(images).items():
            f[name] = values
        put(f)
    return path / "rows.h5"


def hdf5_padded(path: Path, images: list[bytes]) -> Path:
    return hdf5_file(path, images, lambda f: f.create_dataset("obs/cam", data=padded(images), compression="gzip"))


def hdf5_vlen(path: Path, images: list[bytes]) -> Path:
    return hdf5_file(path, images, lambda f: vlen(f, "obs/cam", images))


def hdf5_texts(path: Path, images: list[bytes]) -> Path:
    return hdf5_file(path, images, lambda f: f.create_dataset("obs/cam", data=np.array(images)))


def hdf5_opaque(path: Path, images: list[bytes]) -> Path:
    rows = np.array(images).view(f"V{max(map(len, images))}")
    return hdf5_file(path, images, lambda f: f.create_dataset("obs/cam", data=rows))


def npz_padded(path: Path, images: list[bytes]) -> Path:
    np.savez(path / "rows.npz", **{"obs/cam": padded(images)}, **columns(images))
    return path / "rows.npz"


def npz_texts(path: Path, images: list[bytes]) -> Path:
    np.savez_compressed(path / "rows.npz", **{"obs/cam": np.array(images)}, **columns(images))
    return path / "rows.npz"


def table(images: list[bytes], cells: Any) -> pa.Table:
    others = {k: pa.array(v.tolist()) for k, v in columns(images).items()}
    return pa.table({"obs/cam": cells, **others})


def parquet_binary(path: Path, images: list[bytes]) -> Path:
    pyarrow.parquet.write_table(table(images, pa.array(images, pa.binary())), path / "rows.parquet")
    return path / "rows.parquet"


def parquet_struct(path: Path, images: list[bytes]) -> Path:
    cells = pa.array([{"bytes": i, "path": None} for i in images], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pyarrow.parquet.write_table(table(images, cells), path / "rows.parquet", row_group_size=3)
    return path / "rows.parquet"


def arrow_binary(path: Path, images: list[bytes]) -> Path:
    cells = pa.array(images, pa.large_binary())
    pyarrow.feather.write_feather(table(images, cells), path / "rows.feather", compression="uncompressed")
    return path / "rows.feather"


def hdf5_groups(path: Path, images: list[bytes]) -> Path:
    with h5py.File(path / "demos.h5", "w") as f:
        start = 0
        for k, length in enumerate(LENGTHS):
            own = images[start : start + length]
            f[f"demo_{k}/obs/q"], f[f"demo_{k}/action"] = np.arange(length, dtype=np.float32), np.ones((length, 2))
            vlen(f[f"demo_{k}/obs"], "cam", own)
            start += length
    return path / "demos.h5"


def aloha(path: Path, images: list[bytes]) -> Path:
    """A file for each episode, with padded rows and their lengths, as ALOHA's recorder writes them."""
    start = 0
    for k, length in enumerate(LENGTHS):
        own = images[start : start + length]
        with h5py.File(path / f"episode_{k}.hdf5", "w") as f:
            f["observations/qpos"], f["action"] = np.zeros((length, 14)), np.ones((length, 14))
            f["observations/images/cam"] = padded(own)
            f["compress_len"] = np.array([[len(i) for i in own]], np.float64)
        start += length
    return path


LAYOUTS = [
    *(hdf5_padded, hdf5_vlen, hdf5_texts, hdf5_opaque, npz_padded, npz_texts),
    *(parquet_binary, parquet_struct, arrow_binary, hdf5_groups, aloha),
]


@pytest.mark.parametrize("codec", ["jpeg", "png"])
@pytest.mark.parametrize("write", LAYOUTS)
def test_images_are_kept_as_they_are(
    tmp_path: Path, write: Callable[[Path, list[bytes]], Path], codec: str
) -> None:
    images = [image(seed, codec) for seed in range(sum(LENGTHS))]
    ds = import_files(write(tmp_path, images), "local/filmed", progress=False)
    name = next(n for n in ds.schema if n.endswith("cam"))
    f = ds.schema[name]
    assert (f.kind, f.codec, f.shape) == ("frames", codec, (24, 32, 3))
    assert ds.episodes["length"].tolist() == LENGTHS
    start = 0
    for k, length in enumerate(LENGTHS):
        seen = ds.episode(k)[tuple(name.split("/"))][:length]
        assert (seen == np.stack([pixels(i) for i in images[start : start + length]])).all()
        start += length
    batch = next(iter(Loader(ds, 4, fields=[name], seed=0)))
    assert tuple(batch[tuple(name.split("/"))].shape) == (4, 24, 32, 3)
    found = trace(ds, 10)
    assert found.ok and name in found.fields
