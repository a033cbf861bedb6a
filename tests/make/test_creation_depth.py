"""Depth as PNG of 16 bits: from memory and from files to batches, with its unit, against what was encoded by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, InvalidEpisode, UnknownField, UnknownLayout
from rlds_cli.loader import Loader, Metres, Sequential, Transition
from rlds_cli.look.checks import check
from rlds_cli.make.importing import import_files
from rlds_cli.preprocess import encode_frames

DEPTH = "observation/depth"
VALUES = np.random.default_rng(0).integers(0, 65536, (5, 6, 8)).astype(np.uint16)
VALUES[0, 0, :2] = 0, 65535


def png(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(image)).save(file, "png")
    return file.getvalue()


def episodes(lengths: tuple[int, ...] = (3, 1)) -> list[dict[str, Any]]:
    """Episodes of some steps, whose images are those of `VALUES` in turn; they have a final observation."""
    return [
        {"observation": {"depth": [png(v) for v in VALUES[: n + 1]]}, "action": np.ones((n, 1), np.float32)}
        for n in lengths
    ]


def batch(ds: Dataset, **how: Any) -> Any:
    return next(iter(Loader(ds, 4, sampler=Sequential(), window=Transition(), **how)))


@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_images_of_depth_stay_encoded_and_come_as_uint16(tmp_path: Path, storage: Any) -> None:
    ds = rlds_cli.create("local/deep", episodes(), storage=storage, depth_unit="mm", home=tmp_path)
    f = ds.schema[DEPTH]
    assert (f.kind, f.codec, f.dtype, f.shape, f.placement) == ("frames", "png", "uint16", (6, 8, 1), "both")
    np.testing.assert_array_equal(ds.episode(0)[DEPTH][..., 0], VALUES[:3])
    for backend in ("numpy", "torch"):
        read = batch(ds, backend=backend)
        seen, after = (np.asarray(read[tuple(n.split("/"))]) for n in (DEPTH, f"next/{DEPTH}"))
        assert seen.dtype == np.uint16
        np.testing.assert_array_equal(seen[..., 0], VALUES[[0, 1, 2, 0]])
        np.testing.assert_array_equal(after[..., 0], VALUES[[1, 2, 3, 1]])
    metres = np.asarray(batch(ds, transform=Metres(ds))["observation", "depth"])
    np.testing.assert_array_equal(metres[..., 0], VALUES[[0, 1, 2, 0]].astype(np.float32) / np.float32(1000))
    assert not check(ds).errors


def test_the_unit_of_depth_is_a_fact_that_may_be_set_later(tmp_path: Path) -> None:
    ds = rlds_cli.create("local/deep", episodes(), home=tmp_path)
    with pytest.raises(UnknownField, match="there is no depth field") as e:
        Metres(ds)
    assert "--set depth_unit=mm" in str(e.value.hint)
    labelled = ds.label({}, facts={"depth_unit": "m"})
    np.testing.assert_array_equal(Metres(labelled).apply(DEPTH, VALUES[:1]), VALUES[:1].astype(np.float32))
    for unit in ("inch", "MM"):
        with pytest.raises(InvalidArgument, match="is neither of mm, m"):
            ds.label({}, facts={"depth_unit": unit})
        with pytest.raises(InvalidArgument, match="is neither of mm, m"):
            rlds_cli.create("local/other", episodes(), depth_unit=unit, home=tmp_path)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (VALUES[1].astype(np.uint8), "at row 1 is an image of 8 bits; the others are uint16"),
        (VALUES[1, :3], r"at row 1 is an image of shape \[3, 8, 1\]"),
    ],
)
def test_images_of_other_bits_or_sizes_are_refused(tmp_path: Path, other: Any, why: str) -> None:
    images = [png(VALUES[0]), png(other), png(VALUES[2])]
    with pytest.raises(InvalidEpisode, match=why):
        rlds_cli.create("local/bad", [{"observation": images, "action": np.ones((2, 1))}], home=tmp_path)


def files_of(kind: str, directory: Path) -> Path:
    """Three rows of depth in a column of images, or in a folder whose files a table names."""
    images = [png(v) for v in VALUES[:3]]
    path = directory / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"x": [0.0] * 3, "depth": images, "action": [[1.0]] * 3}), path)
    elif kind == "h5":
        with h5py.File(path, "w") as f:
            f["x"], f["action"] = np.zeros(3), np.ones((3, 1))
            column = f.create_dataset("depth", (3,), h5py.vlen_dtype(np.uint8))
            for k, image in enumerate(images):
                column[k] = np.frombuffer(image, np.uint8)
    else:
        path = directory / "run"
        (path / "depth").mkdir(parents=True)
        for k, image in enumerate(images):
            (path / "depth" / f"{k}.png").write_bytes(image)
        rows = "".join(f"0,1,depth/{k}.png\n" for k in range(3))
        (path / "log.csv").write_text(f"x,action,depth\n{rows}")
    return path


@pytest.mark.parametrize("kind", ["parquet", "h5", "folder"])
def test_images_of_depth_in_files_are_read(tmp_path: Path, home: Path, kind: str) -> None:
    fields = {DEPTH: "depth", "observation/x": "x"}
    how: dict[str, Any] = {"fields": fields, "episodes_by": "file", "depth_unit": "mm"}
    ds = import_files(files_of(kind, tmp_path), "local/files", **how)
    f = ds.schema[DEPTH]
    assert (f.kind, f.codec, f.dtype, f.shape) == ("frames", "png", "uint16", (6, 8, 1))
    np.testing.assert_array_equal(ds.episode(0)[DEPTH][..., 0], VALUES[:3])
    assert list(Metres(ds).apply(DEPTH, VALUES[0, 0, :2])) == [0.0, np.float32(65.535)]


@pytest.mark.parametrize("frames", ["raw", "3x4"])
def test_depth_is_decoded_or_made_smaller_without_new_values(tmp_path: Path, home: Path, frames: str) -> None:
    ds = import_files(
        files_of("parquet", tmp_path), "local/a", fields={DEPTH: "depth"}, episodes_by="file", frames=frames
    )
    found = ds.episode(0)[DEPTH]
    assert ds.schema[DEPTH].kind == "array" and found.dtype == np.uint16
    if frames == "raw":
        np.testing.assert_array_equal(found[..., 0], VALUES[:3])
    else:
        assert found.shape == (3, 3, 4, 1) and all(np.isin(a, v).all() for a, v in zip(found, VALUES, strict=False))


def test_a_column_that_mixes_bits_is_refused(tmp_path: Path, home: Path) -> None:
    images = [png(VALUES[0]), png(VALUES[1].astype(np.uint8))]
    pq.write_table(pa.table({"depth": images, "action": [[1.0]] * 2}), tmp_path / "a.parquet")
    with pytest.raises(UnknownLayout, match="row 1 holds an image of 8 bits a channel; 16 expected"):
        import_files(tmp_path / "a.parquet", "local/a", fields={DEPTH: "depth"}, episodes_by="file")


def test_a_function_may_return_depth_encoded(tmp_path: Path) -> None:
    ds = rlds_cli.create("local/deep", episodes((2,)), depth_unit="mm", home=tmp_path)
    half = ds.map(lambda e: {"observation": {"depth": encode_frames(e["observation", "depth"] // 2, "png")}}, name="h")
    assert (half.schema[DEPTH].dtype, half.schema[DEPTH].codec) == ("uint16", "png")
    np.testing.assert_array_equal(half.episode(0)[DEPTH][..., 0], VALUES[:2] // 2)
    np.testing.assert_array_equal(Metres(half).apply(DEPTH, VALUES[:1]), VALUES[:1].astype(np.float32) / 1000)
    with pytest.raises(InvalidArgument, match=r"uint16 \[3, 6, 8\] cannot be encoded as jpeg"):
        encode_frames(VALUES[:3], "jpeg")
