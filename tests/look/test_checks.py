"""Every check with datasets in which what it must find was put by hand, and with others in which there is nothing."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from made_once import sample_dataset

import rlds_cli
from rlds_cli import create
from rlds_cli.archives.d4rl import ends
from rlds_cli.cli import main, out
from rlds_cli.errors import RldsError
from rlds_cli.look import checks
from rlds_cli.look.checks import values
from rlds_cli.look.checks.findings import CODES, Finding, FindingPlace, as_note, of_note
from rlds_cli.look.checks.run import CHECKS, quick
from rlds_cli.look.measures import whole
from rlds_cli.look.measures.rules import RULES
from rlds_cli.look.report import summarise, write_page
from rlds_cli.make.importing import import_files

NAMES = [name for name, _ in CHECKS]


def walk(k: int, length: int = 50, **more: Any) -> dict[str, Any]:
    """An episode without anything to find: smooth observations, actions inside [-1, 1], rewards that vary."""
    rng = np.random.default_rng(k)
    steps = rng.uniform(-0.1, 0.1, (length + 1, 3))
    episode = {
        "observation": np.cumsum(steps, 0).astype(np.float32),
        "action": rng.uniform(-1, 1, (length, 2)),
        "next": {"reward": rng.normal(size=length), "terminated": k % 2 == 0, "truncated": k % 2 == 1},
        "info": {"q": rng.normal(size=length)},
    }
    return {**episode, **more}


def walks(n: int = 12) -> list[dict[str, Any]]:
    return [walk(k, 20 + 5 * k) for k in range(n)]


def found(ds: rlds_cli.Dataset | list[dict[str, Any]], **how: Any) -> dict[str, Finding]:
    ds = ds if isinstance(ds, rlds_cli.Dataset) else create("local/x", ds, force=True, **how)
    report = checks.check(ds)
    assert len({f.code for f in report.findings}) == len(report.findings)
    assert not {f.check for f in report.findings} & {*report.ok}
    return {f.code: f for f in report.findings}


def places(f: Finding) -> list[tuple[int, int | None]]:
    return [(p.episode, p.step) for p in f.places]


def change_manifest(ds: rlds_cli.Dataset, **attributes: Any) -> rlds_cli.Dataset:
    path = ds.path / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["rlds"].update(attributes)
    path.chmod(0o644)
    path.write_text(json.dumps(document))
    return rlds_cli.open_dataset(ds.path)


def change_rows(ds: rlds_cli.Dataset, name: str, rows: Any, value: Any) -> None:
    """Write into the file of a field, as no rlds command does."""
    values = ds.column(name).copy()
    values[rows] = value
    file = next(p for p in (ds.path / ds.store.table.path_of(name) / "c").rglob("*") if p.is_file())
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.write(values.tobytes())


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_nothing_is_found_where_there_is_nothing(storage: Any) -> None:
    report = checks.check(create("local/x", walks(), storage=storage))
    assert (report.errors, report.warnings, report.notes, report.findings) == (0, 0, 0, ())
    skipped = {"bounds", "counts"} | ({"saturated"} if storage == "zarr" else set())
    assert set(report.skipped) == skipped
    assert list(report.ok) == [n for n in NAMES if n not in skipped]


# finite


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_values_that_are_not_finite(storage: Any) -> None:
    episodes = walks()
    episodes[3]["observation"][7, 1] = np.nan
    episodes[5]["observation"][2, :2] = np.inf
    episodes[5]["info"]["q"][4] = -np.inf
    report = checks.check(create("local/x", episodes, storage=storage, force=True))
    by_field = {f.field: f for f in report.findings if f.code == "not-finite"}
    assert set(by_field) == {"observation", "info/q"}
    assert (by_field["observation"].severity, by_field["info/q"].severity) == ("error", "warning")
    assert (by_field["observation"].count, by_field["info/q"].count) == (3, 1)
    assert places(by_field["observation"]) == [(3, 7), (5, 2)]
    assert places(by_field["info/q"]) == [(5, 4)]
    assert (report.errors, report.warnings) == (1, 1)


@pytest.mark.thorough
def test_a_final_observation_that_is_not_finite() -> None:
    episodes = walks()
    length = len(episodes[4]["action"])
    episodes[4]["observation"][-1] = np.nan
    f = found(episodes)["final-not-finite"]
    assert (f.severity, f.count, places(f)) == ("error", 1, [(4, length)])


@pytest.mark.thorough
def test_a_final_info_that_is_not_finite_is_a_warning() -> None:
    episodes = walks()
    for e in episodes:
        e["info"]["contact"] = np.arange(len(e["action"]) + 1, dtype=np.float32)
    episodes[4]["info"]["contact"][-1] = np.inf
    ds = create("local/x", episodes, force=True)
    assert ds.schema["info/contact"].placement == "both"
    f = found(ds)["final-not-finite"]
    assert (f.severity, f.field, places(f)) == ("warning", "info/contact", [(4, len(episodes[4]["action"]))])


@pytest.mark.thorough
def test_only_the_first_places_are_named() -> None:
    episodes = walks()
    for e in episodes:
        e["next"]["reward"][::2] = np.nan
    f = found(episodes)["not-finite"]
    assert f.count == sum(-(-len(e["action"]) // 2) for e in episodes)
    assert places(f) == [(0, 2 * k) for k in range(8)]


# constant


@pytest.mark.thorough
def test_fields_and_elements_that_never_change() -> None:
    episodes = walks()
    for e in episodes:
        e["observation"][:, 1] = 4
        e["action"][:] = 0.5
        e["info"]["q"][:] = 1
        e["next"]["reward"][:] = 0
    f = found(episodes)
    assert f["constant"].field == "action" and f["constant"].severity == "warning"
    assert "(0.5)" in f["constant"].text
    assert (f["constant-element"].text, f["constant-element"].severity) == (
        "1 of 3 elements of observation never change (1)",
        "note",
    )
    assert f["constant-info"].text == "info/q never changes"
    assert f["no-reward"].severity == "warning"


@pytest.mark.thorough
def test_large_integers_that_float64_cannot_tell_apart_are_not_called_constant() -> None:
    episodes = walks()
    for e in episodes:
        e["action"] = np.arange(len(e["action"]), dtype=np.uint64) + np.uint64(2**63)
    assert "constant" not in found(episodes)


@pytest.mark.thorough
def test_the_same_reward_in_every_step_is_a_note() -> None:
    episodes = walks()
    for e in episodes:
        e["next"]["reward"][:] = -1
    assert (found(episodes)["constant-reward"].severity, found(episodes)["constant-reward"].text) == (
        "note",
        "next/reward is -1 in every step",
    )


# saturated


@pytest.mark.thorough
@pytest.mark.parametrize(("share", "severity"), [(0.3, None), (0.6, "note"), (0.95, "warning")])
def test_actions_at_their_bounds(share: float, severity: str | None) -> None:
    episodes = walks()
    for k, e in enumerate(episodes):
        rng = np.random.default_rng(100 + k)
        at_bound = rng.random(len(e["action"])) < share
        e["action"][at_bound, 0] = np.where(rng.random(at_bound.sum()) < 0.5, -1, 1)
    f = found(episodes).get("saturated")
    assert (f and f.severity) == severity


# bounds


def with_space(episodes: list[dict[str, Any]], space: dict[str, Any]) -> rlds_cli.Dataset:
    return change_manifest(create("local/x", episodes, force=True), spaces={"action": space})


def test_actions_outside_their_space() -> None:
    episodes = walks()
    episodes[2]["action"][9, 1] = 1.25
    episodes[6]["action"][0, 0] = -3
    box = {"type": "Box", "dtype": "float64", "shape": [2], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
    f = found(with_space(episodes, box))["out-of-bounds"]
    assert (f.severity, f.count, f.field, places(f)) == ("warning", 2, "action", [(2, 9), (6, 0)])
    assert "-3 in [-1, 1]" in f.text
    box["high"] = ["Infinity", 1.25]
    box["low"] = "-Infinity"
    assert "out-of-bounds" not in found(with_space(episodes, box))


@pytest.mark.thorough
def test_discrete_actions_outside_their_space() -> None:
    episodes = [{**walk(k), "action": np.arange(50) % 4} for k in range(3)]
    assert found(with_space(episodes, {"type": "Discrete", "dtype": "int64", "start": 0, "n": 4})) == {}
    f = found(with_space(episodes, {"type": "Discrete", "dtype": "int64", "start": 1, "n": 3}))["out-of-bounds"]
    assert (f.count, places(f)[:2]) == (3 * 13, [(0, 0), (0, 4)])
    pairs = [{**walk(k), "action": np.stack([np.arange(50) % 4, np.arange(50) % 2], 1)} for k in range(3)]
    space = {"type": "MultiDiscrete", "dtype": "int64", "nvec": [4, 2], "start": [0, 0]}
    assert found(with_space(pairs, space)) == {}
    assert found(with_space(pairs, {**space, "nvec": [3, 2]}))["out-of-bounds"].count == 3 * 12


# continuity


def test_the_rule_is_the_reader_s() -> None:
    assert (values.FACTOR, values.PERCENTILE) == (ends.FACTOR, ends.PERCENTILE)


@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_jumps_inside_episodes(storage: Any) -> None:
    episodes = [walk(k, 400) for k in range(6)]
    episodes[1]["observation"][200:] += 50  # as if another episode began at step 200
    episodes[4]["observation"][-1] -= 50  # the final observation is one of the rows
    f = found(episodes, storage=storage)
    assert (f["jump"].severity, f["jump"].count, places(f["jump"])) == ("warning", 2, [(1, 199), (4, 399)])
    assert "spike" not in f


@pytest.mark.thorough
def test_one_component_is_a_spike() -> None:
    episodes = [walk(k, 400) for k in range(6)]
    episodes[2]["observation"][100, 1] += 20
    f = found(episodes)
    assert (f["spike"].severity, places(f["spike"])) == ("note", [(2, 99), (2, 100)])
    assert "jump" not in f


@pytest.mark.thorough
def test_nothing_jumps_between_episodes_or_to_repeated_rows() -> None:
    episodes = [walk(k, 400) for k in range(6)]
    for k, e in enumerate(episodes):
        e["observation"] = e["observation"][:-1] + 100 * k  # no final observation: the store repeats the last
    f = found(episodes)
    assert set(f) == {"next-unknown"}


@pytest.mark.thorough
def test_jumps_across_the_blocks_that_are_read() -> None:
    n = 300_000  # 12 bytes a row: more than three tiles of 1 MiB
    steps = np.random.default_rng(0).uniform(-0.1, 0.1, (n + 1, 3))
    o = np.cumsum(steps, 0).astype(np.float32)
    tile = (1 << 20) // 12
    at = [tile - 1, tile + 1, 2 * tile, n - 1]
    for k in at:
        o[k + 1 :] += 30
    f = found(
        [{"observation": o, "action": np.random.default_rng(1).normal(size=(n, 1)), "next": {"terminated": True}}]
    )
    assert [p.step for p in f["jump"].places] == at


def contact(length: int = 600) -> np.ndarray:
    """Positions and velocities of balls that bounce: velocities change at once, several of them at one step."""
    rng = np.random.default_rng(5)
    x, v, rows = rng.uniform(0.2, 1, 4), np.zeros(4), []
    for _ in range(length):
        v -= 0.01
        x = x + 0.05 * v
        hit = x < 0
        v[hit], x[hit] = -v[hit], -x[hit]
        rows.append([*x, *v])
    return np.array(rows)


def turning(length: int = 3000) -> np.ndarray:
    """Two angles in [-pi, pi), and a quaternion whose sign changes as it likes."""
    t = np.arange(length) * 0.004
    half = np.stack([np.cos(t), np.sin(t), np.full(length, 0.1), np.full(length, -0.1)], 1)
    half[700:1900] *= -1
    angles = (np.stack([3 * t, 3 * t], 1) + np.pi) % (2 * np.pi) - np.pi
    return np.concatenate([angles, half], 1)


def resting(length: int = 3000) -> np.ndarray:
    """Three coordinates of an arm that moves, and of an object that lies still and is put elsewhere, twice."""
    arm = np.cumsum(np.random.default_rng(6).uniform(-0.1, 0.1, (length, 3)), 0)
    thing = np.zeros((length, 3))
    thing[900:2000], thing[2000:] = (4, 5, 6), (-7, 8, 9)
    return np.concatenate([arm, thing], 1)


@pytest.mark.parametrize("observation", [contact(), turning(), turning()[:, :1], resting()], ids=range(4))
def test_contacts_angles_and_objects_at_rest_are_no_jumps(observation: np.ndarray) -> None:
    n = len(observation) - 1
    f = found([{"observation": observation, "action": np.random.default_rng(0).normal(size=n)}])
    assert "jump" not in f


@pytest.mark.thorough
def test_goals_may_change_inside_episodes() -> None:
    episodes = [walk(k, 400) for k in range(4)]
    for e in episodes:
        wanted = np.cumsum(np.full((401, 2), 0.01), 0)
        wanted[200:] += 40
        e["observation"] = {"observation": e["observation"], "desired_goal": wanted}
    assert "jump" not in found(episodes)
    moved = [{**e, "observation": {"achieved_goal": e["observation"]["desired_goal"]}} for e in episodes]
    assert places(found(moved)["jump"]) == [(k, 199) for k in range(4)]


def merged(ds: rlds_cli.Dataset) -> dict[str, Any]:
    """All steps of a dataset as one episode, as from a flat file whose ends nobody knows."""
    rows = np.concatenate([a + np.arange(n) for a, n in zip(ds.episodes["start"], ds.episodes["length"], strict=True)])
    out: dict[str, Any] = {}
    for f in ds.schema.values():
        if f.kind == "array" and f.name not in ("next/terminated", "next/truncated"):
            *groups, last = f.name.split("/")
            group = out
            for name in groups:
                group = group.setdefault(name, {})
            group[last] = ds.column(f.name)[rows]
    return out


MERGED = {
    "d4rl/hopper_random_layout-v2.hdf5": {"jump"},
    "minari/hopper/random_hdf5-v0": {"jump"},
    "minari/pointmaze/umaze_hdf5-v0": {"jump"},
    "ogbench/pointmaze-medium-navigate-v0.npz": {"jump"},
    "ogbench/visual-cube-single-play-v0.npz": {"jump"},
    "openx/bridge_dataset/1.0.0": {"jump"},
    "robomimic/low_dim_layout.hdf5": {"jump"},
    "roboset/door_paths.h5": {"jump", "step-restarts"},
    "lerobot/state_only_v3": {"step-restarts"},
    "../../rlds_cli/samples/pendulum-d4rl.hdf5": {"jump"},
    "../../rlds_cli/samples/cartpole-minari": {"jump"},
    "../../rlds_cli/samples/mountaincar-robohive.h5": {"jump", "step-restarts"},
    # Images tell nothing, nor do random numbers.
    "d4rl/kitchen_layout-v0.hdf5": set(),
    "dopamine/Breakout/1/replay_logs": set(),
    "vd4rl/main/walker_walk/random/84px": set(),
}
OF_BOUNDARIES = {"jump", "step-restarts", "step-offset", "id-changes", "length-multiple", "length-outlier"}


@pytest.mark.thorough
@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", MERGED)
def test_archives_whose_episodes_are_merged(path: str) -> None:
    ds = import_files(DATA / path, "local/sound")
    assert not {f.code for f in checks.check(ds).findings} & OF_BOUNDARIES
    report = checks.check(create("local/merged", [merged(ds)]))
    assert {f.code for f in report.findings} & OF_BOUNDARIES == MERGED[path]
    assert all(f.severity == "warning" and "--episodes-by" in f.text for f in report.findings if f.code in MERGED[path])


# boundaries


def counted(lengths: list[int], **columns: Any) -> list[dict[str, Any]]:
    """Episodes with one more column each, which a function of number and length of the episode makes."""
    return [walk(k, n, info={name: of(k, n) for name, of in columns.items()}) for k, n in enumerate(lengths)]


def join(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Two episodes as one; the final observation of the first is lost."""
    return {
        "observation": np.concatenate([a["observation"][:-1], b["observation"]]),
        "action": np.concatenate([a["action"], b["action"]]),
        "next": {**b["next"], "reward": np.concatenate([a["next"]["reward"], b["next"]["reward"]])},
        "info": {k: np.concatenate([np.asarray(a["info"][k]), np.asarray(b["info"][k])]) for k in a["info"]},
    }


COUNTERS: dict[str, Any] = {
    "step": lambda k, n: np.arange(n),
    "timestep": lambda k, n: np.arange(n)[:, None] + 1,
    "frame_index": lambda k, n: np.arange(n, dtype=np.uint16) * 4,
    "Timestamp": lambda k, n: np.arange(n, dtype=np.float32) / 30,
    "t": lambda k, n: np.arange(n, dtype=np.float16) / 8,
    "elapsed-steps": lambda k, n: np.arange(n),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", COUNTERS)
def test_columns_of_steps_that_start_again(name: str) -> None:
    a, b, c, d = counted([30, 7, 12, 25], **{name: COUNTERS[name]})
    assert found([a, b, c, d]) == {}
    f = found([join(a, b), join(c, d)])["step-restarts"]
    assert (f.severity, f.count, f.field) == ("warning", 2, f"info/{name}")
    assert places(f) == [(0, 30), (1, 12)]


def test_steps_that_were_cut_out_leave_a_gap_in_times() -> None:
    cut = np.r_[0:5, 8:13]  # of one recording of 13 frames

    def at(k: int, n: int) -> Any:
        return (cut if k == 1 else np.arange(n)).astype(np.float32) / 10

    f = found(counted([8, 10], timestamp=at))["step-gap"]
    assert (f.severity, f.count, places(f)) == ("warning", 1, [(1, 4)])
    jitter = np.random.default_rng(0).normal(scale=0.01, size=400)
    assert "step-gap" not in found(counted([200, 150], time=lambda k, n: np.arange(n) / 10 + jitter[:n]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "of",
    [
        lambda k, n: np.arange(n)[::-1],  # steps that remain
        lambda k, n: 1e9 + 50 * k + np.arange(n) * 0.1,  # time of the day
        lambda k, n: np.sin(np.arange(n) / 5),  # a phase
        lambda k, n: np.arange(n) // 20 * 20 - np.arange(n) % 3 * 0.001,  # blocks
        lambda k, n: np.arange(n, dtype=np.uint64).astype(np.uint8),  # turns over
    ],
)
def test_columns_that_only_have_such_a_name(of: Any) -> None:
    assert not {*found(counted([300, 280, 310, 300], time=of))} & OF_BOUNDARIES


def test_columns_of_steps_that_start_later() -> None:
    episodes = counted([20] * 11, step=lambda k, n: np.arange(n) + 3 * (k == 6))
    f = found(episodes)["step-offset"]
    assert (f.severity, f.count, places(f)) == ("warning", 1, [(6, None)])
    assert "starts at 3, not at 0" in f.text
    assert found(counted([20] * 11, step=lambda k, n: np.arange(n) + k)) == {}  # no start is usual


IDS: dict[str, Any] = {
    "episode_id": lambda k, n: np.full(n, k),
    "traj": lambda k, n: np.full((n, 1), 7.0 - k, np.float32),
    "demo-index": lambda k, n: np.full(n, k, np.int16),
    "trajectory_id": lambda k, n: [f"run {k}"] * n,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
@pytest.mark.parametrize("name", IDS)
def test_columns_of_episodes_that_change(name: str, storage: Any) -> None:
    a, b, c, d = counted([9, 7, 12, 25], **{name: IDS[name]})
    assert "id-changes" not in found([a, b, c, d], storage=storage)
    f = found([a, join(b, c), d], storage=storage)["id-changes"]
    assert (f.severity, f.count, f.field, places(f)) == ("warning", 1, f"info/{name}", [(1, 7)])
    assert f"field:{name}" in f.text


def test_what_is_said_at_the_end_of_an_episode_is_no_id() -> None:
    """Wrappers of environments put the return of an episode there, at its last step."""
    episodes = counted([9, 7, 12, 25], episode=lambda k, n: np.where(np.arange(n) == n - 1, 3.5 + k, 0))
    assert "id-changes" not in found(episodes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("lengths", "code", "at"),
    [
        ([50] * 12 + [100], "length-multiple", [12]),
        ([150] + [50] * 12 + [30], "length-multiple", [0]),
        ([50] * 12 + [100, 70], None, []),  # lengths vary
        ([50] * 8 + [100] * 4, None, []),  # two tasks
        ([5] * 12 + [10], None, []),
        ([17, 23, 31, 12] * 6 + [333], "length-outlier", [24]),
        ([17, 23, 31, 12] * 6 + [140], None, []),
        ([17, 23, 31, 12] * 2 + [333], None, []),  # too few to tell
        ([17, 23, 31, 12] * 6 + [333, 340], None, []),  # not the only one
    ],
)
def test_lengths_of_several_episodes(lengths: list[int], code: str | None, at: list[int]) -> None:
    f = found([walk(k, n) for k, n in enumerate(lengths)])
    assert {*f} & OF_BOUNDARIES == ({code} if code else set())
    if code:
        assert (f[code].severity, places(f[code])) == ("warning", [(k, None) for k in at])


@pytest.mark.thorough
def test_lengths_that_a_time_limit_explains() -> None:
    episodes = [walk(2 * k, n) for k, n in enumerate([17, 23, 31, 12] * 6)]
    assert "length-outlier" not in found([*episodes, walk(1, 500)])  # truncated at a round number
    ds = change_manifest(create("local/x", [*episodes, walk(1, 499)], force=True), env={"max_episode_steps": 600})
    assert "length-outlier" not in found(ds)


def test_rows_of_two_ends_that_nobody_saw() -> None:
    """Six episodes of five steps of which every second one terminates, cut by the flag alone."""
    rows = [(e, t, e % 2 == 0 and t == 4) for e in range(6) for t in range(5)]
    ends = [i for i, (_, _, done) in enumerate(rows) if done]
    episodes = []
    for a, b in zip([0, *(i + 1 for i in ends)], [*(i + 1 for i in ends), len(rows)], strict=True):
        e, t, done = (np.array(x) for x in zip(*rows[a:b], strict=True))
        observation = np.sin(t) + 0.1 * e
        episodes.append(
            {
                "observation": observation[:, None],
                "action": 0.5 * t,
                "next": {"reward": np.ones(b - a), "terminated": done},
                "episode_id": e,
                "step": t,
            }
        )
    f = found(episodes)
    assert places(f["id-changes"]) == places(f["step-restarts"]) == [(1, 5), (2, 5)]


# duplicates


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_episodes_that_are_there_twice(storage: Any) -> None:
    episodes = [walk(k, 30) for k in (0, 1, 2, 3, 1, 4, 0, 1)]
    f = found(episodes, storage=storage)["duplicate"]
    assert (f.severity, f.count, places(f)) == ("warning", 3, [(4, None), (6, None), (7, None)])
    assert "episode 4 is episode 1 again" in f.text


def test_nearly_the_same_is_not_the_same() -> None:
    """Equal first, middle and last steps and lengths, so that the keys agree; other rows differ, in pairs."""
    a, b = walk(0, 30), walk(0, 30)
    b["action"] = b["action"].copy()
    b["action"][3, 1] += 1e-9
    f = found([a, b, b, a, walk(0, 31)])["duplicate"]
    assert places(f) == [(2, None), (3, None)]
    f = found([{**e, "observation": np.full((31, 3), np.nan)} for e in (a, a)])
    assert places(f["duplicate"]) == [(1, None)]  # NaN equals itself


# flags


@pytest.mark.thorough
def test_flags_inside_episodes() -> None:
    episodes = walks()
    episodes[2]["next"] = {"reward": np.ones(30), "terminated": np.isin(np.arange(30), (4, 5, 29))}
    episodes[3]["next"] = {"reward": np.ones(35), "terminated": np.arange(35) == 9}
    f = found(episodes)["terminated-inside"]
    assert (f.severity, f.count, places(f)) == ("warning", 3, [(2, 4), (2, 5), (3, 9)])


@pytest.mark.thorough
def test_what_was_found_in_a_dataset_is_not_said_of_its_parts() -> None:
    flags = np.array([True, True, False, True, False, False])
    inside = {**walk(0, 6), "next": {"reward": np.arange(6.0), "terminated": flags}}
    ds = create("local/x", [inside, walk(1, 6)])
    assert next((f.code, f.count) for f in quick(ds)) == ("terminated-inside", 3)
    part = ds.trim({0: [(0, 1), (1, 3)]}, "part")  # of the second range, the first step is terminated
    (f,) = (f for f in quick(part) if f.code == "terminated-inside")
    assert (f.count, places(f)) == (1, [(1, None)])
    (f,) = (f for f in quick(ds.select(episodes=[1, 0]).save("turned")) if f.code == "terminated-inside")
    assert (f.count, places(f)) == (3, [(1, None)])
    assert "never-flagged" not in {f.code for f in quick(ds.select(episodes=[0, 1]).drop())}  # nothing is left


def test_flags_that_contradict_each_other() -> None:
    ds = create("local/x", walks())
    start, length = ds.episodes["start"], ds.episodes["length"]
    change_rows(ds, "next/truncated", [start[1] + 3, start[2] + length[2] - 1], True)
    change_rows(ds, "next/terminated", [start[4] + length[4] - 1, start[7] + length[7] - 1], [False, True])
    f = found(rlds_cli.open_dataset("local/x"))
    assert (f["truncated-inside"].severity, places(f["truncated-inside"])) == ("error", [(1, 3)])
    assert (f["both-flags"].severity, f["both-flags"].count) == ("note", 2)
    assert places(f["both-flags"]) == [(2, length[2] - 1), (7, length[7] - 1)]
    assert (f["unflagged-end"].severity, places(f["unflagged-end"])) == ("error", [(4, length[4] - 1)])
    assert (f["end-differs"].severity, places(f["end-differs"])) == ("error", [(7, length[7] - 1)])


@pytest.mark.thorough
def test_ends_without_flags() -> None:
    episodes = [{**walk(k), "next": {"reward": np.arange(50.0)}} for k in range(3)]
    assert found(episodes)["never-flagged"].severity == "warning"
    episodes = [{**walk(k), "next": {"reward": np.arange(50.0), "truncated": True}} for k in range(3)]
    assert found(episodes)["never-terminated"].severity == "note"


# limits and counts


def test_episodes_beyond_the_time_limit() -> None:
    ds = change_manifest(create("local/x", walks()), env={"id": "X-v0", "max_episode_steps": 60})
    f = found(ds)["too-long"]
    assert (f.severity, f.count, places(f)) == ("warning", 3, [(9, None), (10, None), (11, None)])


def test_time_limits_stored_as_terminations() -> None:
    episodes = [walk(2 * k, 50) for k in range(4)]
    assert found(episodes)["limit-terminated"].severity == "note"
    ds = change_manifest(create("local/x", [*episodes, walk(1, 7)], force=True), env={"max_episode_steps": 50})
    f = found(ds)["limit-terminated"]
    assert (f.severity, f.count, places(f)) == ("warning", 4, [(k, None) for k in range(4)])
    ds = change_manifest(create("local/x", [*episodes, walk(1, 50)], force=True), env={"max_episode_steps": 50})
    assert "limit-terminated" not in found(ds)


@pytest.mark.thorough
def test_counts_of_the_registry() -> None:
    """Of minari/mujoco/hopper/expert-v0 the registry says so many steps and episodes."""
    entry = rlds_cli.find("minari/mujoco/hopper/expert-v0")[0]
    ds = create("minari/mujoco/hopper/expert-v0", walks())
    report = checks.check(ds)
    texts = [f.text for f in report.findings if f.code == "counts-differ"]
    assert texts == [
        f"{ds.num_steps:,} steps in the dataset; the registry says {entry.num_steps:,}",
        f"12 episodes in the dataset; the registry says {entry.num_episodes:,}",
    ]
    assert "counts" in checks.check(create("minari/mujoco/hopper/expert-v0@few", walks(2))).skipped


# what nobody recorded, and what others know


@pytest.mark.thorough
def test_last_steps_without_a_next_observation() -> None:
    episodes = [{**e, "observation": e["observation"][:-1]} for e in walks()]
    f = found(episodes)["next-unknown"]
    assert (f.severity, f.count) == ("note", 6)  # the others terminate
    assert places(f)[0] == (1, 24)
    assert "564 transitions of 570 steps" in f.text


def goals(*, runs: bool) -> list[dict[str, Any]]:
    episodes = [walk(k, 60) for k in range(6)]
    for e in episodes:
        near = np.isin(np.arange(60), (20, 21, 40) if runs else (20, 40))
        e["next"] = {"reward": near.astype(np.float32), "terminated": near, "truncated": np.arange(60) == 59}
    return episodes


def test_rewards_that_stand_alone() -> None:
    f = found(goals(runs=False))
    assert (f["reward-isolated"].severity, f["reward-isolated"].count) == ("warning", 12)
    assert places(f["reward-isolated"])[:3] == [(0, 20), (0, 40), (1, 20)]
    assert "reward-isolated" not in found(goals(runs=True))


@pytest.mark.thorough
def test_known_defects_stand_with_the_findings_that_show_them() -> None:
    ds = create("d4rl/antmaze-umaze-diverse-v2", goals(runs=False))
    f = found(ds)
    assert "D4RL#199" in f["terminated-inside"].known and f["reward-isolated"].known == ("D4RL#199",)
    assert "goal-flags-single" not in f and "goal-flags" not in f
    others = {d.code for d in rlds_cli.find("d4rl/antmaze-umaze-diverse-v2")[0].defects} - {
        *("goal-flags", "goal-flags-single")
    }
    assert others <= set(f)
    assert all(f[code].severity == "note" and f[code].known for code in others)


# the whole


@pytest.mark.thorough
def test_no_check_minds_a_dataset_with_little_in_it() -> None:
    little = [
        {"observation": np.zeros((2, 0)), "action": np.zeros((1, 0))},
        {"observation": ["a", "b"], "action": np.zeros(1, np.int64)},
        {"observation": np.zeros(1), "next": {"reward": [1]}},
        {"observation": np.zeros((2, 4, 4, 3), np.uint8), "action": np.zeros((1, 2), np.float16)},
    ]
    for episode in little:
        for storage in ("memmap", "zarr"):
            report = checks.check(create("local/x", [episode], storage=storage, force=True))
            assert {f.check for f in report.findings} | {*report.ok} | {*report.skipped} == {*NAMES}
            assert report.errors == 0


@pytest.mark.thorough
def test_findings_of_a_conversion_stand_in_the_manifest() -> None:
    episodes = walks()
    episodes[3]["observation"][7, 1] = np.nan
    episodes[5]["next"] = {"reward": np.ones(45), "terminated": np.isin(np.arange(45), (9, 44))}
    ds = create("local/x", episodes)
    notes = {n["code"]: n for n in ds.manifest.notes}
    assert set(notes) == {"not-finite", "terminated-inside"}
    assert (notes["not-finite"]["severity"], notes["not-finite"]["where"]) == ("error", "episode 3 step 7")
    assert notes["terminated-inside"]["where"] == "episode 5 step 9"
    shown = {f.code: f for f in summarise(ds).findings}
    assert places(shown["not-finite"]) == [(3, 7)]
    assert [f.code for f in summarise(ds).findings] == ["not-finite", "terminated-inside"]  # errors first
    assert create("local/y", walks()).manifest.notes == ()


def test_findings_as_notes() -> None:
    f = Finding("flags", "x", "warning", "text", 3, "action", (FindingPlace(1, 2), FindingPlace(4)), ("D4RL#1",))
    note = json.loads(json.dumps(as_note(f)))
    assert of_note(note) == f
    assert (note["where"], str(f.places[1])) == ("episode 1 step 2", "episode 4")
    reader = of_note({"code": "open-end", "text": "cut", "count": 1, "where": "x.hdf5"})
    assert (reader.check, reader.severity, reader.text) == ("reader", "note", "cut: x.hdf5")


def test_everything_is_json() -> None:
    text = json.dumps(out.plain(checks.check(create("local/x", goals(runs=False)))), allow_nan=False)
    assert json.loads(text)["findings"][0]["places"][0] == {"episode": 0, "step": 20}


@pytest.mark.thorough
@pytest.mark.parametrize("sample", ["pendulum-d4rl", "cartpole-minari", "mountaincar-robohive"])
def test_the_samples_are_in_order(sample: str) -> None:
    report = checks.check(sample_dataset(sample))
    assert (report.errors, report.warnings) == (0, 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("path", "codes"),
    [
        ("d4rl/hopper_random_layout-v2.hdf5", {"open-end", "constant-info"}),
        ("roboset/door_paths.h5", {"constant-info", "limit-terminated"}),
        ("minari/pointmaze/umaze_hdf5-v0", {"no-reward", "constant-info", "never-terminated"}),
        ("minari/taxi/random_hdf5-v0", set()),
    ],
)
def test_archives(path: str, codes: set[str], home: Path) -> None:
    from rlds_cli.look.checks.run import check_archive
    from rlds_cli.make.importing import import_files

    report = check_archive(DATA / path, import_files)
    assert {f.code for f in report.findings} == codes
    assert report.id == str(DATA / path)
    assert not [*(home / "partial").iterdir()]
    assert not (home / "datasets").exists()


# the command


@pytest.mark.thorough
def test_exit_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rlds_cli import cli

    def rlds(*args: str) -> int:
        monkeypatch.setattr("sys.argv", ["rlds", *args])
        try:
            cli.main()
        except SystemExit as e:
            return int(e.code or 0)
        return 0

    create("local/fine", walks())
    create("local/warned", goals(runs=False))
    bad = walks()
    bad[3]["observation"][7, 1] = np.nan
    create("local/bad", bad)
    assert [rlds("check", f"local/{n}") for n in ("fine", "warned", "bad")] == [0, 0, 1]
    lines = capsys.readouterr().out.splitlines()
    assert "error    not-finite  1 value is NaN or infinite in observation   at episode 3 step 7" in lines
    assert lines[-1] == "local/bad: 1 error, 0 warnings, 0 notes"
    assert [rlds("check", f"local/{n}", "--strict") for n in ("fine", "warned", "bad")] == [0, 1, 1]
    capsys.readouterr()
    assert rlds("check", "local/bad", "--json") == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "not-finite"
    shutil.copy(Path(rlds_cli.__file__).parent / "samples/pendulum-d4rl.hdf5", tmp_path / "mine.hdf5")
    assert rlds("check", str(tmp_path / "mine.hdf5"), "-q") == 0
    assert rlds("check", "local/none") == 1


# what is written about them

ROOT = Path(__file__).parents[2]


def codes() -> set[str]:
    """The codes in the sources of the checks."""
    found = set[str]()
    for path in (ROOT / "rlds_cli" / "look" / "checks").glob("*.py"):
        found |= set(re.findall(r'finding\(\s*"([a-z-]+)"', path.read_text()))
    return found


def test_every_code_is_documented() -> None:
    documented = {code for line in _table() for code in _codes_of(line)}
    assert documented == codes() and len(codes()) > 20


def test_every_code_is_in_the_help() -> None:
    from rlds_cli.cli.check import check as command

    listed = re.sub(r"\s+", " ", command.__doc__ or "")
    named = [code for kind in ("Errors", "Warnings", "Notes") for code in _after(listed, kind)]
    assert sorted(named) == sorted(codes())
    for kind in ("error", "warning", "note"):
        of_kind = {c for line in _table() if line.split("|")[3].strip().startswith(kind) for c in _codes_of(line)}
        assert {*_after(listed, f"{kind.title()}s")} - {"saturated"} <= of_kind  # a note, and from 90 % on a warning


def _after(text: str, kind: str) -> list[str]:
    return text.partition(f"{kind}: ")[2].partition(".")[0].split(", ")


def _table() -> list[str]:
    text = (ROOT / "docs" / "guides" / "check.md").read_text()
    return [line for line in text.splitlines() if line.startswith("|")]


def _codes_of(line: str) -> list[str]:
    return re.findall(r"`([a-z-]+)`", line.split("|")[2])


def test_known_defects_show_as_codes_that_there_are() -> None:
    families = json.loads((ROOT / "registry" / "families.json").read_text())
    shown = {code for f in families.values() for d in f.get("defects", {}).values() for code in d.get("shows_as", ())}
    assert shown <= codes() and shown


# -- the episodes of a finding


def damaged(*, at: tuple[int, ...] = (2, 5, 8)) -> list[dict[str, Any]]:
    """Twelve episodes, some of them with more than eight steps of NaN."""
    episodes = walks()
    for k in at:
        episodes[k]["next"]["reward"][3:15] = np.nan
    return episodes


def run_cli(*words: str, capsys: pytest.CaptureFixture[str], exits: int = 0) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rlds", *words])
        try:
            main()
        except SystemExit as e:
            assert (e.code or 0) == exits
    return capsys.readouterr()


@pytest.mark.thorough
def test_a_finding_has_all_its_episodes() -> None:
    ds = create("local/x", damaged())
    f = found(ds)["not-finite"]
    assert (f.num_episodes, f.episodes) == (3, (2, 5, 8))
    assert ds.select(episodes=f.episodes).episodes.index.tolist() == [2, 5, 8]
    shown = {f.code: f for f in summarise(ds).findings}  # of the manifest
    assert shown["not-finite"].episodes == (2, 5, 8)
    page = io.BytesIO()
    write_page(ds, page)
    assert b"3 episodes: 2, 5, 8" in page.getvalue()


def test_the_command_names_the_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    create("local/x", damaged())
    printed = run_cli("check", "local/x", capsys=capsys, exits=1)
    assert "3 episodes: 2, 5, 8" in printed.out
    printed = run_cli("check", "local/x", "--json", capsys=capsys, exits=1)
    first = json.loads(printed.out)["findings"][0]
    assert (first["code"], first["num_episodes"], first["episodes"]) == ("not-finite", 3, [2, 5, 8])
    printed = run_cli("check", "local/x", "--episodes", "not-finite", capsys=capsys)
    assert (printed.out, printed.err) == ("episode in [2, 5, 8]\n", "")
    printed = run_cli("check", "local/x", "--episodes", "not-finite", "--json", capsys=capsys)
    wanted = {"id": "local/x", "code": "not-finite", "num_episodes": 3, "episodes": [2, 5, 8]}
    assert json.loads(printed.out) == {**wanted, "where": "episode in [2, 5, 8]"}
    printed = run_cli("check", "local/x", "--episodes", "jump", capsys=capsys)
    assert printed.out == "episode in []\n" and "nothing was found" in printed.err
    printed = run_cli("check", "local/x", "--episodes", "not-finit", capsys=capsys, exits=1)
    assert printed.out == "" and 'Did you mean "not-finite"' in printed.err


def test_findings_without_episodes_say_so() -> None:
    episodes = walks()
    for e in episodes:
        e["next"] |= {"reward": np.zeros(len(e["action"])), "terminated": False, "truncated": False}
    ds = create("local/x", episodes)
    report = checks.check(ds)
    with pytest.raises(RldsError, match="no-reward names no episodes"):
        checks.episodes_of(report, "no-reward")
    assert checks.episodes_of(report, "never-flagged").where == "0 <= episode <= 11"
    broken = create("local/y", damaged())
    change_manifest(broken, notes=[])
    with pytest.raises(RldsError, match="No rows were read"):
        checks.episodes_of(checks.check("local/y", quick=True), "not-finite")


def test_a_note_lists_a_thousand_episodes_and_counts_all() -> None:
    f = Finding("finite", "x", "error", "text", 3000, None, (FindingPlace(0, 0),), (), 3000, tuple(range(3000)))
    again = of_note(json.loads(json.dumps(as_note(f))))
    assert (again.num_episodes, again.episodes) == (3000, tuple(range(1000)))
    report = dataclasses.replace(checks.check(create("local/x", walks())), findings=(again,))
    with pytest.raises(RldsError, match="not all are recorded"):
        checks.episodes_of(report, "x")


def test_findings_of_a_growing_dataset_count_its_episodes() -> None:
    with rlds_cli.writer("local/run", keep=rlds_cli.Fifo(episodes=8)) as w:
        for e in damaged(at=(2, 5, 9)):
            w.add_episodes([e])
            w.commit()
    ds = rlds_cli.open_dataset("local/run")  # of episodes 4 to 11
    where = checks.episodes_of(checks.check(ds), "not-finite").where
    assert where == "episode in [1, 5]"
    assert all(np.isnan(ds.select(where=where).episode(k)["next/reward"]).any() for k in range(2))


def test_every_code_is_listed() -> None:
    source = "".join(path.read_text() for path in Path(checks.__file__).parent.glob("*.py"))
    of_checks = set(re.findall(r'finding\(\s*"([\w-]+)"', source))
    of_measures = {*(rule.code for rule in RULES), *whole.CODES}
    assert of_checks | of_measures == {*CODES}
    assert not of_checks & of_measures


def test_a_quick_check_of_a_growing_dataset_reads_no_rows(tmp_path: Path) -> None:
    one = {"observation": np.full((5, 2), np.nan, np.float32), "action": np.zeros((4, 1), np.float32)}
    with rlds_cli.writer("local/grows", home=tmp_path) as writer:
        writer.add_episodes([one] * 3)
    ds = rlds_cli.open_dataset("local/grows", home=tmp_path)
    assert "not-finite" in [f.code for f in checks.check(ds).findings]
    assert "not-finite" not in [f.code for f in checks.check(ds, quick=True).findings]
