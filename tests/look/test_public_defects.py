"""Defects that users reported of public data, in small files with the same defect, and what `rlds check` names there.

The files are imported under names of their own: nothing is known of them but what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import lerobot_archives
import minari_archives
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlds_cli
from rlds_cli.errors import CorruptArchive
from rlds_cli.look import checks

Columns = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A report, what makes a file with its defect, and the code of the finding; or what the refusal says."""

    report: str
    make: Callable[[Path], Path]
    code: str = ""
    refused: str = ""
    how: dict[str, Any] = field(default_factory=dict)


def flat(file: Path, **columns: Any) -> Path:
    with h5py.File(file, "w") as f:
        for name, values in columns.items():
            f[name] = values
    return file


def maze(rows: int = 1200) -> Columns:
    """A point that heads for one goal after the other, in one trajectory, as in D4RL's maze2d: [x, y, vx, vy].

    A reward says that it is within 0.5 of (2, 2) where a step leads; timeouts mark new goals.
    """
    rng = np.random.default_rng(0)
    at, speed, goal = np.array([1.0, 1]), np.zeros(2), np.array([3.0, 3])
    seen, actions, switches = [], [], []
    for _ in range(rows + 1):
        seen.append(np.r_[at, speed])
        switches.append(np.linalg.norm(goal - at) < 0.3)
        goal = rng.uniform(0, 4, 2) if switches[-1] else goal
        actions.append(np.clip(3 * (goal - at) - speed, -1, 1))
        speed = 0.9 * speed + 0.1 * actions[-1]
        at = at + speed / 2
    near = np.linalg.norm(np.array(seen)[:, :2] - 2, axis=1) <= 0.5
    columns: Columns = {"observations": np.array(seen[:-1], "f4"), "actions": np.array(actions[:-1], "f4")}
    columns |= {"rewards": near[1:].astype("f4"), "terminals": np.zeros(rows, bool)}
    return columns | {"timeouts": np.array(switches[:-1])}


def maze_with(directory: Path, change: Callable[[Columns], None]) -> Path:
    columns = maze()
    change(columns)
    return flat(directory / "maze.hdf5", **columns)


def early(c: Columns) -> None:
    near = np.linalg.norm(c["observations"][:, :2] - 2, axis=1) <= 0.5
    c["rewards"] = near.astype("f4")


def stale(c: Columns) -> None:
    at = np.flatnonzero(c["timeouts"][:-1]) + 1
    c["observations"][at] = c["observations"][at - 1]


def empty(c: Columns) -> None:
    for name in ("observations", "actions", "rewards"):
        c[name][400:460] = 0


def ant(*, single: bool = False, late: int = 0, flagged: bool = True) -> Columns:
    """Twenty walks of 300 steps from (0, 0) to (4, 4), whose legs swing; terminals where the goal is near."""
    rng = np.random.default_rng(0)
    seen, terminals = [], []
    for _ in range(20):
        at, swing = np.zeros(2), rng.uniform(0, 6, 4)
        near = np.zeros(300, bool)
        for k in range(300):
            ahead = 4 - at
            at = at + 0.15 * ahead / max(float(np.linalg.norm(ahead)), 0.3) + rng.normal(0, 0.02, 2)
            seen.append(np.r_[at, np.sin(k / 9 + swing)])
            near[k] = np.linalg.norm(at - 4) < 0.5
        if single:
            near[np.argmax(near) + 1 :] = False
        terminals.append(near & flagged)
    flags = np.concatenate(terminals)
    timeouts = np.roll(np.arange(6000) % 300 == 299, late)
    columns: Columns = {"observations": np.array(seen, "f4"), "actions": rng.normal(0, 0.3, (6000, 2)).astype("f4")}
    return columns | {"rewards": flags.astype("f4"), "terminals": flags, "timeouts": timeouts}


def ants(**how: Any) -> Callable[[Path], Path]:
    return lambda directory: flat(directory / "ant.hdf5", **ant(**how))


def half_cheetah(directory: Path) -> Path:
    columns = ant(flagged=False)
    columns["rewards"] = np.random.default_rng(1).normal(size=6000).astype("f4")
    return flat(directory / "cheetah.hdf5", **columns)


def minari(directory: Path, *, limit: int | None = None, short: bool = False) -> Path:
    """Three episodes of five steps: of a limit of ``limit``, or the second without its final observation."""
    made = [minari_archives.plain_episode(5, seed=k) for k in range(3)]
    if short:
        made[1]["observations"] = made[1]["observations"][:-1]
    spec = {"id": "Adroit-v0", "entry_point": "adroit:Env", "max_episode_steps": limit, "kwargs": {}}
    metadata = {"env_spec": json.dumps(spec)} if limit else {}
    return minari_archives.by_hand(directory / "mine-v0", made, metadata)


def lerobot(directory: Path, *, lengths: tuple[int, ...] = (12, 7, 20), **extra: Any) -> Path:
    return lerobot_archives.write_v2(directory / "arm", lerobot_archives.Content(lengths=lengths, **extra))


def rows_with(root: Path, name: str, values: Any) -> Path:
    """Give the second episode other values of a column."""
    path = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    k = table.schema.get_field_index(name)
    pq.write_table(table.set_column(k, name, pa.array(values).cast(table.schema.field(k).type)), path)
    return root


def two_takes(directory: Path) -> Path:
    """Time begins again inside an episode."""
    return rows_with(lerobot(directory), "timestamp", np.r_[np.arange(4), np.arange(3)] / 10)


def deleted(directory: Path) -> Path:
    """Three frames were deleted, and the other times stayed."""
    return rows_with(lerobot(directory), "timestamp", np.r_[np.arange(4), np.arange(7, 10)] / 10)


def short_video(directory: Path) -> Path:
    c = lerobot_archives.Content(video=("top",))
    root = lerobot_archives.write_v2(directory / "arm", c)
    path = root / "videos/chunk-000/observation.images.top/episode_000002.mp4"
    lerobot_archives.encode(path, c.frames("top")[:17], c.codec, c.options)
    return root


def listed(directory: Path, key: str, value: Any, episode: int, **content: Any) -> Path:
    """Give an episode of LeRobot's v3 another entry in the list of episodes."""
    root = lerobot_archives.write_v3(directory / "arm", lerobot_archives.Content(**content))
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[episode][key] = value
    pq.write_table(pa.Table.from_pylist(rows), path)
    return root


def one_episode(directory: Path) -> Path:
    """Takes that a recorder has put into one episode, which is then as long as all of them."""
    takes = ant(flagged=False)
    return flat(directory / "takes.hdf5", **{n: x for n, x in takes.items() if n not in ("terminals", "timeouts")})


def first_pictures(directory: Path) -> Path:
    """Demonstrations whose first picture is the last one of the demonstration before."""
    rng = np.random.default_rng(0)
    with h5py.File(directory / "demo.hdf5", "w") as f:
        f.create_group("data").attrs["env_args"] = '{"env_name": "Arm", "type": 1, "env_kwargs": {}}'
        for k in range(6):
            g = f.create_group(f"data/demo_{k}")
            g.attrs["num_samples"] = 9
            pictures = rng.integers(0, 255, (9, 8, 8, 3), np.uint8)
            if k:
                pictures[0] = f[f"data/demo_{k - 1}/obs/top_image"][-1]
            g["obs/top_image"], g["obs/joints"] = pictures, rng.normal(size=(9, 3))
            g["actions"], g["rewards"], g["dones"] = rng.normal(size=(9, 2)), np.zeros(9), np.arange(9) == 8
    return directory / "demo.hdf5"


CASES = [
    Case("D4RL#85", lambda d: maze_with(d, lambda c: None), "continues"),
    Case("D4RL#194", lambda d: maze_with(d, early), "early-reward"),
    Case("D4RL#204", lambda d: maze_with(d, stale), "stale-observation"),
    Case("D4RL#65", lambda d: maze_with(d, empty), "zero-rows"),
    Case("D4RL#176", lambda d: maze_with(d, lambda c: c.pop("timeouts")), "never-flagged"),
    Case("D4RL#77", ants(late=7, flagged=False), "jump"),
    Case("D4RL#199, all", ants(), "flags-in-runs"),
    Case("D4RL#199, all, by timeouts", ants(), "terminated-inside", how={"episodes_by": "timeouts"}),
    Case("D4RL#199, umaze-diverse", ants(single=True), "continues"),
    Case("D4RL#199, umaze-diverse, by timeouts", ants(single=True), "reward-isolated", how={"episodes_by": "timeouts"}),
    Case("D4RL#22", half_cheetah, "never-terminated"),
    Case("Minari#286", lambda d: minari(d, limit=3), "too-long"),
    Case("Minari#199", lambda d: minari(d, short=True), refused="episode_1"),
    Case("lerobot#1875", two_takes, "step-restarts"),
    Case("lerobot#2775", deleted, "step-gap"),
    Case("lerobot#2364", short_video, refused="the video has 17"),
    Case(
        "lerobot#2401",
        lambda d: listed(d, "data/file_index", 0, 2, lengths=(4, 5, 6, 3), video=("top",)),
        "stale-files",
    ),
    Case(
        "lerobot#2550",
        lambda d: listed(d, "videos/observation.images.top/from_timestamp", 0.8, 1, video=("top",)),
        refused="frames of one another, first episode 0",
    ),
    Case("lerobot#1919", lambda d: listed(d, "dataset_from_index", 3, 1), "stale-rows"),
    Case("strands-labs/robots#708", one_episode, "jump"),
    Case("IsaacLab-Arena#382", first_pictures, "stale-observation"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.report)
def test_what_was_reported_is_named(tmp_path: Path, case: Case) -> None:
    (tmp_path / "given").mkdir()
    given = case.make(tmp_path / "given")
    if case.refused:
        with pytest.raises(CorruptArchive, match=case.refused):
            rlds_cli.import_files(given, "local/x", **case.how)
    else:
        ds = rlds_cli.import_files(given, "local/x", **case.how)
        assert case.code in {f.code for f in checks.check(ds).findings}


def test_the_files_without_the_defects_have_no_finding_of_theirs(tmp_path: Path) -> None:
    """The point's ends are marks in all of them; the ant's walks are whole without terminals."""
    of_maze = rlds_cli.import_files(flat(tmp_path / "maze.hdf5", **maze()), "local/maze")
    of_ant = rlds_cli.import_files(flat(tmp_path / "ant.hdf5", **ant(flagged=False)), "local/ant")
    named = {f.code for ds in (of_maze, of_ant) for f in checks.check(ds).findings if f.severity == "warning"}
    assert named <= {"saturated", "no-reward"}
