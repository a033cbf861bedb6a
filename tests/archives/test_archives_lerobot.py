"""LeRobot archives against pyarrow, PIL and av, which read them here on their own."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lerobot_archives as archives
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_archives import Content, decoded, write_v2, write_v3
from PIL import Image

import rlds_cli
from rlds_cli.archives import recognise
from rlds_cli.archives.lerobot import description
from rlds_cli.dataset import Dataset
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.make.importing import import_files, plan_import
from rlds_cli.ted import Field

SAMPLES = Path(__file__).parents[1] / "data" / "lerobot"
TOP = "observation/images/top"


def steps(ds: Dataset, name: str, k: int) -> Any:
    """A field over the steps of an episode."""
    e = ds.episodes
    return ds.gather(name, np.arange(e["start"][k], e["start"][k] + e["length"][k]))


def final(ds: Dataset, name: str, k: int) -> Any:
    """The row behind the last step of an episode."""
    return ds.gather(name, np.array([ds.episodes["start"][k] + ds.episodes["length"][k]]))[0]


def check_numbers(ds: Dataset, c: Content) -> None:
    for k, (start, n) in enumerate(zip(c.starts, c.lengths, strict=True)):
        rows = slice(start, start + n)
        for name, key in (
            ("observation/state", "observation.state"),
            ("action", "action"),
            ("next/reward", "next.reward"),
            ("next/info/done", "next.done"),
            ("timestamp", "timestamp"),
        ):
            np.testing.assert_array_equal(steps(ds, name, k), c.column(key)[rows], name)
            assert ds.schema[name].dtype == c.column(key).dtype.name
        assert list(steps(ds, "task", k)) == [c.tasks[t] for t in c.column("task_index")[rows]]
        np.testing.assert_array_equal(final(ds, "observation/state", k), c.column("observation.state")[start + n - 1])
        assert not final(ds, "action", k).any()
        assert final(ds, "task", k) is None


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["v3.0", "v2.1", "v2.0"])
def test_every_value(tmp_path: Path, version: str) -> None:
    c = Content(lengths=(12, 7, 20, 3, 1), splits={"train": "0:3", "val": "2:5"})
    root = write_v3(tmp_path / "a", c) if version == "v3.0" else write_v2(tmp_path / "a", c, version)
    ds = import_files(root, "local/a")
    check_numbers(ds, c)
    e = ds.episodes
    assert e["length"].tolist() == list(c.lengths)
    assert e["num_observed"].tolist() == list(c.lengths)
    assert list(e["end"]) == ["cut"] * 5
    assert ds.select(split="train").num_episodes == 3
    assert ds.select(split="val").episodes["length"].tolist() == [20, 3, 1]
    assert list(e["group"]) == [f"episode_{k}" for k in range(5)]
    per_file = c.per_file if version == "v3.0" else 1
    for k in range(5):
        assert e["row"][k] == sum(c.lengths[k // per_file * per_file : k])
        file = root / ds.sources[e["source"][k]]["file"]
        numbers = pq.read_table(file)["episode_index"].to_pylist()
        assert numbers[int(e["row"][k])] == k
    assert ds.manifest.env == {"fps": 10.0, "robot": "unknown" if version == "v2.0" else "arm"}
    assert ds.manifest.metadata == ("lerobot/info.json",)


def test_layouts_of_the_same_rows_have_one_fingerprint(tmp_path: Path) -> None:
    c = Content(image=("top",))
    one = import_files(write_v3(tmp_path / "a", c), "local/a")
    two = import_files(write_v2(tmp_path / "b", c), "local/b", jobs=2)
    assert one.fingerprint == two.fingerprint


@pytest.mark.thorough
def test_images_stay_encoded(tmp_path: Path) -> None:
    c = Content(image=("top", "wrist"), lengths=(4, 3))
    root = write_v3(tmp_path / "a", c)
    ds = import_files(root, "local/a")
    rows = pq.read_table(root / "data/chunk-000/file-000.parquet")
    for camera in c.image:
        f = ds.schema[f"observation/images/{camera}"]
        assert (f.kind, f.codec, f.shape, f.placement) == ("frames", "png", (48, 64, 3), "both")
        published = [r["bytes"] for r in rows[f"observation.images.{camera}"].to_pylist()]
        offsets, data = ds.store.rows(f.name), ds.store.frames(f.name).data
        stored = [data[a:b].tobytes() for a, b in offsets.tolist()]
        assert stored == [*published[:4], published[3], *published[4:], published[6]]
        for k in range(2):
            images = [np.asarray(Image.open(io.BytesIO(p))) for p in published[c.starts[k] :][: c.lengths[k]]]
            np.testing.assert_array_equal(steps(ds, f.name, k), images)


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["v3.0", "v2.1"])
def test_videos(tmp_path: Path, layout: str) -> None:
    c = Content(lengths=(6, 5, 9, 2), video=("top", "wrist"), per_file=3, per_video=2)
    root = write_v3(tmp_path / "a", c) if layout == "v3.0" else write_v2(tmp_path / "a", c)
    ds = import_files(root, "local/a")
    check_numbers(ds, c)
    for camera in c.video:
        name = f"observation/images/{camera}"
        assert (ds.schema[name].codec, ds.schema[name].shape) == ("mp4", (48, 64, 3))
        files = sorted(root.rglob(f"observation.images.{camera}/**/*.mp4"))
        seen = np.concatenate([decoded(f) for f in files])
        for k, (start, n) in enumerate(zip(c.starts, c.lengths, strict=True)):
            np.testing.assert_array_equal(steps(ds, name, k), seen[start : start + n])
            np.testing.assert_array_equal(final(ds, name, k), seen[start + n - 1])
        videos = ds.store.videos(name)
        stored = [np.asarray(videos.published(k)).tobytes() for k in range(len(videos))]
        assert stored == [f.read_bytes() for f in files]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["state_only_v3", "image_v3", "video_v3"])
def test_samples(name: str) -> None:
    root = SAMPLES / name
    ds = import_files(root, f"local/{name}")
    rows = pq.read_table(next(root.glob("data/*/*.parquet")))
    tasks = {t["task_index"]: t["__index_level_0__"] for t in pq.read_table(root / "meta/tasks.parquet").to_pylist()}
    number = np.array(rows["episode_index"])
    for k in range(ds.num_episodes):
        at = np.flatnonzero(number == k)
        state = np.stack(rows["observation.state"].to_pylist()).astype(np.float32)[at]
        np.testing.assert_array_equal(steps(ds, "observation/state", k), state)
        np.testing.assert_array_equal(steps(ds, "next/reward", k), np.array(rows["next.reward"])[at])
        assert list(steps(ds, "task", k)) == [tasks[t] for t in np.array(rows["task_index"])[at]]
        if name == "image_v3":
            images = [
                np.asarray(Image.open(io.BytesIO(rows["observation.images.top"][int(i)]["bytes"].as_py()))) for i in at
            ]
            np.testing.assert_array_equal(steps(ds, TOP, k), images)
        if name == "video_v3":
            np.testing.assert_array_equal(steps(ds, TOP, k), decoded(next(root.rglob("*.mp4")))[at])
    assert ds.num_episodes == 3


# -- names, kinds and ends


def test_success_terminates_and_other_ends_are_cut(tmp_path: Path) -> None:
    success = np.zeros(39, bool)
    success[[11, 20, 25]] = True  # the last step of episode 0; inside episode 2
    c = Content(extra={"next.success": ({"dtype": "bool", "shape": [1]}, success)})
    ds = import_files(write_v3(tmp_path / "a", c), "local/a")
    assert list(ds.episodes["end"]) == ["terminated", "cut", "cut"]
    assert ds.episodes["num_transitions"].tolist() == [12, 6, 19]
    assert steps(ds, "next/terminated", 0).tolist() == [False] * 11 + [True]
    assert not steps(ds, "next/terminated", 2).any()
    np.testing.assert_array_equal(steps(ds, "next/success", 2), success[19:])
    assert ds.manifest.facts["terminated"] == "next.done and next.success"


def test_flags_of_the_archive_come_first(tmp_path: Path) -> None:
    terminated, truncated = np.zeros(39, bool), np.zeros(39, bool)
    terminated[[3, 11]] = True
    truncated[[18, 20]] = True  # the last step of episode 1, and one inside episode 2
    flag = {"dtype": "bool", "shape": [1]}
    c = Content(extra={"next.terminated": (flag, terminated), "next.truncated": (flag, truncated)})
    ds = import_files(write_v2(tmp_path / "a", c), "local/a")
    assert list(ds.episodes["end"]) == ["terminated", "truncated", "cut"]
    assert np.flatnonzero(steps(ds, "next/terminated", 0)).tolist() == [3, 11]
    assert np.flatnonzero(steps(ds, "next/truncated", 2)).tolist() == [19]
    assert "truncated-inside" in {n["code"] for n in ds.manifest.notes}


def test_a_feature_may_be_given_another_name(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content())
    ds = import_files(root, "local/a", fields={"next/terminated": "next.done", "observation/q": "observation.state"})
    assert list(ds.episodes["end"]) == ["terminated"] * 3
    assert "next/info/done" not in ds.schema
    assert ds.schema["observation/q"].shape == (4,)
    with pytest.raises(UnknownLayout, match=r"There is no feature next\.end"):
        plan_import(root, "local/b", fields={"next/terminated": "next.end"})


@pytest.mark.thorough
def test_shapes_and_kinds_of_other_features(tmp_path: Path) -> None:
    n = 39
    texts = ["fast" if k % 2 else "slow" for k in range(n)]
    c = Content(
        extra={
            "observation.gripper": ({"dtype": "float64", "shape": [1]}, np.arange(n) / 3),
            "observation.grid": ({"dtype": "int16", "shape": [2, 3]}, [[[k, 1, 2], [3, 4, 5]] for k in range(n)]),
            "action.gripper": ({"dtype": "float32", "shape": [1]}, np.arange(n, dtype=np.float32)),
            "info.mode": ({"dtype": "string", "shape": [1]}, texts),
            "intervention": ({"dtype": "bool", "shape": [1]}, np.arange(n) % 3 == 0),
        }
    )
    ds = import_files(write_v3(tmp_path / "a", c), "local/a")
    shapes = {f.name: (f.dtype, f.shape, f.placement) for f in ds.schema.values()}
    assert shapes["observation/gripper"] == ("float64", (1,), "both")
    assert shapes["observation/grid"] == ("int64", (2, 3), "both")  # what the file has
    assert shapes["action.gripper"] == ("float32", (1,), "root")  # action is a field, and no group
    assert shapes["intervention"] == ("bool", (), "root")
    assert list(steps(ds, "info/mode", 1)) == texts[12:19]
    assert steps(ds, "observation/grid", 2)[4].tolist() == [[23, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(steps(ds, "action.gripper", 2)[:, 0], np.arange(19, 39))


def test_shapes_that_info_gives_wrongly(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content())
    features = json.loads((root / "meta/info.json").read_text())["features"]
    features["observation.state"]["shape"] = [7]
    edited(root, features=features)
    check_numbers(import_files(root, "local/a"), Content())


def test_videos_need_timestamps(tmp_path: Path) -> None:
    c = Content(video=("top",))
    root = write_v2(tmp_path / "a", c)
    features = {k: f for k, f in c.features().items() if k != "timestamp"}
    edited(root, features=features)
    for path in root.rglob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["timestamp"]), path)
    with pytest.raises(UnknownLayout, match="rows without a timestamp"):
        plan_import(root, "local/a")


def test_a_merge_that_names_the_video_of_other_episodes_is_refused(tmp_path: Path) -> None:
    c = Content(video=("top",), per_video=1)
    root = write_v3(tmp_path / "a", c)
    listed = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(listed).to_pylist()
    rows[2]["videos/observation.images.top/file_index"] = 0  # which is that of episode 0
    pq.write_table(pa.Table.from_pylist(rows), listed)
    with pytest.raises(CorruptArchive, match=r"gives 2 episodes frames of one another, first episode 0"):
        plan_import(root, "local/a")


@pytest.mark.thorough
def test_axes_of_images_are_those_of_the_files(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content(image=("top",), video=("side",)))
    info = json.loads((root / "meta/info.json").read_text())
    for camera in ("top", "side"):
        info["features"][f"observation.images.{camera}"] |= {"shape": [3, 48, 64], "names": ["c", "h", "w"]}
    (root / "meta/info.json").write_text(json.dumps(info))
    ds = import_files(root, "local/a")
    assert ds.schema[TOP].shape == ds.schema["observation/images/side"].shape == (48, 64, 3)


@pytest.mark.parametrize(("content", "size"), [(b"", 0), (b"GIF89a" + bytes(30), 36)])
def test_an_image_that_is_none(content: bytes, size: int) -> None:
    whole = io.BytesIO()
    Image.new("RGB", (4, 4)).save(whole, "png")
    column = pa.chunked_array([[{"bytes": b, "path": ""} for b in (whole.getvalue(), content)]])
    with pytest.raises(CorruptArchive, match=f"top, row 1 of a block: {size} bytes that are neither"):
        description.frames(column, "top", Field("top", "uint8", (4, 4, 3), "both", "frames", "png"))


def test_recognised_by_what_it_is(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content(video=("top",), image=("wrist",)))
    files = [f for f in root.rglob("*") if f.is_file()]
    name, text = recognise(files) or ("", "")
    assert (name, text) == ("lerobot", "LeRobot v3.0 dataset (3 episodes, 10 fps, 2 cameras in images and videos)")
    assert "lerobot" not in (recognise([f for f in files if "meta" not in f.parts]) or ())


@pytest.mark.parametrize("write", [write_v2, write_v3])
def test_a_dataset_without_its_description_is_refused(tmp_path: Path, write: Callable[..., Path]) -> None:
    root = write(tmp_path / "a", Content(video=("top",)))
    (root / "meta/info.json").unlink()
    for act in (plan_import, import_files):
        with pytest.raises(CorruptArchive, match=r"a LeRobot dataset without meta/info\.json"):
            act(root, "local/a")


# -- what is wrong with an archive


def edited(root: Path, **changes: Any) -> None:
    info = root / "meta/info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | changes))


def test_versions_that_are_not_read(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", Content())
    edited(root, codebase_version="v1.6")
    with pytest.raises(UnknownLayout, match=r"v1\.6 is not read; v2\.0, v2\.1 and v3\.0 are"):
        plan_import(root, "local/a", reader="lerobot")


def test_several_datasets_are_not_one(tmp_path: Path) -> None:
    write_v3(tmp_path / "a", Content())
    write_v2(tmp_path / "b", Content())
    with pytest.raises(UnknownLayout, match="2 LeRobot datasets"):
        plan_import(tmp_path, "local/a", reader="lerobot")


def test_missing_files(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", Content(video=("top", "side")))
    (root / "videos/chunk-000/observation.images.top/episode_000001.mp4").unlink()
    with pytest.raises(CorruptArchive, match=r"files of 1 episodes are missing, first episode 1: .*top/episode_000001"):
        plan_import(root, "local/a")
    ds = import_files(root, "local/a", skip_bad=True)
    assert ds.episodes["length"].tolist() == [12, 20]
    assert list(ds.episodes["group"]) == ["episode_0", "episode_2"]
    assert "missing-files" in {n["code"] for n in ds.manifest.notes}


@pytest.mark.thorough
def test_a_camera_that_was_not_fetched_is_left_out(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content(video=("top", "side")))
    for f in root.rglob("observation.images.top/**/*.mp4"):
        f.unlink()
    ds = import_files(root, "local/a")
    assert [n for n in ds.schema if "images" in n] == ["observation/images/side"]
    assert ("no-videos", "observation.images.top") in {(n["code"], n["where"]) for n in ds.manifest.notes}


def test_rows_of_another_episode(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content())
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[0]["length"], rows[1]["length"] = 11, 8
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(CorruptArchive, match=r"rows of episode 0 where meta/ lists episode 1"):
        import_files(root, "local/a")


def test_an_episode_in_another_file_than_listed_is_found(tmp_path: Path) -> None:
    c = Content(lengths=(4, 5, 6, 3), video=("top",))
    root = write_v3(tmp_path / "a", c)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[2]["data/file_index"] = 0  # it is in file 1
    pq.write_table(pa.Table.from_pylist(rows), path)
    ds = import_files(root, "local/a")
    check_numbers(ds, c)
    assert ("stale-files", "episode 2") in {(n["code"], n["where"]) for n in ds.manifest.notes}


def test_episodes_that_begin_before_the_one_before_ends_are_refused(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content(video=("top",)))
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[1]["videos/observation.images.top/from_timestamp"] = 0.8
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(CorruptArchive, match=r"gives 2 episodes frames of one another, first episode 0"):
        plan_import(root, "local/a")


def test_times_of_a_clock_of_its_own(tmp_path: Path) -> None:
    c = Content(video=("top",))
    root = write_v2(tmp_path / "a", c)
    path = root / "data/chunk-000/episode_000001.parquet"
    rows = pq.read_table(path)
    late = pa.array((np.arange(7) * 0.19 + 3).astype(np.float32))
    pq.write_table(rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", late), path)
    ds = import_files(root, "local/a")
    frames = decoded(root / "videos/chunk-000/observation.images.top/episode_000001.mp4")
    np.testing.assert_array_equal(steps(ds, TOP, 1), frames)
    assert ("frames-by-count", 7) in {(n["code"], n["count"]) for n in ds.manifest.notes}


def test_fewer_rows_than_listed(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", Content())
    path = root / "data/chunk-000/episode_000001.parquet"
    pq.write_table(pq.read_table(path).slice(0, 5), path)
    with pytest.raises(CorruptArchive, match=r"episode_000001.parquet has 5 rows; its episodes have 7"):
        import_files(root, "local/a")


def test_fewer_episodes_than_announced(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", Content())
    edited(root, total_episodes=4)
    with pytest.raises(CorruptArchive, match=r"lists 3 episodes; info\.json says 4"):
        plan_import(root, "local/a", reader="lerobot")


def test_a_video_that_ends_early(tmp_path: Path) -> None:
    c = Content(video=("top",))
    root = write_v2(tmp_path / "a", c)
    path = root / "videos/chunk-000/observation.images.top/episode_000002.mp4"
    archives.encode(path, c.frames("top")[:17], c.codec, c.options)
    with pytest.raises(
        CorruptArchive, match=r"no frame is shown at 1\.[7-9]00 s; the video has 17 from 0\.000 to 1\.600 s"
    ):
        import_files(root, "local/a")


def test_files_that_meta_names_for_no_episode_are_noted(tmp_path: Path) -> None:
    """What a recorder leaves that removes an episode from the lists alone; texts and pictures beside are no data."""
    c = Content(video=("top",))
    root = write_v2(tmp_path / "a", c)
    data, videos = root / "data/chunk-000", root / "videos/chunk-000/observation.images.top"
    shutil.copy(data / "episode_000002.parquet", data / "episode_000003.parquet")
    shutil.copy(videos / "episode_000002.mp4", videos / "episode_000003.mp4")
    (root / "data" / "notes.txt").write_text("by hand")
    ds = import_files(root, "local/a")
    (note,) = [n for n in ds.manifest.notes if n["code"] == "left-out-files"]
    assert "2 files were left out" in note["text"]
    assert "data/chunk-000/episode_000003.parquet" in note["text"]
    assert "top/episode_000003.mp4" in note["text"]
    why = {e["name"]: e["left_out"] for e in ds.manifest.account if e["kind"] == "file" and "left_out" in e}
    assert why["data/chunk-000/episode_000003.parquet"] == "meta/ names it for no episode"
    assert "left-out-files" in {f.code for f in rlds_cli.check(ds).findings}


def test_files_of_episodes_that_are_not_read_are_named(tmp_path: Path) -> None:
    c = Content(video=("top",))
    root = write_v2(tmp_path / "a", c)
    (root / "videos/chunk-000/observation.images.top/episode_000001.mp4").write_bytes(b"damaged")
    ds = import_files(root, "local/a", skip_bad=True)
    assert [n["code"] for n in ds.manifest.notes if n["code"] in ("bad-files", "left-out-files")] == ["bad-files"]


def test_a_video_with_fewer_frames_than_rows_lacks_some(tmp_path: Path) -> None:
    """Two rows that are nearest to one frame: the second of them has none of its own."""
    c = Content(lengths=(12, 8, 20), video=("top",))
    root = write_v2(tmp_path / "a", c)
    file = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    times = pa.array([0, 0.1, 0.2, 0.3, 0.34, 0.44, 0.54, 0.64], pa.float32())
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", times), file)
    video = root / "videos/chunk-000/observation.images.top/episode_000001.mp4"
    archives.encode(video, c.frames("top")[12:19], c.codec, c.options)
    (f,) = [f for f in rlds_cli.check(import_files(root, "local/a")).findings if f.code == "missing-frames"]
    assert (f.severity, f.field, f.count, f.episodes) == ("warning", "observation/images/top", 1, (1,))
    assert [(p.episode, p.step) for p in f.places] == [(1, 4)]
    whole = import_files(write_v2(tmp_path / "b", c), "local/b")
    assert "missing-frames" not in {f.code for f in rlds_cli.check(whole).findings}


def test_a_task_that_is_not_listed(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", Content())
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "push"}\n')
    with pytest.raises(CorruptArchive, match="there is no task 1 in meta/"):
        import_files(root, "local/a")


def test_paths_of_info_are_data(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", Content())
    edited(root, data_path="../{episode_index.__class__}/{episode_chunk:0999999d}")
    with pytest.raises(CorruptArchive, match="missing"):
        plan_import(root, "local/a", reader="lerobot")
    edited(root, data_path="data/{shard}.parquet")
    with pytest.raises(UnknownLayout, match="asks for shard"):
        plan_import(root, "local/a", reader="lerobot")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"codebase_version": "v3.0", "features": [], "fps": 10}'])
def test_damaged_descriptions(tmp_path: Path, text: str) -> None:
    root = write_v3(tmp_path / "a", Content())
    (root / "meta/info.json").write_text(text)
    with pytest.raises(CorruptArchive):
        plan_import(root, "local/a", reader="lerobot")


def test_a_png_that_disagrees_with_its_checksum(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content(image=("top",)))
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    key = "observation.images.top"
    images = table[key].to_pylist()
    data = bytearray(images[4]["bytes"])
    data[len(data) // 2] ^= 0x20
    images[4]["bytes"] = bytes(data)
    at = table.schema.get_field_index(key)
    pq.write_table(table.set_column(at, key, pa.array(images, table.schema.field(key).type)), path)
    with pytest.raises(CorruptArchive, match="row 4 of a block: a PNG image that is damaged"):
        import_files(root, "local/a")


def test_very_many_features_are_refused(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", Content())
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] |= {f"x{k}": {"dtype": "float32", "shape": [1], "names": None} for k in range(5_000)}
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(UnsafeArchive, match=r"5,0\d\d features; at most 4,096"):
        import_files(root, "local/x")
