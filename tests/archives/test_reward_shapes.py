"""Rewards that are vectors, or several by name, from `create` to the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_cli import create
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidEpisode, NoReward
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Slice
from rlds_cli.look.checks.run import check
from rlds_cli.look.report import compare, describe_episode, summarise, write_page

STEPS = np.arange(4.0)
REWARDS: dict[str, Any] = {
    "vector": np.stack([STEPS, -STEPS, 0 * STEPS], 1),
    "zeros": np.zeros((4, 3)),
    "ones": np.ones((4, 2)),
    "two-levels": np.stack([0 * STEPS, 0 * STEPS + 1], 1),
    "none": np.zeros((4, 0)),
    "nested": {"speed": STEPS, "energy": -STEPS},
    "nested-zeros": {"speed": 0 * STEPS, "energy": 0 * STEPS},
}


def dataset(reward: Any) -> Dataset:
    flags = {"terminated": [0, 1, 0, 1]}
    one = {"observation": np.arange(5.0)[:, None], "action": np.ones((4, 1)), "next": {"reward": reward, **flags}}
    return create("local/x", [one, one])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", REWARDS)
def test_everything_reads_them(kind: str, tmp_path: Path) -> None:
    ds = dataset(REWARDS[kind])
    check(ds)
    summarise(ds)
    describe_episode(ds, 1)
    write_page(ds, tmp_path / "page.html")
    assert compare(ds, ds).same and verify("local/x").ok
    assert "total_reward" not in ds.episodes
    for layout in ("ted", "d4rl", "ogbench"):
        ds.to_numpy(layout)  # type: ignore[arg-type]
    again = create("local/y", (ds.episode(k) for k in range(2)))
    assert again.fingerprint == ds.fingerprint


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "code"),
    [("zeros", "no-reward"), ("ones", "constant-reward"), ("two-levels", "constant-reward"), ("vector", None)],
)
def test_constant_vectors_are_found(kind: str, code: str | None) -> None:
    found = {f.code: f.text for f in check(dataset(REWARDS[kind])).findings if f.field == "next/reward"}
    assert set(found) == ({code} if code else set())
    assert kind != "two-levels" or found["constant-reward"] == "next/reward is the same in every step"


@pytest.mark.thorough
def test_batches_hold_them() -> None:
    vector = dataset(REWARDS["vector"])
    assert vector[:]["next", "reward"].tolist() == 2 * REWARDS["vector"].tolist()
    batch = next(iter(Loader(vector, 2, window=Slice(3))))
    assert batch["next", "reward"].shape == (2, 3, 3)
    assert next(iter(Loader(vector, 2))).sarsd()[2].shape == (2, 3)


def test_several_rewards_by_name_are_a_batch_of_them() -> None:
    ds = dataset(REWARDS["nested"])
    *_, reward, _, terminated = ds[:].sarsd()
    assert reward["speed"].ravel().tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert terminated.dtype == np.float64
    with pytest.raises(NoReward, match="several rewards and no next/reward: next/reward/energy, next/reward/s"):
        ds.column("next/reward")


def test_a_reward_is_a_number() -> None:
    for reward, message in ((np.ones(4, complex), "next/reward is complex128"), (["a"] * 4, "next/reward is text")):
        with pytest.raises(InvalidEpisode, match=message):
            dataset(reward)
