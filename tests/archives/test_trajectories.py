"""`create` of what holds several trajectories, and of trajectories whose final observation is not known."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlds_cli import create
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidEpisode
from rlds_cli.loader import Episode, Loader, Sequential, Shuffled, Slice
from rlds_cli.preprocess import run

ENDS = ("terminated", "truncated", "cut")


def walk(start: int, steps: int) -> np.ndarray:
    """T+1 observations that no other episode has."""
    return np.arange(start, start + steps + 1, dtype=np.float32)[:, None]


def episode(start: int, steps: int, end: str = "cut", *, observed: bool = True) -> dict[str, Any]:
    flags = {} if end == "cut" else {end: True}
    return {
        "observation": walk(start, steps)[: steps + observed],
        "action": np.full((steps, 2), start, np.float32),
        "next": {"reward": np.arange(steps, dtype=np.float32), **flags},
    }


@pytest.fixture
def unknown() -> Dataset:
    """Four episodes of 10 steps without a final observation, one of them terminated: 37 transitions."""
    ends = ("terminated", "truncated", "cut", "cut")
    return create("local/unknown", [episode(100 * k, 10, end, observed=False) for k, end in enumerate(ends)])


def content(ds: Dataset) -> list[Any]:
    e = ds.episodes
    return [[e[name].tolist() for name in ("length", "num_observed", "end")], ds.column("observation").tolist()]


def collected(lengths: list[tuple[int, int, bool]], ids: list[int] | None = None) -> TensorDict:
    """What a collector gives: (start, steps, done) of each trajectory, one behind the other."""
    observations = [walk(start, steps) for start, steps, _ in lengths]
    n = sum(steps for _, steps, _ in lengths)
    done = torch.zeros(n, 1, dtype=torch.bool)
    done[np.cumsum([steps for _, steps, _ in lengths])[[d for *_, d in lengths]] - 1] = True
    td = TensorDict(
        {
            "observation": torch.as_tensor(np.concatenate([o[:-1] for o in observations])),
            "action": torch.zeros(n, 2),
            **{flag: torch.zeros(n, 1, dtype=torch.bool) for flag in ("done", "terminated", "truncated")},
            "next": {
                "observation": torch.as_tensor(np.concatenate([o[1:] for o in observations])),
                "reward": torch.arange(n, dtype=torch.float32)[:, None],
                "done": done,
                "terminated": done.clone(),
                "truncated": torch.zeros(n, 1, dtype=torch.bool),
            },
        },
        batch_size=[n],
    )
    if ids is not None:
        td["collector", "traj_ids"] = torch.as_tensor(np.repeat(ids, [steps for _, steps, _ in lengths]))
    return td


# -- episodes of a dataset


@pytest.mark.thorough
def test_the_filler_of_an_unknown_final_observation_is_not_recorded(unknown: Dataset) -> None:
    again = create("local/again", (unknown.episode(k) for k in range(4)))
    assert again.num_transitions == unknown.num_transitions == 37
    assert again.episodes["end"].tolist() == ["terminated", "truncated", "cut", "cut"]
    assert "next/observed" not in again.schema
    assert again.fingerprint == unknown.fingerprint


@pytest.mark.thorough
def test_tensordicts_with_next_observed_have_an_unknown_final_observation(unknown: Dataset) -> None:
    again = create("local/again", (unknown.episode(k).tensordict() for k in range(4)))
    assert again.num_transitions == 37 and set(again.schema) == set(unknown.schema)
    assert content(again)[1] == content(unknown)[1]


@pytest.mark.thorough
def test_an_episode_that_was_changed_keeps_what_was_not(unknown: Dataset) -> None:
    def changed() -> Iterator[Any]:
        for k in range(4):
            ep = unknown.episode(k)
            ep["action"] = ep["action"] * 2
            ep["note"] = ["x"] * 10
            yield ep

    again = create("local/again", changed())
    assert content(again) == content(unknown)
    assert again.column("action").tolist() == (2 * unknown.column("action")).tolist()
    assert again.episode(0)["note"].tolist() == ["x"] * 10


def test_a_part_of_an_episode_is_an_episode_of_its_own(unknown: Dataset) -> None:
    again = create("local/again", [unknown.episode(3).map(lambda v: v[:6]), unknown.episode(2).map(lambda v: v[4:])])
    assert again.episodes["end"].tolist() == ["cut", "truncated"]
    assert again.episodes["num_observed"].tolist() == [7, 6]
    assert again.column("observation")[:7, 0].tolist() == [300, 301, 302, 303, 304, 305, 306]


def test_a_batch_knows_its_episode_through_copies_and_pickles(unknown: Dataset) -> None:
    batch = unknown.episode(2)
    for one in (batch.copy(), batch.clone(), batch.numpy(), batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        assert create("local/one", [one], force=True).episodes["end"].tolist() == ["cut"]
    assert batch.origin is not None and batch.origin.number == 2
    assert unknown[:3].origin is None
    kept = pickle.dumps(batch)
    shutil.rmtree(unknown.path.parent)
    assert pickle.loads(kept).origin is None


def test_an_episode_of_a_dataset_may_have_fields_called_episode() -> None:
    ds = run(create("local/x", [episode(0, 3), episode(10, 3)]), _with_episode, "named")
    assert {"episode/number", "episode/step"} <= set(ds.schema)
    assert create("local/y", (ds.episode(k) for k in range(2))).fingerprint == ds.fingerprint


def _with_episode(ep: dict[str, Any]) -> dict[str, Any]:
    return {**ep, "episode/number": np.full(3, 7), "episode/step": np.arange(3)}


@pytest.mark.thorough
def test_columns_are_added_to_episodes_of_a_dataset(unknown: Dataset) -> None:
    def labelled() -> Iterator[Any]:
        for k in range(4):
            ep = unknown.episode(k)
            ep["episode"] = {"task": f"task {k % 2}"}
            yield ep

    again = create("local/again", labelled())
    digests = [{f.name: f.digest for f in of.manifest.fields} for of in (again, unknown)]
    assert digests[0] == digests[1] and again.fingerprint != unknown.fingerprint
    assert again.episodes["task"].tolist() == ["task 0", "task 1", "task 0", "task 1"]
    kept = create("local/kept", Loader(again, 2, window=Episode(), sampler=Sequential()))
    assert kept.episodes["task"].tolist() == again.episodes["task"].tolist()


@pytest.mark.thorough
def test_terminated_steps_inside_do_not_divide_an_episode() -> None:
    inside = {**episode(0, 4), "next": {"terminated": [0, 1, 0, 1]}}
    ds = create("local/x", [inside, inside])
    for k, given in enumerate(([ds.episode(0), ds.episode(1)], [ds.episode(k).tensordict() for k in range(2)])):
        assert create(f"local/y{k}", given).fingerprint == ds.fingerprint
    window = next(iter(Loader(ds, 2, window=Episode(), sampler=Sequential(), dtype=None)))
    assert create("local/z", [window]).fingerprint == ds.fingerprint


# -- batches of a loader


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float16", None])
@pytest.mark.parametrize("batch_size", [3, 4])
def test_windows_of_whole_episodes_come_back(unknown: Dataset, batch_size: int, dtype: str | None) -> None:
    loader = Loader(unknown, batch_size, window=Episode(), sampler=Sequential(), dtype=dtype)
    again = create("local/again", loader)
    assert content(again) == content(unknown)
    assert {"mask", "next/observed"}.isdisjoint(again.schema)
    assert (again.fingerprint == unknown.fingerprint) == (dtype != "float16")
    selected = Loader(unknown.select(episodes=[3, 0]), 2, window=Episode(), sampler=Sequential(), backend="numpy")
    assert create("local/some", selected).episodes["end"].tolist() == ["cut", "terminated"]


def test_rows_that_changed_places_are_not_taken_for_others(unknown: Dataset) -> None:
    batch = next(iter(Loader(unknown, 4, window=Episode(), sampler=Sequential(), backend="numpy")))
    mixed = create("local/mixed", [batch.map(lambda x: x[[2, 1, 0, 3]])])
    assert mixed.episodes["end"].tolist() == ["truncated", "truncated", "terminated", "truncated"]
    for name, values in batch.leaves():
        batch[name] = values[[2, 1, 0, 3]]  # the batch itself
    assert create("local/again", [batch]).episodes["end"].tolist()[2] == "terminated"


@pytest.mark.thorough
def test_padded_steps_of_slices_are_left_out() -> None:
    ds = create("local/x", [episode(0, 3, "terminated"), episode(100, 8, "truncated")])
    batch = next(iter(Loader(ds, 11, window=Slice(4, before=3), sampler=Sequential(), dtype=None)))
    made = create("local/y", [batch])
    assert made.num_episodes == 11 and "mask" not in made.schema
    assert made.episodes["length"].tolist() == [1, 2, 3, 1, 2, 3, 4, 4, 4, 4, 4]
    last = int(made.episodes["start"][-1])
    assert made.column("observation")[last:, 0].tolist() == [104, 105, 106, 107, 108]


@pytest.mark.thorough
def test_transitions_at_random_are_no_episode() -> None:
    ds = create("local/x", [episode(0, 20), episode(100, 20)])
    for extra in ((), ("episode",)):
        batch = next(iter(Loader(ds, 16, sampler=Shuffled(), fields=[..., *extra], seed=1)))
        with pytest.raises(InvalidEpisode, match=r"is not the next observation of step|continues after another"):
            create("local/y", [batch])


@pytest.mark.thorough
def test_a_slice_of_a_dataset_is_divided_by_its_episodes(unknown: Dataset) -> None:
    ds = create("local/x", [unknown[:]])
    assert ds.episodes["length"].tolist() == [10, 9, 9, 9] and len(ds) == 37
    assert ds.episodes["end"].tolist() == ["terminated", "cut", "cut", "cut"]
    arrays = unknown.to_numpy()
    assert create("local/y", [arrays]).fingerprint == ds.fingerprint
    del arrays["episode"]
    assert create("local/z", [arrays]).fingerprint == ds.fingerprint  # by next/done alone


# -- batches of a collector


@pytest.mark.thorough
@pytest.mark.parametrize("ids", [None, [7, 8, 9]])
def test_trajectories_of_one_batch_are_told_apart(ids: list[int] | None) -> None:
    ds = create("local/x", [collected([(0, 3, True), (100, 2, True), (200, 4, False)], ids)])
    assert ds.episodes["length"].tolist() == [3, 2, 4]
    assert ds.episodes["end"].tolist() == ["terminated", "terminated", "cut"]
    assert ds.episode(1)["observation"].ravel().tolist() == [100, 101]
    assert ds.episode(1)["next", "observation"].ravel().tolist() == [101, 102]
    assert set(ds.schema) == {"observation", "action", "next/reward", "next/terminated", "next/truncated"}


def test_a_collector_goes_on_in_its_next_batch() -> None:
    frames = [collected([(0, 3, True), (100, 2, False)], [0, 1]), collected([(102, 4, True), (300, 1, False)], [1, 2])]
    ds = create("local/x", frames)
    assert ds.episodes["length"].tolist() == [3, 6, 1]
    assert ds.episode(1)["observation"].ravel().tolist() == [100, 101, 102, 103, 104, 105]
    restarted = [collected([(0, 3, False)], [0]), collected([(50, 2, True)], [0])]  # another collector
    assert create("local/y", restarted).episodes["length"].tolist() == [3, 2]


@pytest.mark.thorough
def test_rows_of_environments_are_told_apart() -> None:
    rows = [collected([(0, 3, True), (100, 2, False)], [0, 1]), collected([(200, 5, True)], [2])]
    for name in ("with-ids", "without"):
        stacked = torch.stack(rows)
        if name == "without":
            stacked = stacked.exclude(("collector", "traj_ids"))
        ds = create(f"local/{name}", [stacked])
        assert sorted(ds.episodes["length"].tolist()) == [2, 3, 5]
        assert sorted(ds.episodes["end"].tolist()) == ["cut", "terminated", "terminated"]
        plain = stacked.to_dict()
        assert create(f"local/{name}-plain", [plain]).num_episodes == 3


def test_what_cannot_be_told_apart_is_refused() -> None:
    end_to_end = collected([(0, 3, False), (100, 5, False)])
    for given in (end_to_end, end_to_end.to_dict()):
        with pytest.raises(
            InvalidEpisode, match="observation of step 3 is not the next observation of step 2"
        ) as caught:
            create("local/x", [given])
        assert "one episode at a time" in str(caught.value.hint)
    with pytest.raises(InvalidEpisode, match="trajectory 5 continues after another one"):
        create("local/x", [collected([(0, 3, True), (10, 2, True), (20, 2, True)], [5, 6, 5])])
    with pytest.raises(InvalidEpisode, match="next/observed is False at step 1 of 3"):
        create("local/x", [{**episode(0, 3), "next/observed": [True, False, True]}])


@pytest.mark.thorough
def test_own_next_observations_stay_a_field() -> None:
    noisy = {**episode(0, 4, observed=False), "next/observation": walk(0, 4)[1:] + 0.5}
    ds = create("local/x", [noisy, noisy])
    assert "next/observation" in ds.schema
    assert create("local/y", (ds.episode(k) for k in range(2))).fingerprint == ds.fingerprint
