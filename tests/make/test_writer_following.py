"""Steps like those before are taken on a short way; what is recorded is what was given, also where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import InvalidEpisode
from rlds_cli.ted import Field

FIELDS = (
    Field("observation", "float32", (3,), "both"),
    Field("action", "int64"),
    Field("next/reward", "float32", (), "next"),
    Field("next/terminated", "bool", (), "next"),
    Field("next/truncated", "bool", (), "next"),
)


@pytest.mark.parametrize("fields", [None, FIELDS])
@pytest.mark.parametrize("with_next", [False, True])
def test_a_long_episode_of_numbers_of_python_and_of_numpy(tmp_path: Path, fields: Any, with_next: bool) -> None:
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(301, 3)).astype(np.float32)
    seen[7, 1], seen[9] = np.nan, np.inf
    rewards = [float(r) for r in rng.normal(size=300).astype(np.float32)]
    rewards[3], rewards[11], rewards[12] = float("nan"), float("inf"), 3e38
    actions = [int(a) if k % 3 else np.int64(a) for k, a in enumerate(rng.integers(-9, 9, 300))]
    with rlds_cli.writer("local/run", fields=fields, home=tmp_path) as w:
        view = np.empty(3, np.float32)
        for t in range(300):
            view[:] = seen[t]  # the same array again and again, as some environments give it
            after = seen[t + 1] if with_next or t == 299 else None
            w.add(view, actions[t], rewards[t], False, t == 299, next_observation=after)
    e = w.dataset().episode(0)
    np.testing.assert_array_equal(e["observation"], seen[:-1], strict=True)
    np.testing.assert_array_equal(e["next/observation"], seen[1:], strict=True)
    assert e["action"].tolist() == [int(a) for a in actions]
    np.testing.assert_array_equal(e["next/reward"][:, 0], np.array(rewards, np.float32 if fields else np.float64))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observation": np.zeros(4, np.float32)}, "shape"),
        ({"observation": np.zeros(3, np.float64)}, "float64"),
        ({"action": 2.5}, "2.5"),
        ({"action": 1 << 63}, "int64"),
        ({"reward": 1e39}, "1e"),
        ({"reward": "much"}, "text"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_step_of_another_kind_is_refused_and_the_episode_goes_on(tmp_path: Path, wrong: Any, message: str) -> None:
    right = {"observation": np.ones(3, np.float32), "action": 1, "reward": 1.0}
    with rlds_cli.writer("local/run", fields=FIELDS, home=tmp_path) as w:
        w.add(**right)
        w.add(**right)
        with pytest.raises(InvalidEpisode, match=message):
            w.add(**(right | wrong))
        w.add(**right, truncated=True)
    ds = w.dataset()
    assert ds.episodes["length"].tolist() == [3] and (ds.column("action")[:3] == 1).all()


@pytest.mark.thorough
def test_an_observation_that_next_observation_did_not_say_is_refused(tmp_path: Path) -> None:
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    with rlds_cli.writer("local/run", fields=FIELDS, home=tmp_path) as w:
        w.add(zeros, 0, 0.0, next_observation=zeros)
        w.add(zeros, 0, 0.0, next_observation=ones)
        with pytest.raises(InvalidEpisode, match="not what next_observation said after step 1"):
            w.add(zeros, 0, 0.0)
        w.add(ones, 0, 0.0, truncated=True)
    assert w.dataset().episodes["length"].tolist() == [3]
