"""Depth in exports to LeRobot, decoded as lerobot's ``dequantize_depth`` and its reader of images do."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import av
import lerobot_archives
import numpy as np
import pyarrow.parquet as pq
import pytest
from lerobot_archives import Content
from PIL import Image

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.loader import Loader, Metres, Sequential, Transition
from rlds_cli.make.importing import import_files

DEPTH, KEY = "observation/images/depth", "observation.images.depth"


def feature(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "meta/info.json").read_text())["features"][KEY]
    return found


def millimetres(codes: np.ndarray, info: dict[str, Any]) -> np.ndarray:
    """What lerobot 0.6 gives for codes of a video: the formula of its source, with what ``info.json`` says."""
    assert info["is_depth_map"] is True
    low, high, shift = (info[f"video.{name}"] for name in ("depth_min", "depth_max", "shift"))
    if info["video.use_log"]:
        a, b = math.log(low + shift), math.log(high + shift)
        metres = np.exp(codes * ((b - a) / 4095) + a) - shift
    else:
        metres = codes * ((high - low) / 4095) + low
    return np.rint(np.clip(metres, low, high) * 1000).clip(0, 65535).astype(np.uint16)


def metres_of(ds: Dataset) -> np.ndarray:
    loader = Loader(ds, 4, sampler=Sequential(), window=Transition(anchors="steps"), transform=Metres(ds))
    return np.asarray(next(iter(loader))["observation", "images", "depth"])[..., 0]


@pytest.mark.parametrize("given", [{}, pytest.param({"video.use_log": False}, marks=pytest.mark.thorough)])
def test_codes_in_videos_say_their_formula(home: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    """Also where ``info.json`` left its parameters out, and after what LeRobot said of the dataset is gone."""
    marks = {"is_depth_map": True, "video.pix_fmt": "gray12le"}
    c = Content(lengths=(3, 4), depth=("depth",), depth_info=marks | given)
    ds = import_files(lerobot_archives.write_v3(tmp_path / "in", c), "local/a")
    assert rlds_cli.export(ds, "lerobot", tmp_path / "out").proved
    info = feature(tmp_path / "out")["info"]
    with av.open(str(next(tmp_path.glob("out/videos/**/*.mp4")))) as container:
        codes = np.stack([f.to_ndarray(format="gray12le") for f in container.decode(video=0)])
    np.testing.assert_array_equal(codes, c.codes("depth"))
    np.testing.assert_allclose(metres_of(ds) * 1000, millimetres(codes[:4], info), atol=0.51)


@pytest.mark.parametrize(("version", "unit"), [("lerobot", "mm"), ("lerobot2.1", "m"), ("lerobot", None)])
def test_images_of_16_bits_are_depth_with_its_unit(home: Path, tmp_path: Path, version: str, unit: Any) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (3, 6, 8)).astype(np.uint16)
    images = []
    for v in values:
        file = io.BytesIO()
        Image.fromarray(v).save(file, "png")
        images.append(file.getvalue())
    made = {"observation": {"images": {"depth": images}}, "action": np.ones((3, 1), np.float32)}
    ds = rlds_cli.create("local/deep", [made], depth_unit=unit)
    assert rlds_cli.export(ds, version, tmp_path / "out", lossy=True).proved
    found = feature(tmp_path / "out")
    assert (found["dtype"], found["shape"]) == ("image", [6, 8, 1])
    assert found["info"] == {"is_depth_map": True, **({"depth_unit": unit} if unit else {})}
    rows = pq.read_table(next(tmp_path.glob("out/data/**/*.parquet")))[KEY].to_pylist()
    seen = [np.asarray(Image.open(io.BytesIO(row["bytes"]))) for row in rows]  # which lerobot takes as it is
    np.testing.assert_array_equal(seen, values)
    again = import_files(tmp_path / "out", "local/again")
    assert (again.schema[DEPTH].dtype, again.schema[DEPTH].codec) == ("uint16", "png")
    assert again.manifest.facts["depth"] == {DEPTH: {"unit": unit or "mm"}}  # of integers, by lerobot's rule
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())[KEY] if version == "lerobot" else None
    assert stats is None or np.asarray(stats["max"]).reshape(-1).tolist() == [values.max()]
