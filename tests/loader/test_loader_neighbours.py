"""What the step before and the one after hold, against episodes that the test made itself."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from loader_data import create, episode, episode_lists

import rlds_cli
from rlds_cli.errors import NoReward, UnknownField
from rlds_cli.loader import Clip, Loader, Normalize, Reward, Sequential, Shuffled, Slice, Transition

EXACT = {"backend": "numpy", "dtype": None}
NEIGHBOURS = ("next/action", "previous/action", "previous/reward")
EXTRA = ("step", "episode", *NEIGHBOURS)
NONE = np.zeros(2)
DATASETS = settings(max_examples=6)


def around(e, t, span=1):
    """Action after the ``span`` steps from t on, and action and reward before t."""
    after = e.action[t + span] if t + span < e.length else NONE
    return after, e.action[t - 1] if t else NONE, e.reward[t - 1] if t else 0.0


def check(b, place, expected):
    after, before, reward = expected
    assert np.array_equal(b["next", "action"][place], after)
    assert np.array_equal(b["previous", "action"][place], before)
    assert b["previous", "reward"][place].tolist() == [reward]


@pytest.mark.thorough
@DATASETS
@given(episode_lists())
def test_transitions_and_sums_of_them(known):
    ds = create(known)
    for n, anchors in ((1, "steps"), (1, "transitions"), (2, "transitions"), (4, "transitions")):
        if anchors == "transitions" and not sum(e.num_transitions for e in known):
            continue
        window = Transition(n, 0.9)
        for b in Loader(
            ds, 4, window=replace(window, anchors=anchors), fields=[..., *EXTRA], sampler=Shuffled(), **EXACT
        ):
            for i, (k, t) in enumerate(zip(b["episode"].tolist(), b["step"].tolist(), strict=True)):
                span = known[k].n_step(t, n, 0.9)[1] if n > 1 else 1
                check(b, i, around(known[k], t, span))  # the action at the row where it bootstraps


@pytest.mark.thorough
@DATASETS
@given(episode_lists())
def test_every_step_of_a_slice_has_its_own(known):
    ds = create(known)
    for fill in ("edge", "zero"):
        window = Slice(4, before=2, after=3, fill=fill)
        for b in Loader(ds, 3, window=window, fields=[..., *EXTRA], sampler=Sequential(), **EXACT):
            assert b["next", "action"].shape == b["previous", "action"].shape == (*b["mask"].shape, 2)
            assert b["previous", "reward"].shape == (*b["mask"].shape, 1)
            for place in np.ndindex(b["mask"].shape):
                real = b["mask"][place] or fill == "edge"
                near = around(known[b["episode"][place]], int(b["step"][place]))
                check(b, place, near if real else (NONE, NONE, 0.0))


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("window", [Transition(), Slice(3, after=2), Slice(3, after=2, fill="zero")])
def test_transforms_change_what_is_there_and_leave_the_zeros(backend, window):
    known = [episode(k, 5) for k in range(3)]
    ds = create(known)
    norm = Normalize(ds, ["action"], eps=0.0)
    transform = [norm, Reward(2.0, shift=-1.0)]
    loader = Loader(
        ds, 15, window=window, fields=[..., *EXTRA], transform=transform, dtype="float64", backend=backend, seed=1
    )
    b = next(iter(loader)).numpy()
    actions = np.concatenate([e.action for e in known]).astype(np.float64)
    mean, std = actions.mean(0), actions.std(0)
    for place in np.ndindex(b["step"].shape):
        e, t = known[b["episode"][place]], b["step"][place]
        real = not isinstance(window, Slice) or window.fill == "edge" or b["mask"][place]
        after = (e.action[t + 1] - mean) / std if real and t + 1 < 5 else NONE
        before = (e.action[t - 1] - mean) / std if real and t else NONE
        np.testing.assert_allclose(b["next", "action"][place], after, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(b["previous", "action"][place], before, rtol=1e-5, atol=1e-6)
        expected = 2.0 * e.reward[t - 1] - 1.0 if real and t else 0.0
        np.testing.assert_allclose(b["previous", "reward"][place], [expected], rtol=1e-12)


@pytest.mark.thorough
def test_neighbours_stay_in_the_episode_of_a_selection():
    known = [episode(k, 3) for k in range(5)]
    for b in Loader(create(known).select(episodes=[3, 0]), 3, fields=[..., *EXTRA], sampler=Shuffled(), **EXACT):
        for i, (k, t) in enumerate(zip(b["episode"].tolist(), b["step"].tolist(), strict=True)):
            check(b, i, around(known[[3, 0][k]], t))


def made(action, length=4):
    """One episode with these actions [length, ...]."""
    return rlds_cli.create(
        "local/other",
        [{"observation": np.zeros((length + 1, 1)), "action": action, "next": {"reward": np.arange(1.0, length + 1)}}],
        force=True,
    )


@pytest.mark.thorough
def test_discrete_and_nested_actions():
    b = next(iter(Loader(made(np.arange(1, 5)), 4, fields=[..., *NEIGHBOURS], sampler=Sequential(), **EXACT)))
    assert b["next", "action"].tolist() == [2, 3, 4, 0] and b["previous", "action"].tolist() == [0, 1, 2, 3]
    assert b["previous", "reward"].tolist() == [[0], [1], [2], [3]]
    arms = {"arm": np.ones((4, 2)), "grip": np.arange(1, 5)}
    loader = Loader(made(arms), 4, fields=[..., "next/action", "previous/action/grip"], sampler=Sequential(), **EXACT)
    b = next(iter(loader))
    assert b["next", "action", "grip"].tolist() == [2, 3, 4, 0]
    assert b["next", "action", "arm"].tolist() == [[1, 1]] * 3 + [[0, 0]]
    assert b["previous", "action", "grip"].tolist() == [0, 1, 2, 3] and ("previous", "action", "arm") not in b
    clipped = next(iter(Loader(made(arms), 4, fields=[..., "previous/action"], transform=Clip("action", 0.5), **EXACT)))
    assert clipped["previous", "action", "arm"].max() == 0.5


def test_text_beside_is_none_where_there_is_no_step():
    ds = made(["go", "left", "right", "stop"])
    b = next(iter(Loader(ds, 4, fields=[..., *NEIGHBOURS], sampler=Sequential(), **EXACT)))
    assert b["next", "action"].tolist() == ["left", "right", "stop", None]
    assert b["previous", "action"].tolist() == [None, "go", "left", "right"]


@pytest.mark.thorough
def test_what_the_dataset_does_not_have():
    ds = create([episode(0, 4)], reward=False)
    with pytest.raises(NoReward):
        Loader(ds, 2, fields=[..., "previous/reward"])
    with pytest.raises(UnknownField, match="next/actions"):
        Loader(ds, 2, fields=[..., "next/actions"])
