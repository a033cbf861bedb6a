"""`Loader(scalars="B")`: rewards, flags and other floats without the axis of one element; values and order stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import (
    Goals,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    Pairs,
    Prioritized,
    ReturnToGo,
    Reward,
    Slice,
    Transition,
)

STEPS = 6


def episode(number: int) -> dict[str, Any]:
    """Six steps; the reward of step t of episode k is 10 k + t, and actions are vectors of one number."""
    t = np.arange(STEPS + 1.0, dtype=np.float32) + 10 * number
    return {
        "observation": np.stack([t, -t], 1),
        "action": t[:-1, None] + 0.5,
        "info": {"speed": t[:-1] * 2},
        "next": {"reward": t[:-1], "terminated": np.arange(STEPS) == STEPS - 1},
    }


@pytest.fixture
def ds(home: object) -> Dataset:
    return rlds_cli.create("local/flat", [episode(k) for k in range(3)])


EXTRA = (..., "info", "step", "episode", ReturnToGo(), Goals("goal", horizon=1, of="info/speed"), "previous/reward")
FLAT = ("info/speed", "next/reward", "next/terminated", "next/done", "return_to_go", "goal", "goal_distance")


def check(batch: Any, lead: tuple[int, ...]) -> None:
    """Compare every value with the episodes that were stored."""
    assert batch["observation"].shape == (*lead, 2) and batch["action"].shape == (*lead, 1)
    k, t = (np.asarray(batch[name], np.float64) for name in ("episode", "step"))
    assert k.shape == t.shape == lead
    to_go = sum(np.where(t <= s, 10 * k + s, 0) for s in range(STEPS))
    goal = 2 * (10 * k + np.minimum(t + 1, STEPS - 1))
    for name, expected in (
        ("next/reward", 10 * k + t),
        ("info/speed", 2 * (10 * k + t)),
        ("next/terminated", t == STEPS - 1),
        ("next/done", t == STEPS - 1),
        ("previous/reward", np.where(t > 0, 10 * k + t - 1, 0)),
        ("return_to_go", to_go),
        ("goal", goal),
        ("goal_distance", np.minimum(1, STEPS - 1 - t)),
    ):
        given = np.asarray(batch[name])
        assert given.shape == lead, name
        if len(lead) == 1 or not name.startswith("goal"):  # a window has one goal
            assert given.tolist() == expected.tolist(), name


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_scalars_of_transitions_and_windows(ds: Dataset, backend: Any) -> None:
    for window, lead in ((Transition(), (7,)), (Slice(3), (7, 3))):
        loader = Loader(ds, 7, window=window, fields=EXTRA, backend=backend, scalars="B")
        batches = iter(loader)
        check(next(batches), lead)
        check(next(batches), lead)


def test_jax_gets_the_same_shapes(ds: Dataset) -> None:
    pytest.importorskip("jax")
    check(next(iter(Loader(ds, 7, fields=EXTRA, backend="jax", scalars="B"))), (7,))


def test_a_device_gets_the_same_shapes(ds: Dataset) -> None:
    for window, lead in ((Transition(), (7,)), (Slice(3), (7, 3))):
        resident = Loader(ds, 7, window=window, fields=EXTRA, memory="device", device="cpu", scalars="B")
        check(next(iter(resident)), lead)


def test_order_state_and_values_are_those_of_the_default(ds: Dataset) -> None:
    flat, usual = Loader(ds, 4, scalars="B", seed=3), Loader(ds, 4, seed=3)
    pairs = zip(iter(flat), iter(usual), strict=False)
    for a, b in (next(pairs) for _ in range(5)):
        assert torch.equal(a["observation"], b["observation"])
        assert torch.equal(a["next/reward"], b["next/reward"].squeeze(1))
    assert flat.state_dict() == usual.state_dict()
    usual.load_state_dict(flat.state_dict())
    assert torch.equal(next(iter(usual))["next/reward"].squeeze(1), next(pairs)[0]["next/reward"])


def test_sarsd_gives_a_target_without_a_silent_matrix(ds: Dataset) -> None:
    s, a, r, s2, terminated = next(iter(Loader(ds, 5, scalars="B"))).sarsd()
    log_prob = torch.distributions.Normal(a, 1.0).log_prob(a).sum(-1)  # [5], as of a policy
    assert (log_prob * r).shape == (r + (1 - terminated) * s2[:, 0]).shape == (5,)
    assert r.tolist() == s[:, 0].tolist() and terminated.dtype == r.dtype


def test_vectors_of_rewards_stay_vectors(home: object) -> None:
    reward = np.arange(12.0).reshape(6, 2)
    made = {"observation": np.zeros((7, 1)), "action": np.zeros((6, 1)), "next": {"reward": reward}}
    ds = rlds_cli.create("local/vectors", [made])
    _, _, r, _, terminated = next(iter(Loader(ds, 3, scalars="B"))).sarsd()
    assert r.shape == (3, 2) and terminated.shape == (3, 1)


def test_transforms_and_sums_of_n_steps(ds: Dataset) -> None:
    transform = [Reward(shift=-1), Normalize(ds, "info/speed", eps=0)]
    window = Transition(n_step=2, gamma=0.5)
    loader = Loader(ds, 18, window=window, fields=EXTRA[:4], transform=transform, scalars="B", dtype="float64")
    batch = next(iter(loader))
    k, t = (batch[name].double() for name in ("episode", "step"))
    last = t == STEPS - 1
    second = torch.where(last, 0.0, 0.5 * (10 * k + t))  # 10 k + t + 1, and the shift
    assert torch.allclose(batch["next/reward"], 10 * k + t - 1 + second)
    assert batch["next/discount"].tolist() == torch.where(last, 0.5, 0.25).tolist()
    assert batch["steps_to_next_obs"].tolist() == torch.where(last, 1, 2).tolist()
    speeds = np.concatenate([episode(i)["info"]["speed"] for i in range(3)]).astype(np.float64)
    assert torch.allclose(batch["info/speed"], (2 * (10 * k + t) - speeds.mean()) / speeds.std())


def test_functions_of_a_batch_see_the_shapes_that_come_out(ds: Dataset) -> None:
    seen = []

    def double(batch: Any) -> None:
        seen.append(batch["next/reward"].shape)
        batch["next/reward"] = batch["next/reward"] * 2

    batch = next(iter(Loader(ds, 4, transform=double, scalars="B")))
    assert seen[0] == (4,) and batch["next/reward"].tolist() == (2 * batch["observation"][:, 0]).tolist()


def test_offsets_pairs_and_priorities(ds: Dataset) -> None:
    window = Offsets({"next/reward": (-1, 0)})
    batch = next(iter(Loader(ds, 4, window=window, fields=EXTRA[:4], scalars="B")))
    rows = batch["step"][:, None] + torch.tensor([-1, 0])
    assert torch.equal(batch["next/reward"], (10 * batch["episode"][:, None] + rows.clip(0)).float())
    pairs = next(iter(Loader(ds, 4, window=Slice(3), sampler=Pairs(), scalars="B")))
    assert pairs["next/reward"].shape == (4, 2, 3)
    loader = Loader(ds, 4, sampler=Prioritized(), scalars="B")
    batch = next(iter(loader))
    assert batch["weight"].tolist() == [1.0] * 4
    loader.update_priorities(batch, batch["weight"] * 3)


def test_tensordicts_have_the_axis_that_losses_of_torchrl_need(ds: Dataset) -> None:
    pytest.importorskip("tensordict")
    for window, lead in ((Transition(), (4,)), (Slice(3), (4, 3))):
        batch = next(iter(Loader(ds, 4, window=window, fields=EXTRA[:4], sampler=Prioritized(), scalars="B")))
        for of in (batch, batch.clone(), batch.numpy()):
            td = of.tensordict()
            assert td.batch_size == lead and td["action"].shape == (*lead, 1)
            assert td["next", "reward"].shape == td["next", "terminated"].shape == td["done"].shape == (*lead, 1)
            assert td["step"].shape == td["priority_weight"].shape == lead
            assert td["next", "reward"][..., 0].tolist() == batch["next/reward"].tolist()


def test_members_of_a_mixture(ds: Dataset) -> None:
    """A field is [B] only if it is a scalar of all members that have it."""
    other = episode(7)
    other["info"]["speed"] = other["info"]["speed"][:, None]
    vectors = rlds_cli.create("local/others", [other])
    mixed = Loader(Mixture({"a": ds, "b": vectors}), 6, fields=["info", "next/reward", "source"], scalars="B")
    batch = next(iter(mixed))
    assert batch["next/reward"].shape == (6,) and batch["info/speed"].shape == (6, 1)
    assert batch["info/speed"][:, 0].tolist() == (2 * batch["next/reward"]).tolist()
    alike = Mixture({"a": ds, "b": Member(ds, transform=Reward(2))})
    batch = next(iter(Loader(alike, 6, fields=["info", "next/reward", "source"], scalars="B")))
    factor = torch.where(batch["source"] == 1, 1.0, 0.5)
    assert batch["info/speed"].shape == (6,)
    assert batch["next/reward"].tolist() == (factor * batch["info/speed"]).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_of_a_data_loader(ds: Dataset, workers: int) -> None:
    pytest.importorskip("tensordict")
    loader = Loader(ds, 4, scalars="B", steps=2)
    for batch in torch.utils.data.DataLoader(loader.as_torch(), batch_size=None, num_workers=workers):
        assert batch["next/reward"].tolist() == batch["observation"][:, 0].tolist()
        assert batch.tensordict()["next", "reward"].shape == (4, 1)
        assert batch.map(lambda x: x * 1).tensordict().batch_size == (4,)


def test_other_values_are_refused(ds: Dataset) -> None:
    with pytest.raises(InvalidArgument, match=r"scalars='B,1'"):
        Loader(ds, 4, scalars="B,1")  # type: ignore[arg-type]
