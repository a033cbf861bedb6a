"""Exports to LeRobot: what pyarrow and av read of them, by LeRobot's rules for rows, tasks and times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import lerobot_archives
import numpy as np
import pyarrow.parquet as pq
import pytest
from lerobot_archives import FPS
from made_once import sample_dataset
from test_exports import episodes

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.dataset import Dataset
from rlds_cli.errors import CorruptArchive, LossyExport
from rlds_cli.make.importing import import_files


def data(root: Path, version: str = "lerobot") -> dict[str, list[Any]]:
    """All rows, by column, in the order of files."""
    tables = [pq.read_table(p) for p in sorted((root / "data").rglob("*.parquet"))]
    return {name: [v for t in tables for v in t[name].to_pylist()] for name in tables[0].column_names}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def described(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "meta" / "info.json").read_text())
    return found


def row_groups(root: Path) -> list[int]:
    """The rows of each row group of the first file."""
    about = pq.read_metadata(root / "data" / "chunk-000" / "file-000.parquet")
    return [about.row_group(k).num_rows for k in range(about.num_row_groups)]


@pytest.fixture
def three(home: Path) -> Dataset:
    """Episodes of 2, 3 and 1 steps, with tasks; the last one is cut."""
    made = episodes(final=False)
    for e, tasks in zip(made, (["a", "b"], ["b", "b", "b"], ["c"]), strict=True):
        e["task"] = tasks
    made[2]["next"] = {"reward": made[2]["next"]["reward"]}
    return rlds_cli.create("local/three", made, fps=4)


@pytest.mark.parametrize("version", ["lerobot", "lerobot2.1"])
def test_every_column_of_every_row(three: Dataset, tmp_path: Path, version: str) -> None:
    done = rlds_cli.export(three, version, tmp_path / "out")
    assert done.proved and not done.losses
    again = import_files(tmp_path / "out", "local/again")
    assert (again.fingerprint, again.episodes["task"].tolist()) == (three.fingerprint, ["a", "b", "c"])
    rows = data(tmp_path / "out")
    assert rows["observation"] == [[0, 0], [1, 10], [100, 1000], [101, 1010], [102, 1020], [200, 2000]]
    assert rows["action"] == [0, 0.125, 12.5, 12.625, 12.75, 25]
    assert rows["info.height"] == [0, 2.5, 0, 2.5, 5, 0]
    assert rows["next.reward"] == [0, 0, 100, 100, 100, 200]
    assert rows["next.terminated"] == [False, False, False, False, True, False]
    assert rows["next.truncated"] == [False, True, False, False, False, False]  # the last episode was cut
    assert rows["next.done"] == [False, True, False, False, True, True]
    assert rows["episode_index"] == [0, 0, 1, 1, 1, 2]
    assert rows["frame_index"] == [0, 1, 0, 1, 2, 0]
    assert rows["index"] == [0, 1, 2, 3, 4, 5]
    assert rows["timestamp"] == [0, 0.25, 0, 0.25, 0.5, 0]
    assert rows["task_index"] == [0, 1, 1, 1, 1, 2]
    info = described(tmp_path / "out")
    assert (info["fps"], info["total_episodes"], info["total_frames"], info["total_tasks"]) == (4, 3, 6, 3)
    assert info["features"]["observation"] == {"dtype": "float64", "shape": [2], "names": None}
    assert info["features"]["task_index"] == {"dtype": "int64", "shape": [1], "names": None}


def test_v3_lists_the_episodes_of_a_file(three: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rlds_cli.export(three, "lerobot", out)
    assert row_groups(out) == [6]
    listed = pq.read_table(out / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pylist()
    assert [e["tasks"] for e in listed] == [["a", "b"], ["b"], ["c"]]
    assert [(e["dataset_from_index"], e["dataset_to_index"]) for e in listed] == [(0, 2), (2, 5), (5, 6)]
    assert [(e["data/chunk_index"], e["data/file_index"]) for e in listed] == [(0, 0)] * 3
    assert listed[1]["stats/observation/mean"] == [101, 1010] and listed[1]["stats/observation/count"] == [3]
    tasks = pq.read_table(out / "meta" / "tasks.parquet")
    assert tasks["__index_level_0__"].to_pylist() == ["a", "b", "c"] and tasks["task_index"].to_pylist() == [0, 1, 2]
    assert described(out)["codebase_version"] == "v3.0"


def test_statistics_are_those_of_all_steps(three: Dataset, tmp_path: Path) -> None:
    rlds_cli.export(three, "lerobot", tmp_path / "out")
    stats = json.loads((tmp_path / "out" / "meta" / "stats.json").read_text())
    reward = np.array([0, 0, 100, 100, 100, 200.0])
    assert stats["next.reward"]["mean"] == pytest.approx([500 / 6])
    assert stats["next.reward"]["std"] == pytest.approx([reward.std()])
    assert (stats["observation"]["min"], stats["observation"]["max"]) == ([0, 0], [200, 2000])
    assert stats["observation"]["count"] == [6]
    assert stats["observation"]["q50"] == pytest.approx([(0.5 * 2 + 101 * 3 + 200) / 6, (5 * 2 + 1010 * 3 + 2000) / 6])
    assert "task" not in stats


def test_v21_has_a_file_for_each_episode(three: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rlds_cli.export(three, "lerobot2.1", out)
    files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert files == [
        ".rlds-export.json",
        *(f"data/chunk-000/episode_00000{k}.parquet" for k in range(3)),
        *(f"meta/{n}" for n in ("episodes.jsonl", "episodes_stats.jsonl", "info.json", "rlds.json", "tasks.jsonl")),
    ]
    assert lines(out / "meta" / "episodes.jsonl")[0] == {"episode_index": 0, "tasks": ["a", "b"], "length": 2}
    assert lines(out / "meta" / "tasks.jsonl")[2] == {"task_index": 2, "task": "c"}
    stats = lines(out / "meta" / "episodes_stats.jsonl")
    assert stats[1]["stats"]["action"]["mean"] == [12.625] and stats[1]["stats"]["action"]["count"] == [3]
    assert set(stats[1]["stats"]["action"]) == {"min", "max", "mean", "std", "count"}
    info = described(out)
    assert (info["codebase_version"], info["total_chunks"], info["total_videos"]) == ("v2.1", 1, 0)


def odd(length: int) -> dict[str, Any]:
    steps = np.arange(length)
    return {
        "observation": {"a.b": steps, "one": steps[:, None] * 0.5, "grid": np.arange(length * 12).reshape(-1, 2, 2, 3)},
        "action": steps,
        "index": steps * 2,
        "timestamp": np.array([str(s) for s in steps]).tolist(),
        "subtask": ["x", None, "y"][:length],
        "info": {"pair": steps[:, None] * [1, 2], "one": steps[:, None] * 1.0},
        "next": {"reward": steps * 1.0, "info": {"done": steps}},
        "episode": {"success": length > 2, "task": "z", "note": None if length > 2 else "short"},
    }


@pytest.mark.parametrize("version", ["lerobot", "lerobot2.1"])
def test_names_and_shapes_that_lerobot_means_otherwise_come_back(home: Path, tmp_path: Path, version: str) -> None:
    ds = rlds_cli.create("local/odd", [odd(3), odd(2)])
    done = rlds_cli.export(ds, version, tmp_path / "out")
    assert done.fingerprint == ds.fingerprint
    rows = data(tmp_path / "out")
    assert rows["index"] == [0, 1, 2, 3, 4] and rows["index_"] == [0, 2, 4, 0, 2]
    assert rows["subtask_"] == ["x", None, "y", "x", None] and rows["task_index"] == [0] * 5
    assert rows["observation.grid"][1] == [[[12, 13, 14], [15, 16, 17]], [[18, 19, 20], [21, 22, 23]]]
    again = import_files(tmp_path / "out", "local/again")
    assert again.fingerprint == ds.fingerprint
    assert again.episodes["success"].tolist() == [True, False]
    assert again.episodes["note"].tolist() == [None, "short"] and again.episodes["task"].tolist() == ["z", "z"]


@pytest.mark.parametrize("version", ["lerobot", "lerobot2.1"])
def test_segments_that_were_decided_come_back(three: Dataset, tmp_path: Path, version: str) -> None:
    ids = [row.tobytes().hex() for row in three.episodes["id"]]
    segments = [
        {"id": ids[1], "do": "subtask", "first": 0, "stop": 1, "text": "reach"},
        {"id": ids[1], "do": "subtask", "first": 2, "stop": 3, "text": "grasp"},
    ]
    ds = three.apply([{**d, "by": "ann"} for d in segments])
    assert rlds_cli.export(ds, version, tmp_path / "out").fingerprint == ds.fingerprint
    again = import_files(tmp_path / "out", "local/again")
    assert again.fingerprint == ds.fingerprint
    assert again.episodes["subtasks"].tolist() == [None, '[[0, 1, "reach"], [2, 3, "grasp"]]', None]
    assert again.episode(1)["subtask"].tolist() == ["reach", None, "grasp"]


def test_sub_tasks_are_those_of_lerobot(three: Dataset, tmp_path: Path) -> None:
    """The number of each row with the list of texts, and the lists of episodes that its annotation for SARM writes."""
    told = [[[0, 1, "reach"], [1, 2, "reach"]], [[1, 3, "lift"]], None]
    ds = three.label(subtasks=told)
    done = rlds_cli.export(ds, "lerobot", tmp_path / "out")
    assert done.proved and not done.losses and done.fingerprint == ds.fingerprint
    texts = pq.read_table(tmp_path / "out/meta/subtasks.parquet")
    assert texts["subtask_index"].to_pylist() == [0, 1, 2]
    assert texts["__index_level_0__"].to_pylist() == ["reach", "lift", ""]  # the last one is that of none
    assert data(tmp_path / "out")["subtask_index"] == [0, 0, 2, 1, 1, 2]
    assert described(tmp_path / "out")["features"]["subtask_index"] == {"dtype": "int64", "shape": [1], "names": None}
    listed = pq.read_table(next((tmp_path / "out/meta/episodes").rglob("*.parquet")))
    assert listed["subtask_names"].to_pylist() == [["reach", "reach"], ["lift"], None]
    assert listed["subtask_start_frames"].to_pylist() == [[0, 1], [1], None]
    assert listed["subtask_end_frames"].to_pylist() == [[0, 1], [2], None]
    again = import_files(tmp_path / "out", "local/again")
    assert again.fingerprint == ds.fingerprint and "subtask_index" not in again.schema
    wanted = ['[[0, 1, "reach"], [1, 2, "reach"]]', '[[1, 3, "lift"]]', None]
    assert again.episodes["subtasks"].tolist() == wanted


def test_sub_tasks_of_an_export_are_read_as_those_of_any_lerobot_dataset(three: Dataset, tmp_path: Path) -> None:
    rlds_cli.export(three.label(subtasks=[[[0, 2, "reach"]], [[1, 3, "lift"]], None]), "lerobot", tmp_path / "out")
    (tmp_path / "out/meta/rlds.json").unlink()
    again = import_files(tmp_path / "out", "local/again")
    assert [again.episode(k)["subtask"].tolist() for k in range(3)] == [["reach"] * 2, [None, "lift", "lift"], [None]]


@pytest.mark.parametrize("version", ["lerobot", "lerobot2.1"])
def test_seeds_and_options_are_columns_of_episodes(home: Path, tmp_path: Path, version: str) -> None:
    ds = sample_dataset("cartpole-minari").select(episodes=[4, 2])
    planned = plan_export(ds, version, tmp_path / "out")
    assert [loss.kind for loss in planned.losses] == ["final", "metadata"]
    done = rlds_cli.export(ds, version, tmp_path / "out", lossy=True)
    assert done.proved
    if version == "lerobot":
        listed = pq.read_table(tmp_path / "out" / "meta" / "episodes").to_pylist()
    else:
        listed = lines(tmp_path / "out" / "meta" / "episodes.jsonl")
    assert [int(e["seed"]) for e in listed] == ds.episodes["seed"].tolist()
    assert [json.loads(e["options"]).keys() for e in listed] == [{"high", "low"}] * 2


def test_splits_that_are_ranges(home: Path, tmp_path: Path) -> None:
    root = lerobot_archives.write_v3(tmp_path / "in", lerobot_archives.Content())
    ds = import_files(root, "local/arm")
    rlds_cli.export(ds, "lerobot", tmp_path / "out")
    assert described(tmp_path / "out")["splits"] == {"train": "0:2", "val": "2:3"}
    assert described(tmp_path / "out")["robot_type"] == "arm"
    some = ds.select(episodes=[0, 2, 1])
    with pytest.raises(LossyExport, match="the named split train, which is not a range of episodes"):
        rlds_cli.export(some, "lerobot", tmp_path / "some")
    assert rlds_cli.export(some, "lerobot", tmp_path / "some", lossy=True).proved
    assert described(tmp_path / "some")["splits"] == {"val": "1:2"}


@pytest.mark.parametrize("version", ["lerobot", "lerobot2.1"])
def test_images_stay_encoded(home: Path, tmp_path: Path, version: str) -> None:
    c = lerobot_archives.Content(image=("top",))
    ds = import_files(lerobot_archives.write_v3(tmp_path / "in", c), "local/pictures")
    assert rlds_cli.export(ds, version, tmp_path / "out", jobs=2).fingerprint == ds.fingerprint
    rows = data(tmp_path / "out")["observation.images.top"]
    assert [r["bytes"] for r in rows] == [lerobot_archives.png(x) for x in c.frames("top")]
    feature = described(tmp_path / "out")["features"]["observation.images.top"]
    assert feature == {"dtype": "image", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}


def shown(path: Path, times: list[float]) -> np.ndarray:
    """Frames of a video nearest to some times, as LeRobot's readers find them; none further than 0.1 ms."""
    with av.open(str(path)) as container:
        found = [(float(f.pts * f.time_base), f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]
    at = np.array([t for t, _ in found])
    nearest = [int(np.abs(at - t).argmin()) for t in times]
    assert np.abs(at[nearest] - times).max() < 1e-4
    return np.stack([found[k][1] for k in nearest])


def test_v3_copies_videos_and_says_when_episodes_begin(home: Path, tmp_path: Path) -> None:
    c = lerobot_archives.Content(video=("top",), per_video=2)
    source = lerobot_archives.write_v3(tmp_path / "in", c)
    ds = import_files(source, "local/video").select(episodes=[2, 1])
    done = rlds_cli.export(ds, "lerobot", tmp_path / "out")
    assert done.proved and not done.losses
    files = "videos/observation.images.top/chunk-000/file-00{}.mp4"
    for mine, theirs in ((0, 1), (1, 0)):  # the selection begins with the last video
        assert (tmp_path / "out" / files.format(mine)).read_bytes() == (source / files.format(theirs)).read_bytes()
    listed = pq.read_table(tmp_path / "out" / "meta" / "episodes").to_pylist()
    at = "videos/observation.images.top/"
    assert [(e[f"{at}file_index"], e[f"{at}from_timestamp"]) for e in listed] == [(0, 0), (1, 12 / FPS)]
    everything = [lerobot_archives.decoded(source / files.format(k)) for k in (0, 1)]
    times = [12 / FPS + k / FPS for k in range(7)]
    assert (shown(tmp_path / "out" / files.format(1), times) == everything[0][12:19]).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("version", ["lerobot", "lerobot2.1"])
def test_recorded_times_that_find_no_frames_make_room_for_counted_ones(
    home: Path, tmp_path: Path, version: str
) -> None:
    c = lerobot_archives.Content(video=("top",))  # all episodes in one file
    source = lerobot_archives.write_v3(tmp_path / "in", c)
    recorded = (1000 + c.column("frame_index") * 1.37 / FPS).astype(np.float64)  # of a clock that runs too fast

    def clock(e: Any) -> Any:
        first = c.starts[e["episode/number"]]
        return {**e, "timestamp": recorded[first : first + len(e["action"])]}

    ds = import_files(source, "local/video").map(clock, name="clock")
    with pytest.raises(LossyExport, match="frame_index / 10") as e:
        rlds_cli.export(ds, version, tmp_path / "out")
    assert [loss.kind for loss in e.value.losses] == ["time", *(["videos"] if version == "lerobot2.1" else [])]
    done = rlds_cli.export(ds, version, tmp_path / "out", lossy=True)
    assert done.proved
    rows = data(tmp_path / "out")
    assert rows["timestamp"] == pytest.approx((c.column("frame_index") / FPS).tolist())
    assert rows["timestamp_"] == recorded.tolist() and "observation.images.top" not in rows
    again = import_files(tmp_path / "out", "local/again")
    assert [again.episode(k)["timestamp"].tolist() for k in range(3)] == [
        ds.episode(k)["timestamp"].tolist() for k in range(3)
    ]
    assert (again.episode(1)["observation/images/top"] == ds.episode(1)["observation/images/top"]).all()


def test_frames_that_no_times_find_are_images_and_no_lists(home: Path, tmp_path: Path) -> None:
    source = lerobot_archives.write_v3(tmp_path / "in", lerobot_archives.Content(lengths=(8, 6), video=("top",)))
    ds = import_files(source, "local/video").map(
        lambda e: {
            "observation": {"images": {"top": e["observation", "images", "top"][::2]}},
            "action": e["action"][::2],
            "next": {"terminated": e["next/terminated"][::2], "truncated": e["next/truncated"][::2]},
        },
        name="halved",
    )
    assert ds.schema["observation/images/top"].codec == "mp4"
    with pytest.raises(LossyExport, match="do not follow the time of the rows: will be PNG images"):
        rlds_cli.export(ds, "lerobot", tmp_path / "out")
    assert rlds_cli.export(ds, "lerobot", tmp_path / "out", lossy=True).proved
    assert described(tmp_path / "out")["features"]["observation.images.top"]["dtype"] == "image"
    images = data(tmp_path / "out")["observation.images.top"]
    assert all(image["bytes"].startswith(b"\x89PNG") for image in images)
    again = import_files(tmp_path / "out", "local/again")
    for k in range(2):
        assert (again.episode(k)["observation/images/top"] == ds.episode(k)["observation/images/top"]).all()


def test_v21_cuts_videos_without_decoding(home: Path, tmp_path: Path) -> None:
    c = lerobot_archives.Content(video=("top",), options={"g": "8", "bf": "2"})
    source = lerobot_archives.write_v3(tmp_path / "in", c)
    ds = import_files(source, "local/video")
    with pytest.raises(LossyExport, match="one will be cut out for each episode") as e:
        rlds_cli.export(ds, "lerobot2.1", tmp_path / "out")
    assert [loss.kind for loss in e.value.losses] == ["videos"]
    assert rlds_cli.export(ds, "lerobot2.1", tmp_path / "out", lossy=True).proved
    whole = lerobot_archives.decoded(source / "videos/observation.images.top/chunk-000/file-000.mp4")
    for k, (start, length) in enumerate(zip(c.starts, c.lengths, strict=True)):
        path = tmp_path / "out" / f"videos/chunk-000/observation.images.top/episode_00000{k}.mp4"
        frames = shown(path, [step / FPS for step in range(length)])
        assert (frames == whole[start : start + length]).all()


def test_v21_copies_videos_of_single_episodes(home: Path, tmp_path: Path) -> None:
    c = lerobot_archives.Content(video=("top",))
    source = lerobot_archives.write_v2(tmp_path / "in", c)
    ds = import_files(source, "local/video")
    assert rlds_cli.export(ds, "lerobot2.1", tmp_path / "out").fingerprint == ds.fingerprint
    name = "videos/chunk-000/observation.images.top/episode_000001.mp4"
    assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        '{"columns": []}',
        '{"columns": {"action": {"shape": [-1]}}}',
        '{"columns": {"action": {"shape": [3]}}}',
        '{"columns": {"action": {"placement": "next"}}}',
        '{"columns": {"action": {"field": "a//b"}}}',
        '{"added": [1]}',
        '{"episodes": {"seed": "tasks"}}',
    ],
)
def test_a_damaged_file_of_an_export_is_refused(three: Dataset, tmp_path: Path, content: str) -> None:
    rlds_cli.export(three, "lerobot", tmp_path / "out", verify=False)
    (tmp_path / "out" / "meta" / "rlds.json").write_text(content)
    with pytest.raises(CorruptArchive):
        import_files(tmp_path / "out", "local/again")


def test_statistics_of_each_episode_are_those_of_its_steps(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    lengths = (1, 130, 2, 700, 257)
    made = [
        {
            "observation": rng.standard_normal((n + 1, 2, 3)),
            "action": rng.integers(-9, 9, (n, 1)),
            "next": {"reward": rng.standard_normal(n)},
        }
        for n in lengths
    ]
    ds = rlds_cli.create("local/several", made, home=tmp_path / "home")
    rlds_cli.export(ds, "lerobot", tmp_path / "v3", lossy=True)
    rlds_cli.export(ds, "lerobot2.1", tmp_path / "v2.1", lossy=True)
    listed = pq.read_table(tmp_path / "v3" / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pylist()
    lists = lines(tmp_path / "v2.1" / "meta" / "episodes_stats.jsonl")
    for row, line, episode, n in zip(listed, lists, made, lengths, strict=True):
        elements, steps = episode["observation"][:n].reshape(-1, 3), episode["observation"][:n]
        for name, of in {"min": np.min, "max": np.max, "mean": np.mean, "std": np.std}.items():
            assert row[f"stats/observation/{name}"] == pytest.approx(of(elements, axis=0))
            assert np.array(line["stats"]["observation"][name]) == pytest.approx(of(steps, axis=0))
            assert row[f"stats/next.reward/{name}"] == pytest.approx([of(episode["next"]["reward"])])
        some = elements[:: -(-2 * n // 128)]
        assert row["stats/observation/q10"] == pytest.approx(np.quantile(some, 0.1, axis=0))
        assert row["stats/index/count"] == line["stats"]["action"]["count"] == [n]
        assert row["stats/frame_index/std"] == pytest.approx([np.arange(n).std()])


def test_a_long_episode_is_written_in_pieces_between_short_ones(tmp_path: Path) -> None:
    n = 500_000  # 11.4 MiB of numbers
    rows = np.arange(3 * n, dtype=np.float64).reshape(n, 3) % 1000, np.ones((2, 3))
    long, short = ({"observation": x, "next": {"reward": x[:, 0]}} for x in rows)
    ds = rlds_cli.create("local/long", [short, long, short], home=tmp_path / "home")
    rlds_cli.export(ds, "lerobot", tmp_path / "out", lossy=True)
    groups = row_groups(tmp_path / "out")
    assert groups[0] == groups[-1] == 2 and len(groups) > 3 and sum(groups) == n + 4
    stats = json.loads((tmp_path / "out" / "meta" / "stats.json").read_text())
    everything = np.concatenate([e["observation"] for e in (short, long, short)])
    assert stats["observation"]["mean"] == pytest.approx(everything.mean(0))
    assert stats["observation"]["std"] == pytest.approx(everything.std(0))
    assert stats["index"]["max"] == [n + 3]


@pytest.mark.parametrize("version", ["lerobot", "lerobot2.1"])
def test_threads_write_the_files_that_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    rng = np.random.default_rng(5)
    made = [
        {
            "observation": rng.standard_normal((n + 1, 3), np.float32),
            "action": rng.integers(0, 9, n),
            "episode": {"task": f"t{n}"},
        }
        for n in (4, 1, 9, 30, 2, 7, 30, 8)
    ]
    ds = rlds_cli.create("local/units", made, home=tmp_path / "home")
    monkeypatch.setattr("rlds_cli.archives.exports.format.units_of.__defaults__", (400,))
    monkeypatch.setattr("rlds_cli.base.settings.cores", lambda: 3)
    found = []
    for jobs in (1, None):
        done = rlds_cli.export(ds, version, tmp_path / str(jobs) / "out", lossy=True, jobs=jobs, verify=False)
        files = sorted(f for f in done.directory.rglob("*") if f.is_file())
        found.append({str(f.relative_to(done.directory)): f.read_bytes() for f in files})
    assert found[0] == found[1]
    assert version == "lerobot2.1" or len([name for name in found[0] if name.startswith("data/")]) > 3


def test_columns_of_numbers_are_never_null(three: Dataset, tmp_path: Path) -> None:
    rlds_cli.export(three, "lerobot", tmp_path / "out")
    schema = pq.read_schema(tmp_path / "out" / "data" / "chunk-000" / "file-000.parquet")
    assert not any(column.nullable for column in schema)
    assert not schema.field("observation").type.value_field.nullable
