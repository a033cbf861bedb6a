"""LeRobot's depth cameras and nested columns, against what was written."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import lerobot_archives as archives
import numpy as np
import pyarrow as pa
import pytest
from lerobot_archives import Content, H, W, write_v3
from PIL import Image

from rlds_cli.base.media import mp4
from rlds_cli.dataset import Dataset
from rlds_cli.errors import UnknownField, UnknownLayout
from rlds_cli.loader import Loader, Metres, Sequential, Transition
from rlds_cli.look.report.plots import contact_sheet
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

DEPTH = "observation/images/depth"
LINEAR = {"video.depth_min": 0.5, "video.depth_max": 4.5, "video.shift": 0.0, "video.use_log": False}


def steps(ds: Dataset, name: str, k: int) -> Any:
    e = ds.episodes
    return ds.gather(name, np.arange(e["start"][k], e["start"][k] + e["length"][k]))


def depth(**info: Any) -> Content:
    marks = {"is_depth_map": True, "video.pix_fmt": "gray12le"}
    return Content(lengths=(3, 4, 2), depth=("depth",), depth_info=marks | info)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "marks",
    [
        {"is_depth_map": True},
        {"is_depth_map": None, "video.is_depth_map": True},
    ],
)
def test_codes_come_at_full_depth(tmp_path: Path, marks: dict[str, Any]) -> None:
    c = depth(**marks)
    ds = import_files(write_v3(tmp_path / "a", c), "local/a")
    f = ds.schema[DEPTH]
    assert (f.dtype, f.shape, f.kind, f.codec) == ("uint16", (H, W, 1), "frames", "mp4")
    codes = c.codes("depth")
    assert codes.min() < 8 and codes.max() > 4080
    for k, (start, n) in enumerate(zip(c.starts, c.lengths, strict=True)):
        np.testing.assert_array_equal(steps(ds, DEPTH, k)[..., 0], codes[start : start + n])
    assert not [n for n in ds.manifest.notes if "depth" in n["code"]]


@pytest.mark.thorough
def test_the_mark_may_stand_in_video_info(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", depth())
    info = json.loads((root / "meta/info.json").read_text())
    feature = info["features"]["observation.images.depth"]
    feature["video_info"] = {"video.is_depth_map": True}
    feature["info"] = None  # the pixel format is that of the file
    (root / "meta/info.json").write_text(json.dumps(info))
    assert import_files(root, "local/a").schema[DEPTH].dtype == "uint16"


def test_sixteen_bits_in_ffv1(tmp_path: Path) -> None:
    c = Content(
        lengths=(3,),
        depth=("depth",),
        depth_codec="ffv1",
        depth_info={"video.is_depth_map": True, "video.pix_fmt": "gray16le"},
    )
    root = write_v3(tmp_path / "a", c)
    ds = import_files(root, "local/a")
    np.testing.assert_array_equal(steps(ds, DEPTH, 0)[..., 0], c.codes("depth"))
    assert ds.manifest.facts["depth"] == {DEPTH: {"bits": 16, "unit": "mm"}}
    np.testing.assert_allclose(Metres(ds).apply(DEPTH, np.array([0, 1500, 65535], np.uint16)), [0, 1.5, 65.535])


def test_a_depth_map_of_eight_bits_stays_as_it_is_and_is_noted(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content(lengths=(3,), video=("depth",)))
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.depth"]["info"] = {"is_depth_map": True, "video.pix_fmt": "yuv420p"}
    (root / "meta/info.json").write_text(json.dumps(info))
    ds = import_files(root, "local/a")
    assert ds.schema[DEPTH].dtype == "uint8" and "depth" not in ds.manifest.facts
    assert [n["where"] for n in ds.manifest.notes if n["code"] == "shallow-depth"] == ["observation.images.depth"]


def test_bits_are_read_from_the_file(tmp_path: Path) -> None:
    codes = Content(lengths=(2,)).codes("x")
    archives.encode_depth(tmp_path / "a.mp4", codes, "libx265", "gray12le")
    archives.encode_depth(tmp_path / "b.mp4", (codes >> 4).astype(np.uint8), "libx265", "gray")
    assert [mp4.bits(mp4.read(tmp_path / f"{n}.mp4")) for n in "ab"] == [12, 8]


def metres(code: float, low: float, high: float, shift: float, *, log: bool) -> float:
    """lerobot's formula, for one code."""
    if not log:
        return code / 4095 * (high - low) + low
    bottom, top = math.log(low + shift), math.log(high + shift)
    return math.exp(code / 4095 * (top - bottom) + bottom) - shift


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [{}, LINEAR, {"depth_min": 0.1, "video.depth_max": 2.0}])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_metres(tmp_path: Path, given: dict[str, Any], backend: Any) -> None:
    c = depth(**given)
    ds = import_files(write_v3(tmp_path / "a", c), "local/a")
    low, high = given.get("video.depth_min", given.get("depth_min", 0.01)), given.get("video.depth_max", 10.0)
    shift, log = given.get("video.shift", 3.5), given.get("video.use_log", True)
    assert ds.manifest.facts["depth"][DEPTH] == {
        "bits": 12,
        "depth_min": low,
        "depth_max": high,
        "shift": shift,
        "use_log": log,
    }
    loader = Loader(
        ds, 4, sampler=Sequential(), window=Transition(anchors="steps"), transform=Metres(ds), backend=backend
    )
    batch = next(iter(loader))
    codes = c.codes("depth")[:4]
    expected = np.vectorize(lambda x: metres(float(x), low, high, shift, log=log))(codes)
    found = np.asarray(batch[tuple(DEPTH.split("/"))])
    assert found.dtype == np.float32 and found.shape == (4, H, W, 1)
    np.testing.assert_allclose(found[..., 0], expected, rtol=2e-6)
    assert found.min() >= low and found.max() <= np.float32(high)


def test_metres_of_what_is_no_depth(tmp_path: Path) -> None:
    ds = import_files(write_v3(tmp_path / "a", depth()), "local/a")
    assert Metres(ds, "observation").touches(f"next/{DEPTH}") and not Metres(ds).touches("action")
    with pytest.raises(UnknownField, match="not a depth field"):
        Metres(ds, "action")
    with pytest.raises(UnknownField, match="there is no depth field"):
        Metres(import_files(write_v3(tmp_path / "b", Content()), "local/b"))
    with pytest.raises(UnknownField, match="not a depth field here"):
        Metres(ds).apply("action", np.zeros(2))


@pytest.mark.parametrize(
    "given", [{"video.depth_min": "near"}, {"video.depth_min": 11.0}, {"video.shift": -5.0}, {"video.use_log": 1}]
)
def test_parameters_that_are_no_formula(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(UnknownLayout, match=r"observation\.images\.depth"):
        plan_import(write_v3(tmp_path / "a", depth(**given)), "local/a")


@pytest.mark.slow
def test_depth_in_other_places(tmp_path: Path) -> None:
    """Decoded at conversion, made smaller, drawn, and looked up in the archive."""
    c = depth()
    root = write_v3(tmp_path / "a", c)
    raw = import_files(root, "local/raw", frames="raw")
    assert (raw.schema[DEPTH].kind, raw.schema[DEPTH].dtype) == ("array", "uint16")
    np.testing.assert_array_equal(steps(raw, DEPTH, 0)[..., 0], c.codes("depth")[:3])
    small = import_files(root, "local/small", frames=f"{H // 2}x{W // 2}")
    assert set(np.unique(steps(small, DEPTH, 0))) <= set(np.unique(c.codes("depth")[:3]))  # no value in between
    ds = import_files(root, "local/a")
    looked_up = trace(ds, 9)
    assert looked_up.ok and DEPTH in looked_up.fields
    sheet = np.asarray(contact_sheet(ds, DEPTH, episode=0))
    assert sheet.dtype == np.uint8 and len(np.unique(sheet)) > 32


def picture(values: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "dtype", "info", "unit"),
    [
        ("png", np.uint16, {"is_depth_map": True, "depth_unit": "mm"}, "mm"),
        ("tiff", np.uint16, {"is_depth_map": True}, "mm"),
        ("tiff", np.float32, {"is_depth_map": True}, "m"),
        ("png", np.uint16, {}, "mm"),
    ],
)
def test_images_of_depth(tmp_path: Path, kind: str, dtype: Any, info: dict[str, Any], unit: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 60_000, (5, 6, 8)).astype(dtype)
    column = [{"bytes": picture(v, kind), "path": f"{k}.{kind}"} for k, v in enumerate(values)]
    feature = {"dtype": "image", "shape": [6, 8, 1], "info": info}
    c = Content(lengths=(3, 2), extra={"observation.images.depth": (feature, column)})
    root = write_v3(tmp_path / "a", c)
    ds = import_files(root, "local/a")
    f = ds.schema[DEPTH]
    stored = "frames" if kind == "png" else "array"
    assert (f.kind, f.dtype, f.shape, f.placement) == (stored, np.dtype(dtype).name, (6, 8, 1), "both")
    np.testing.assert_array_equal(steps(ds, DEPTH, 0)[..., 0], values[:3])
    np.testing.assert_array_equal(steps(ds, DEPTH, 1)[..., 0], values[3:])
    assert ds.manifest.facts["depth"] == {DEPTH: {"unit": unit}}
    looked_up = trace(ds, 9)
    assert looked_up.ok and DEPTH in looked_up.fields
    expected = values[:3].astype(np.float32) / np.float32(1000 if unit == "mm" else 1)
    np.testing.assert_array_equal(Metres(ds).apply(DEPTH, values[:3]), expected)


def test_images_of_depth_that_do_not_fit(tmp_path: Path) -> None:
    images = [np.zeros((6, 8), np.uint16), np.zeros((6, 9), np.uint16)]
    column = [{"bytes": picture(v, "png"), "path": ""} for v in images]
    c = Content(lengths=(2,), extra={"observation.images.depth": ({"dtype": "image", "shape": [6, 8, 1]}, column)})
    with pytest.raises(UnknownLayout, match=r"row 1 of a block: an image of \[6, 9, 1\], 16 bits; the first is uint16"):
        import_files(write_v3(tmp_path / "a", c), "local/a")


# other columns


def test_other_nested_columns_are_kept_as_json(tmp_path: Path) -> None:
    values = {
        "labels": pa.array([["a", "b"], []] + [["c"]] * 3),
        "pose": pa.array([{"x": 1.5, "name": "home"}] * 5),
        "raw": pa.array([b"\x00\x01"] * 5),
        "kind": pa.array(["x", "y", "x", "x", None]).dictionary_encode(),
    }
    extra = {k: ({"dtype": "string", "shape": [1]}, v) for k, v in values.items()}
    ds = import_files(write_v3(tmp_path / "a", Content(lengths=(3, 2), extra=extra)), "local/a")
    assert list(steps(ds, "labels", 0)) == ['["a", "b"]', "[]", '["c"]']
    assert list(steps(ds, "pose", 1)) == ['{"x": 1.5, "name": "home"}'] * 2
    assert list(steps(ds, "raw", 1)) == ['"AAE="'] * 2
    assert list(steps(ds, "kind", 1)) == ["x", None]
    assert [n["count"] for n in ds.manifest.notes if n["code"] == "nested"] == [3]


def test_a_reward_that_is_nested_is_refused(tmp_path: Path) -> None:
    rows = pa.array([{"x": 1.0}] * 5)
    c = Content(lengths=(3, 2), extra={"next.terminated": ({"dtype": "bool", "shape": [1]}, rows)})
    with pytest.raises(UnknownLayout, match=r"next\.terminated holds values of type struct"):
        plan_import(write_v3(tmp_path / "a", c), "local/a")


# what is not read, and what was read wrongly


def test_another_storage_format_is_refused_by_its_name(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content())
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"storage_format": "lerobot"}))
    assert plan_import(root, "local/a").reader == "lerobot"
    (root / "meta/info.json").write_text(json.dumps(info | {"storage_format": "lance"}))
    with pytest.raises(UnknownLayout, match='the storage_format "lance" is not read'):
        plan_import(root, "local/a")
