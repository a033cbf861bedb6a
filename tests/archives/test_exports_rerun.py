"""Exports to Rerun, read by its own reader, and by an import. `make test` has no Rerun; with it these run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import lerobot_archives
import numpy as np
import pytest
from PIL import Image
from test_exports_hdf5 import jpegs
from test_exports_mcap import given

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.errors import CorruptArchive, MissingPackage, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make import importing

MS = 1_000_000


@pytest.fixture
def rr() -> Any:
    return pytest.importorskip("rerun")


def entities(rr: Any, path: Path) -> dict[str, dict[str, list[Any]]]:
    """The columns of each entity, timelines among them, as Rerun's reader gives them; times are milliseconds."""
    found: dict[str, dict[str, list[Any]]] = {}
    for chunk in rr.chunk.RrdReader(path).stream():
        of = found.setdefault(chunk.entity_path, {})
        batch = chunk.to_record_batch()
        for name in batch.schema.names:
            values = batch[name].cast("int64").to_numpy() // MS if name == "time" else batch[name].to_pylist()
            if name != "rerun.controls.RowId":
                of.setdefault(name, []).extend(values)
    return found


def pictures(seed: int, count: int, *shape: int, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, (count, *shape), dtype=dtype)


def png(pixels: np.ndarray) -> bytes:
    with io.BytesIO() as out:
        Image.fromarray(pixels).save(out, "png")
        return out.getvalue()


def test_a_recording_of_each_episode(rr: Any, home: Path, tmp_path: Path) -> None:
    episodes = given()
    ds = rlds_cli.create("local/a", episodes, fps=20, progress=False)
    done = rlds_cli.export(ds, "rerun", tmp_path / "a", progress=False)
    assert done.losses == () and done.fingerprint == ds.fingerprint
    assert sorted(p.name for p in (tmp_path / "a").glob("*.rrd")) == [f"episode_000{k}.rrd" for k in range(3)]
    found = [rr.chunk.RrdReader(tmp_path / f"a/episode_000{k}.rrd").recordings()[0] for k in range(3)]
    assert {r.application_id for r in found} == {"local-a"}, "the viewer lists them below one name"
    assert len({r.recording_id for r in found}) == 3
    shown = entities(rr, tmp_path / "a/episode_0000.rrd")
    assert shown["/observation/q"]["step"] == [0, 1, 2, 3] and shown["/observation/q"]["time"] == [0, 50, 100, 150]
    assert shown["/observation/q"]["Scalars:scalars"] == [[t, -t] for t in range(4)]
    assert shown["/observation/q"]["SeriesLines:names"] == [["[0]", "[1]"]]
    assert shown["/action"]["step"] == [0, 1, 2] and shown["/action"]["Scalars:scalars"] == [[0], [1], [2]]
    assert shown["/next/reward"]["step"] == [1, 2, 3], "what came of a step is known after it"
    assert shown["/next/reward"]["Scalars:scalars"] == [[0], [0.5], [1]]
    assert shown["/next/terminated"]["Scalars:scalars"] == [[0], [0], [1]]
    assert shown["/note"]["TextDocument:text"] == [["s0"], ["s1"], ["s2"]]
    encoded = [bytes(blob[0]) for blob in shown["/observation/cam"]["EncodedImage:blob"]]
    wanted = np.split(jpegs(4).data, np.cumsum(jpegs(4).lengths)[:-1])
    assert encoded == [image.tobytes() for image in wanted]
    assert shown["/observation/cam"]["EncodedImage:media_type"] == [["image/jpeg"]] * 4
    told = shown["/__properties/episode"]
    assert (told["task"], told["score"], told["end"], told["steps"]) == ([["place"]], [[0.0]], [["terminated"]], [[3]])
    assert shown["/__properties"]["RecordingInfo:name"] == [["episode 0"]]


def test_arrays_are_lines_images_depth_or_tensors(rr: Any, home: Path, tmp_path: Path) -> None:
    color, deep = pictures(0, 2, 9, 8, 3), pictures(1, 2, 9, 8, dtype="uint16")
    whole = np.array([(1 << 62) + 1, -(1 << 62) - 1])
    large = np.arange(2 * 70, dtype=np.float32).reshape(2, 7, 10)
    coded = [png(pixels) for pixels in deep]
    e = {
        "observation": {
            "rgb": color,
            "deep": deep,
            "coded": coded,
            "large": large,
            "pose": np.eye(4)[None].repeat(2, 0),
        },
        "action": whole,
        "half": np.array([0.1, np.nan], np.float16),
        "on": np.array([True, False]),
        "many": np.ones((2, 70), bool),
    }
    ds = rlds_cli.create("local/a", [e], depth_unit="mm", progress=False)
    done = rlds_cli.export(ds, "rerun", tmp_path / "a", progress=False)
    assert done.fingerprint == ds.fingerprint
    shown = entities(rr, tmp_path / "a/episode_0000.rrd")
    assert "time" not in shown["/action"], "nobody knows the times"
    assert [bytes(b[0]) for b in shown["/observation/rgb"]["Image:buffer"]] == [row.tobytes() for row in color]
    form = rr.components.ImageFormat(width=8, height=9, color_model="RGB", channel_datatype="U8")
    (about,) = shown["/observation/rgb"]["Image:format"][0]
    assert about == rr.components.ImageFormatBatch(form).as_arrow_array()[0].as_py()
    assert [bytes(b[0]) for b in shown["/observation/deep"]["DepthImage:buffer"]] == [row.tobytes() for row in deep]
    assert shown["/observation/coded"]["EncodedDepthImage:meter"] == [[1000.0]] * 2
    assert [bytes(b[0]) for b in shown["/observation/coded"]["EncodedDepthImage:blob"]] == coded
    tensors = [row[0] for row in shown["/observation/large"]["Tensor:data"]]
    assert [t["shape"] for t in tensors] == [[7, 10]] * 2 and np.array_equal(tensors[1]["buffer"], large[1].ravel())
    assert shown["/observation/pose"]["SeriesLines:names"][0][:5] == ["[0][0]", "[0][1]", "[0][2]", "[0][3]", "[1][0]"]
    assert shown["/action"]["rlds:value"] == [[v] for v in whole.tolist()], "a Scalar would round them"
    again = importing.import_files(tmp_path / "a", "local/again", progress=False)
    assert again.fingerprint == ds.fingerprint and again.schema["many"].dtype == "bool"
    assert again.manifest.facts["depth"] == {"observation/coded": {"unit": "mm"}}


def test_an_import_gives_the_same_dataset(rr: Any, home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/a", given(), fps=20, progress=False)
    rlds_cli.export(ds.select(episodes=[2, 0]), "rerun", tmp_path / "a", progress=False)
    again = importing.import_files(tmp_path / "a", "local/again", progress=False)
    assert again.fingerprint == ds.select(episodes=[2, 0]).fingerprint and again.manifest.env["fps"] == 20
    assert again.episodes["end"].tolist() == ["cut", "terminated"]
    assert again.episodes["task"].tolist() == ["pick", "place"]
    assert trace(again, 6).ok


@pytest.mark.parametrize("per_video", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_videos_stay_videos(rr: Any, home: Path, tmp_path: Path, per_video: int) -> None:
    """Cut out of a published one without decoding, and what Rerun finds at the time of a row is the row's frame."""
    c = lerobot_archives.Content(video=("top",), lengths=(12, 8), per_video=per_video)
    about = lerobot_archives.write_v3(tmp_path / "in", c) / "meta/info.json"
    info = json.loads(about.read_text())
    info["features"]["observation.state"]["names"] = {"motors": ["x", "y", "z", "grip"]}
    about.write_text(json.dumps(info))
    ds = importing.import_files(tmp_path / "in", "local/a", progress=False)
    done = rlds_cli.export(ds, "rerun", tmp_path / "a", lossy=True, progress=False)
    assert {(loss.kind, loss.field) for loss in done.losses} == {
        *(("splits", ""), ("metadata", "")),
        ("encoding", "observation/images/top"),
    }
    for k in range(2):
        frames = np.asarray(ds.episode(k)["observation", "images", "top"])
        (tmp_path / "x.mp4").write_bytes(_blob(rr, tmp_path / f"a/episode_000{k}.rrd"))
        shown = entities(rr, tmp_path / f"a/episode_000{k}.rrd")["/observation/images/top"]
        times = [t[0] for t in shown["VideoFrameReference:timestamp"] if t]
        known = rr.AssetVideo(path=tmp_path / "x.mp4").read_frame_timestamps_nanos()
        with av.open(str(tmp_path / "x.mp4"), options={"ignore_editlist": "1"}) as file:
            decoded = sorted((f.pts, f.to_ndarray(format="rgb24")) for f in file.decode(video=0))
        of_time = dict(zip(sorted(known.tolist()), (pixels for _, pixels in decoded), strict=True))
        assert len(times) == len(frames)
        assert all(np.array_equal(of_time[t], frame) for t, frame in zip(times, frames, strict=True))
    names = entities(rr, tmp_path / "a/episode_0000.rrd")["/observation/state"]["SeriesLines:names"]
    assert names == [["x", "y", "z", "grip"]], "as LeRobot's info.json has them"


def _blob(rr: Any, path: Path) -> bytes:
    for chunk in rr.chunk.RrdReader(path).stream():
        batch = chunk.to_record_batch()
        if "AssetVideo:blob" in batch.schema.names:
            return bytes(batch["AssetVideo:blob"][0].as_py()[0])
    raise AssertionError("no video")


def test_videos_that_rerun_does_not_play_become_images(rr: Any, home: Path, tmp_path: Path) -> None:
    marks = {"is_depth_map": True, "video.pix_fmt": "gray12le"}
    c = lerobot_archives.Content(lengths=(3,), depth=("depth",), depth_info=marks)
    ds = importing.import_files(lerobot_archives.write_v3(tmp_path / "in", c), "local/a", progress=False)
    done = rlds_cli.export(ds, "rerun", tmp_path / "a", lossy=True, progress=False)
    assert "videos of depth: will be images in PNG" in done.losses[-1].text
    blobs = entities(rr, tmp_path / "a/episode_0000.rrd")["/observation/images/depth"]["EncodedDepthImage:blob"]
    with Image.open(io.BytesIO(bytes(blobs[1][0]))) as image:
        assert np.array_equal(np.asarray(image), np.asarray(ds.episode(0)["observation", "images", "depth"])[1, ..., 0])


def test_what_it_cannot_hold_is_declared(rr: Any, home: Path, tmp_path: Path) -> None:
    e = {"observation": np.arange(3.0), "action": np.ones(2), "note": ["a", None], "none": np.zeros((2, 0))}
    e |= {
        "episode": {"score": float("nan"), "a:b": True, "who": None, "said": "\udc80"},
        "odd": np.ones(2, np.complex64),
    }
    e |= {"__own": np.ones(2), "timestamp": np.array([1_700_000_000.0, 1_700_000_000.5])}
    ds = rlds_cli.create("local/a", [e], progress=False)
    losses = {(loss.field, loss.kind) for loss in plan_export(ds, "rerun", tmp_path / "a").losses}
    assert losses == {("note", "missing"), ("none", "field"), ("odd", "field"), ("__own", "field")}
    done = rlds_cli.export(ds, "rerun", tmp_path / "a", lossy=True, progress=False)
    again = importing.import_files(tmp_path / "a", "local/again", progress=False)
    assert again.fingerprint == done.fingerprint and np.isnan(again.episodes["score"][0])
    shown = entities(rr, tmp_path / "a/episode_0000.rrd")
    assert shown["/observation"]["time"] == [1_700_000_000_000, 1_700_000_000_500, 1_700_000_001_000]


def test_recordings_of_others_are_refused(rr: Any, tmp_path: Path) -> None:
    with rr.RecordingStream("mine") as recording:
        recording.save(tmp_path / "a.rrd")
        recording.log("/q", rr.Scalars([1.0]))
    with pytest.raises(UnknownLayout, match=r"a\.rrd is a recording of Rerun that rlds did not write"):
        importing.import_files(tmp_path / "a.rrd", "local/x", progress=False)


@pytest.mark.parametrize("wrong", ["cut", "head", "record"])
def test_a_damaged_recording_is_refused(rr: Any, home: Path, tmp_path: Path, wrong: str) -> None:
    ds = rlds_cli.create("local/a", [{"observation": np.arange(3.0), "action": np.ones(2)}], progress=False)
    rlds_cli.export(ds, "rerun", tmp_path / "a", progress=False)
    path = tmp_path / "a/episode_0000.rrd"
    data = path.read_bytes()
    if wrong == "record":
        said = json.loads(entities(rr, path)["/__properties/rlds"]["episode"][0][0])
        said["fields"]["action"]["shape"] = [3]
        chunks = [c for c in rr.chunk.RrdReader(path).stream() if c.entity_path != "/__properties/rlds"]
        texts = rr.components.TextBatch([json.dumps(said)])
        about = rr.chunk.Chunk.from_columns("/__properties/rlds", [], [rr.ComponentColumn("episode", texts)])
        rr.chunk.LazyChunkStream.from_iter([*chunks, about]).write_rrd(path, application_id="a", recording_id="b")
    else:
        path.write_bytes(data[:-100] if wrong == "cut" else data[:4] + b"\xff" * 40 + data[44:])
    with pytest.raises(CorruptArchive, match=r"episode_0000\.rrd"):
        importing.import_files(path, "local/x", progress=False)


def test_without_the_package_both_ways_say_what_to_install(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rerun", None)
    ds = rlds_cli.create("local/a", [{"observation": np.arange(3.0), "action": np.ones(2)}], progress=False)
    with pytest.raises(MissingPackage) as e:
        rlds_cli.export(ds, "rerun", tmp_path / "a", progress=False)
    assert e.value.hint == "pip install 'rlds-cli[rerun]'"
