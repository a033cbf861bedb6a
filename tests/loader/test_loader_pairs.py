"""Pairs of windows of one task, for learning from preferences."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from reference import samplers

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader import Episode, Goals, Loader, Member, Mixture, Pairs, Slice, Transition

LENGTHS = (5, 4, 6, 3, 4, 7, 2, 5, 4)
TASKS = ("a", "a", "b", "c", "c", None, "d", "a", "e")  # b and e have one episode each; that of d is too short
LENGTH = 3
COUNTS = [max(0, n - LENGTH + 1) for n in LENGTHS]


def made(k: int, task: str | None) -> dict[str, Any]:
    t = np.arange(LENGTHS[k] + 1.0)
    about = {"task": task, "level": k % 2, "score": 0.5 + k % 2} if task else {"level": k % 2}
    return {
        "observation": np.stack([np.full(len(t), k), t], 1),
        "action": t[:-1, None],
        "next": {"reward": t[:-1]},
        "text": ["go"] * LENGTHS[k],
        "episode": about,
    }


@pytest.fixture
def ds(home: object) -> Dataset:
    return rlds_cli.create("local/tasks", [made(k, task) for k, task in enumerate(TASKS)])


def load(ds: Any, size: int = 8, **options: Any) -> Loader:
    how = {"window": Slice(LENGTH), "sampler": Pairs(by="task"), "fields": [..., "episode", "step"], "backend": "numpy"}
    return Loader(ds, size, **{**how, **options})


def drawn(batch: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Episode and first step of both windows."""
    episode, step = batch["episode"][..., 0].tolist(), batch["step"][..., 0].tolist()
    return [((a, s), (b, t)) for (a, b), (s, t) in zip(episode, step, strict=True)]


@pytest.mark.thorough
def test_both_windows_are_in_one_batch(ds: Dataset) -> None:
    batch = next(iter(load(ds, fields=["all", "episode", "step"])))
    assert batch["observation"].shape == (8, 2, LENGTH, 2) and batch["text"].shape == batch["mask"].shape == (8, 2, 3)
    assert batch["next", "reward"].shape == (8, 2, LENGTH, 1)
    for i, pair in enumerate(drawn(batch)):
        for side, (k, first) in enumerate(pair):
            assert batch["observation"][i, side].tolist() == [[k, first + j] for j in range(LENGTH)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by", ["task", None, "level", "score"])
def test_every_pair_has_the_chance_of_the_reference(ds: Dataset, by: str | None) -> None:
    known = {"task": TASKS, None: [0] * 9, "level": [k % 2 for k in range(9)]}
    scored = [k % 2 if task else None for k, task in enumerate(TASKS)]  # NaN where there is none
    chances = samplers.pairs(COUNTS, known.get(by, scored))
    assert sum(chances.values()) == pytest.approx(1)
    loader = load(ds, 20_000, sampler=Pairs(by=by), fields=["action", "episode", "step", "probability"])
    batch = next(iter(loader))
    pairs = drawn(batch)
    assert set(pairs) <= set(chances)
    assert batch["probability"][:, 0, 0] == pytest.approx([chances[p] for p in pairs], rel=1e-6)
    assert (batch["probability"] == batch["probability"][:, :1, :1]).all()
    often = Counter(pairs)
    square = sum((often[p] - 20_000 * chance) ** 2 / (20_000 * chance) for p, chance in chances.items())
    free = len(chances) - 1
    assert abs(square - free) < 5 * (2 * free) ** 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(n_step=2), Slice(2, after=1), Episode()])
def test_with_other_windows_and_goals(ds: Dataset, window: Any) -> None:
    options = {"window": window, "fields": [..., "episode", Goals("goal")]}
    batch = next(iter(load(ds, 6, backend="torch", **options)))
    assert {x.shape[:2] for _, x in batch.leaves()} == {(6, 2)}
    episodes = batch["episode"].reshape(6, 2, -1)[..., 0].tolist()
    assert all(TASKS[a] == TASKS[b] is not None for a, b in episodes)
    goal, mine = batch["goal"].reshape(6, 2, -1, 2)[..., 0], torch.tensor(episodes)[..., None]
    assert (goal == mine).all()  # of the window's own future
    td = batch.tensordict()
    assert td.batch_size[:2] == (6, 2) and td["done"].shape == (*td.batch_size, 1)


def test_a_pair_is_a_function_of_seed_epoch_and_number(ds: Dataset) -> None:
    whole = [p for b in itertools.islice(load(ds, 4, seed=3), 6) for p in drawn(b)]
    assert [p for b in itertools.islice(load(ds, 3, seed=3, prefetch=0), 8) for p in drawn(b)] == whole
    loader = load(ds, 4, seed=3)
    next(iter(loader))
    loader.seek(2)
    state = loader.state_dict()
    resumed = load(ds, 2, seed=3)
    resumed.load_state_dict(state)
    assert [p for b in itertools.islice(resumed, 4) for p in drawn(b)] == whole[8:16]
    assert [p for b in itertools.islice(load(ds, 4, seed=4), 6) for p in drawn(b)] != whole
    for rank in range(2):
        part = load(ds, 4, seed=3, rank=rank, world_size=2)
        assert [p for b in itertools.islice(part, 6) for p in drawn(b)] == whole[rank::2]


@pytest.mark.thorough
def test_functions_of_a_batch_see_pairs_and_memory_on_a_device_holds_them(ds: Dataset) -> None:
    seen = []

    def label(batch: Any) -> None:
        seen.append(batch["action"].shape)
        batch["label"] = batch["next", "reward"].sum((2, 3)).argmax(1)

    for options in ({}, {"memory": "device", "device": "cpu"}):
        batch = next(iter(load(ds, 4, backend="torch", transform=label, **options)))
        returns = batch["observation"][..., 1].sum(2)  # the reward is the step
        assert batch["label"].tolist() == returns.argmax(1).tolist()
    assert set(seen) == {(4, 2, LENGTH, 1)}


@pytest.mark.thorough
def test_growing_datasets(ds: Dataset) -> None:
    with rlds_cli.writer("local/grows", like=ds) as w:
        w.add_episodes([made(0, "a"), made(1, "a")])
        w.commit()
        loader = load("local/grows", 8, live=True)
        assert {k for pair in drawn(next(iter(loader))) for k, _ in pair} == {0, 1}


@pytest.mark.thorough
def test_selections_number_their_own_episodes(ds: Dataset) -> None:
    batch = next(iter(load(ds.select(episodes=[3, 4, 8]), 8)))
    assert {(a, b) for (a, _), (b, _) in drawn(batch)} <= {(0, 1), (1, 0), (2, 2)}


def test_what_has_no_pairs_is_refused(ds: Dataset) -> None:
    with pytest.raises(InvalidArgument, match="no task has two windows"):
        load(ds.select(episodes=[0]), window=Episode())
    with pytest.raises(UnknownField, match=r'"tsk".*"task"'):
        load(ds, sampler=Pairs(by="tsk"))
    with pytest.raises(InvalidArgument, match="bucket"):
        load(ds, window=Episode(bucket=2))
    for mixture in (
        Mixture({"a": ds, "b": ds}),
        Mixture({"a": Member(ds, sampler=Pairs()), "b": Member(ds, sampler=Pairs())}),
    ):
        with pytest.raises(InvalidArgument, match="2 windows are of one dataset"):
            load(mixture)
