"""Rows in the wrong place: false ends, observations of the episode before, early rewards, rows never filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.look import checks
from rlds_cli.look.checks.findings import Finding

Episode = dict[str, Any]


def found(episodes: list[Episode]) -> dict[str, Finding]:
    ds = rlds_cli.create("local/x", episodes, force=True)
    return {f.code: f for f in checks.check(ds).findings}


def pieces(lengths: list[int], *, apart: bool = False, seed: int = 0) -> list[Episode]:
    """One random walk of 3 elements, divided, whose first one drifts; or walks that begin at places of their own."""
    rng = np.random.default_rng(seed)
    steps = rng.normal((0.1, 0, 0), 0.1, (sum(lengths) + 1, 3))
    walk, made, at = np.cumsum(steps, axis=0), list[Episode](), 0
    for n in lengths:
        moved = rng.uniform(-50, 50, 3) if apart else np.zeros(3)
        made.append({"observation": walk[at : at + n] + moved, "action": steps[at + 1 : at + n + 1]})
        at += n
    return made


def test_a_divided_trajectory_continues() -> None:
    f = found(pieces([30, 41, 25, 38, 40, 33]))["continues"]
    assert (f.severity, f.count) == ("note", 5)
    assert f.episodes == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("apart", [True, False])
def test_episodes_that_begin_anew_do_not_continue(apart: bool) -> None:
    """They begin elsewhere; or all at the place where all end, which tells nothing."""
    made = pieces([40] * 8, apart=True)
    if not apart:
        out = np.sin(np.linspace(0, np.pi, 40))[:, None] * np.arange(1, 4)
        for k, e in enumerate(made):
            e["observation"] = out + np.random.default_rng(k).normal(0, 0.01, (40, 3))
    assert "continues" not in found(made)


def test_a_selection_need_not_continue() -> None:
    ds = rlds_cli.create("local/x", pieces([30, 41, 25, 38, 40, 33]))
    chosen = ds.select(episodes=[0, 1, 2, 3]).save("few")
    assert "continues" not in {f.code for f in checks.check(chosen).findings}


def test_observations_from_before_the_reset() -> None:
    made = pieces([30] * 8, apart=True)
    for a, b in ((1, 2), (3, 4), (6, 7)):
        made[b]["observation"][0] = made[a]["observation"][-1]
    f = found(made)["stale-observation"]
    assert (f.severity, f.episodes, f.field) == ("warning", (2, 4, 7), "observation")


def test_a_camera_from_before_the_reset() -> None:
    """The first picture is the last one of the episode before, in every episode, and the state is not."""
    made, rng = pieces([6] * 5, apart=True), np.random.default_rng(1)
    for k, e in enumerate(made):
        picture = rng.integers(0, 255, (6, 8, 8, 3), np.uint8)
        if k:
            picture[0] = made[k - 1]["observation"]["top"][-1]
        e["observation"] = {"q": e["observation"], "top": picture}
    f = found(made)["stale-observation"]
    assert (f.field, f.episodes) == ("observation/top", (1, 2, 3, 4))


def test_states_that_all_episodes_share_are_not_stale() -> None:
    made = pieces([30] * 8, apart=True)
    for e in made:
        e["observation"][[0, -1]] = 0
    assert "stale-observation" not in found(made)


def visits(*, early: bool) -> list[Episode]:
    """Straight ways in all directions, which cross the places within 1 of (2, 0); a reward tells so."""
    made = list[Episode]()
    for k in range(12):
        rng = np.random.default_rng(k)
        ahead = np.array([np.cos(k), np.sin(k)])
        aside = rng.uniform(-0.8, 0.8) * ahead[::-1] * [-1, 1]
        at = [2, 0] + aside + ahead * np.cumsum(rng.uniform(0.05, 0.15, 61))[:, None] - 3 * ahead
        near = np.linalg.norm(at - [2, 0], axis=1) <= 1
        reward = near[:-1] if early else near[1:]
        made.append({"observation": at, "action": np.zeros((60, 1)), "next": {"reward": reward.astype(np.float32)}})
    return made


def test_rewards_that_stand_a_step_too_early() -> None:
    f = found(visits(early=True))["early-reward"]
    assert (f.severity, f.field) == ("warning", "next/reward")
    assert "early-reward" not in found(visits(early=False))


def test_rows_that_were_never_filled() -> None:
    made = pieces([30] * 6, apart=True)
    for k, rows in ((2, slice(10, 15)), (4, slice(28, 30)), (5, slice(0, 3))):
        made[k]["observation"][rows], made[k]["action"][rows] = 0, 0
    f = found(made)["zero-rows"]
    assert (f.severity, f.count, f.episodes) == ("warning", 8, (2, 5))
    assert str(f.places[0]) == "episode 2 step 10"


def test_what_stays_at_zero_is_no_empty_row() -> None:
    made = pieces([30] * 6, apart=True)
    for e in made:
        e["observation"][10:15] = 0  # and the actions are not
        e["observation"][20:], e["action"][20:22] = 0, 0  # two in a row
    assert "zero-rows" not in found(made)


def test_flags_that_come_in_runs() -> None:
    """A terminal at every step within the goal, each of which ends an episode; a bandit has no other episodes."""
    made = [{**e, "next": {"terminated": np.ones(1, bool)}} for e in pieces([1] * 20)]
    assert "flags-in-runs" not in found(made)
    long = pieces([40, 40], apart=True)
    for e in long:
        e["next"] = {"terminated": np.arange(40) == 39}
    f = found([long[0], *made[:10], long[1], *made[10:]])["flags-in-runs"]
    assert (f.severity, f.count) == ("warning", 20)
    assert f.episodes == (*range(1, 11), *range(12, 22))
