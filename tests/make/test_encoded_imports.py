"""Imports that store raw images as JPEG or PNG: ``--frames jpeg``."""

from __future__ import annotations

import io
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import run_rlds
from PIL import Image

import rlds_cli
from rlds_cli.errors import FrameError, RldsError
from rlds_cli.keep import pinning
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

SIDE = 32


def pictures(seed: int, rows: int, channels: int = 3) -> np.ndarray:
    """Gradients, which JPEG keeps about as they are."""
    y, x = np.mgrid[:SIDE, :SIDE]
    planes = [(4 * x + 3 * y + 7 * seed + 5 * c) // 2 for c in range(channels)]
    return np.stack([np.clip(np.stack(planes, -1) + k, 0, 255) for k in range(rows)]).astype(np.uint8)


def write(path: Path, seeds: tuple[int, ...] = (0, 1)) -> Path:
    """Write an episode a file: T + 1 images of a camera, T of another one, grey ones, and planes first."""
    with h5py.File(path, "w") as f:
        for k, seed in enumerate(seeds):
            g = f.create_group(f"episode_{k}")
            g["observation/top"] = pictures(seed, 5)
            g["observation/q"] = np.arange(10.0).reshape(5, 2) + seed
            g["action"] = np.ones((4, 1)) * seed
            g["info/grey"] = pictures(seed, 4, 1)[..., 0]
            g["info/planes"] = np.moveaxis(pictures(seed, 4), 3, 1)
    return path


def encoded(pixels: np.ndarray, codec: str) -> bytes:
    with io.BytesIO() as out:
        Image.fromarray(pixels).save(out, codec, **({"quality": 95} if codec == "jpeg" else {}))
        return out.getvalue()


@pytest.mark.parametrize("codec", ["jpeg", pytest.param("png", marks=pytest.mark.thorough)])
def test_raw_images_are_stored_as_pillow_encodes_them(home: Path, tmp_path: Path, codec: str) -> None:
    ds = import_files(write(tmp_path / "a.h5"), "local/a", frames=codec)
    top = ds.schema["observation/top"]
    assert (top.kind, top.codec, top.shape) == ("frames", codec, (SIDE, SIDE, 3))
    assert ds.schema["info/grey"].codec == codec
    assert ds.schema["info/planes"].kind == "array", "planes that lie first stay an array"
    assert ds.schema["observation/q"].dtype == "float64"
    shown = np.asarray(ds.episode(1)["observation", "top"])
    wanted = [np.asarray(Image.open(io.BytesIO(encoded(image, codec)))) for image in pictures(1, 5)]
    np.testing.assert_array_equal(shown, wanted[: len(shown)])
    off = np.abs(shown.astype(int) - pictures(1, 5)[: len(shown)]).max()
    assert off == 0 if codec == "png" else off < 8
    assert trace(ds, 4).ok
    assert rlds_cli.open_dataset("local/a").manifest.options["frames"] == codec


def test_others_stay_as_they_are(home: Path, tmp_path: Path) -> None:
    """Also encoded images beside them, and appended files become what the dataset has."""
    write(tmp_path / "a.h5")
    whole = import_files(tmp_path / "a.h5", "local/whole", frames="png")
    raw = import_files(tmp_path / "a.h5", "local/raw")
    for k in range(2):
        for name in (("observation", "top"), ("info", "grey"), ("info", "planes"), ("action",)):
            np.testing.assert_array_equal(whole.episode(k)[name], raw.episode(k)[name])
    with h5py.File(tmp_path / "few.h5", "w") as f:
        f["episode_0/observation"], f["episode_0/action"] = np.zeros((5, 3)), np.zeros((4, 1))
    with pytest.raises(FrameError, match="no raw images that jpeg could hold"):
        import_files(tmp_path / "few.h5", "local/few", frames="jpeg")
    with pytest.raises(RldsError, match='"raw", "jpeg", "png" or a size'):
        import_files(tmp_path / "a.h5", "local/webp", frames="webp")


def test_the_plan_says_what_is_stored(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    plan = plan_import(tmp_path / "a.h5", "local/a")
    stored = plan.stored("jpeg")
    assert plan.array_bytes is not None and stored.array_bytes is not None
    rows = plan.rows or 0
    assert plan.array_bytes - stored.array_bytes == rows * SIDE * SIDE * 4, "of three channels and of one"
    said = run_rlds("import", tmp_path / "a.h5", "--name", "local/a", "--frames", "jpeg", "--dry-run").stdout.decode()
    assert "kept as jpeg" in said


def test_resized_raw_images_are_not_compared_with_their_archive(home: Path, tmp_path: Path) -> None:
    ds = import_files(write(tmp_path / "a.h5"), "local/a", frames="16x16")
    assert ds.schema["observation/top"].shape == (16, 16, 3) and trace(ds, 4).ok


def test_a_lock_makes_the_same_images_again(home: Path, tmp_path: Path) -> None:
    ds = import_files(write(tmp_path / "a.h5"), "local/a", frames="jpeg")
    assert '"frames": "jpeg"' in pinning.lock([ds.id])


def test_appended_images_become_what_the_dataset_has(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "all.h5", (0, 1, 2))
    whole = import_files(tmp_path / "all.h5", "local/whole", frames="jpeg")
    import_files(write(tmp_path / "a.h5", (0, 1)), "local/a", frames="jpeg")
    rlds_cli.append("local/a", write(tmp_path / "b.h5", (2,)))
    grown = rlds_cli.open_dataset("local/a")
    assert grown.schema["observation/top"].codec == "jpeg" and grown.num_episodes == 3
    for name in (("observation", "top"), ("info", "grey"), ("info", "planes")):
        np.testing.assert_array_equal(grown.episode(2)[name], whole.episode(2)[name])
