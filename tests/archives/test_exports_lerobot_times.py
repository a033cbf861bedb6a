"""Clocks that jitter in exports to LeRobot, by its rules: frames within 0.1 ms of rows, in v2.1 also even steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import lerobot_archives
import numpy as np
import pyarrow.parquet as pq
import pytest
from lerobot_archives import FPS, Content

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.dataset import Dataset
from rlds_cli.errors import LossyExport
from rlds_cli.make.importing import import_files

TOLERANCE = 1e-4  # of LeRobotDataset


def rows_of(root: Path) -> dict[str, list[Any]]:
    tables = [pq.read_table(p) for p in sorted((root / "data").rglob("*.parquet"))]
    return {name: [v for t in tables for v in t[name].to_pylist()] for name in tables[0].column_names}


def jittered(length: int, seed: int, most: float = 0.02) -> np.ndarray:
    """Seconds of steps at 10 Hz, each up to 20 ms late."""
    late = np.random.default_rng(seed).uniform(0.001, most, length)
    return (np.arange(length) / FPS + late).astype(np.float32)


def numbers_alone(lengths: tuple[int, ...] = (6, 1, 4), **more: Any) -> Dataset:
    made = [{"observation": np.ones((n, 2)), "action": np.ones((n, 1)), "timestamp": jittered(n, n)} for n in lengths]
    return rlds_cli.create("local/numbers", made, **more)


def far_from_frames(root: Path, camera: str = "observation.images.top") -> float:
    """The seconds from the time of a row to its nearest frame, at most, as lerobot's reader of v3.0 compares them."""
    rows, far = rows_of(root), 0.0
    for e in pq.read_table(root / "meta/episodes").to_pylist():
        place = root / "videos" / camera / f"chunk-000/file-{e[f'videos/{camera}/file_index']:03d}.mp4"
        with av.open(str(place)) as container:
            shown = np.array([float(f.pts * f.time_base) for f in container.decode(video=0)])
        times = np.array(rows["timestamp"][e["dataset_from_index"] : e["dataset_to_index"]])
        wanted = e[f"videos/{camera}/from_timestamp"] + times
        far = max(far, float(np.abs(shown[None] - wanted[:, None]).min(1).max()))
    return far


def test_times_without_videos_stay_in_v3(home: Path, tmp_path: Path) -> None:
    ds = numbers_alone(fps=FPS)
    done = rlds_cli.export(ds, "lerobot", tmp_path / "out")
    assert done.proved and not done.losses
    assert rows_of(tmp_path / "out")["timestamp"] == [float(t) for n in (6, 1, 4) for t in jittered(n, n)]


def test_the_rate_is_that_of_the_times_where_nothing_says_one(home: Path, tmp_path: Path) -> None:
    n = 9
    made = {"observation": np.ones((n, 2)), "action": np.ones((n, 1)), "timestamp": np.arange(n) / 25}
    rlds_cli.export(rlds_cli.create("local/timed", [made]), "lerobot", tmp_path / "out")
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["fps"] == 25


def test_v21_demands_even_steps_and_a_declared_loss(home: Path, tmp_path: Path) -> None:
    """Its reader compares each step with 1 / fps; the recorded times keep their values under another name."""
    ds = numbers_alone(fps=FPS)
    with pytest.raises(LossyExport, match=r"steps that are not 1 / 10 s apart, which lerobot refuses") as e:
        rlds_cli.export(ds, "lerobot2.1", tmp_path / "out")
    assert [loss.kind for loss in e.value.losses] == ["time"]
    assert rlds_cli.export(ds, "lerobot2.1", tmp_path / "out", lossy=True).proved
    rows = rows_of(tmp_path / "out")
    assert rows["timestamp_"] == [float(t) for n in (6, 1, 4) for t in jittered(n, n)]
    starts = np.flatnonzero(np.array(rows["frame_index"]) == 0)[1:] - 1  # of diffs between two episodes
    assert (np.abs(np.delete(np.diff(rows["timestamp"]), starts) - 1 / FPS) < TOLERANCE).all()
    again = import_files(tmp_path / "out", "local/again")
    assert [again.episode(k)["timestamp"].tolist() for k in range(3)] == [
        ds.episode(k)["timestamp"].tolist() for k in range(3)
    ]


def with_video(tmp_path: Path, times: Any) -> tuple[Dataset, Content]:
    """A dataset in a video, whose rows have other times."""
    c = Content(lengths=(6, 4), video=("top",))
    source = lerobot_archives.write_v3(tmp_path / "in", c)
    recorded = np.concatenate([times(n, n) for n in c.lengths])

    def clock(e: Any) -> Any:
        first = c.starts[e["episode/number"]]
        return {**e, "timestamp": recorded[first : first + len(e["action"])]}

    return import_files(source, "local/video").map(clock, name="clock"), c


def test_a_clock_that_jitters_makes_room_for_one_that_finds_the_frames(home: Path, tmp_path: Path) -> None:
    """Times within half a frame are the right ones for rlds, and refused by lerobot."""
    ds, c = with_video(tmp_path, jittered)
    with pytest.raises(LossyExport, match=r"up to \d+ ms from the frames of the videos; lerobot accepts 0\.1 ms") as e:
        rlds_cli.export(ds, "lerobot", tmp_path / "out")
    assert [loss.kind for loss in e.value.losses] == ["time"]
    assert rlds_cli.export(ds, "lerobot", tmp_path / "out", lossy=True).proved
    assert far_from_frames(tmp_path / "out") < TOLERANCE
    assert rows_of(tmp_path / "out")["timestamp_"] == [float(t) for n in c.lengths for t in jittered(n, n)]
    again = import_files(tmp_path / "out", "local/again")
    for k in range(2):
        assert (again.episode(k)["observation/images/top"] == ds.episode(k)["observation/images/top"]).all()
        assert again.episode(k)["timestamp"].tolist() == ds.episode(k)["timestamp"].tolist()


def test_times_that_find_the_frames_stay(home: Path, tmp_path: Path) -> None:
    ds, _ = with_video(tmp_path, lambda n, _: (np.arange(n) / FPS + 5).astype(np.float64))  # of a clock that began at 5
    done = rlds_cli.export(ds, "lerobot", tmp_path / "out")
    assert done.proved and not done.losses
    assert far_from_frames(tmp_path / "out") < TOLERANCE
    assert rows_of(tmp_path / "out")["timestamp"][0] == 5.0


def test_frames_that_no_clock_finds_exactly_are_said_with_the_tolerance_that_reads_them(
    home: Path, tmp_path: Path
) -> None:
    """The videos' own clock jitters: counted times are as far away, so that the recorded ones stay."""
    c = Content(lengths=(6, 4), video=("top",))
    source = lerobot_archives.write_v3(tmp_path / "in", c)
    info = json.loads((source / "meta/info.json").read_text())
    (source / "meta/info.json").write_text(json.dumps(info | {"fps": 10.5}))  # not that of the videos
    planned = plan_export(import_files(source, "local/odd", fields={"time": "timestamp"}), "lerobot", tmp_path / "out")
    assert not planned.losses
    assert any("tolerance_s=0.0" in note for note in planned.notes), planned.notes


def test_a_rate_that_nobody_knows_is_said_until_a_fact_states_it(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/plain", [{"observation": np.ones((4, 2)), "action": np.ones((4, 1))}])
    done = rlds_cli.export(ds, "lerobot", tmp_path / "out", lossy=True)
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["fps"] == 1
    assert rows_of(tmp_path / "out")["timestamp"] == [0, 1, 2, 3]
    assert [note for note in done.notes if "fps is 1" in note and "--set fps=20" in note]

    stated = rlds_cli.export(ds.label(facts={"fps": 20}), "lerobot", tmp_path / "stated", lossy=True)
    assert rows_of(tmp_path / "stated")["timestamp"] == pytest.approx([0, 0.05, 0.1, 0.15])
    assert not [note for note in stated.notes if "fps" in note]
