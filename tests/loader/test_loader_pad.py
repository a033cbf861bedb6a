"""`Slice(pad=...)`: places outside the episode lie on one side of a slice. Steps and values are worked out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader import (
    Goals,
    Loader,
    Mixture,
    Normalize,
    Pairs,
    Prioritized,
    ReturnToGo,
    Sequential,
    Shuffled,
    Slice,
    Uniform,
)

LENGTHS = (2, 5)
EXACT: dict[str, Any] = {"backend": "numpy", "dtype": None, "sampler": Sequential()}
F, T = False, True


def episode(number: int, steps: int) -> dict[str, Any]:
    """Observation, image and action of step t of episode k say 10 k + t; the reward is t + 1."""
    t = np.arange(steps + 1)
    image = np.broadcast_to((t + 10 * number).astype(np.uint8)[:, None, None, None], (steps + 1, 4, 4, 3))
    return {
        "observation": {"state": 10.0 * number + t[:, None], "image": image.copy()},
        "action": 10.0 * number + t[:-1, None],
        "text": [f"{number}/{i}" for i in range(steps)],
        "next": {"reward": t[:-1] + 1.0, "terminated": t[:-1] == steps - 1},
    }


@pytest.fixture
def ds(home: object) -> Dataset:
    return rlds_cli.create("local/pad", [episode(k, steps) for k, steps in enumerate(LENGTHS)])


# window, then of each slice of both episodes: steps and mask
BY_HAND = {
    "from each step on, at the end": (
        Slice(3, after=2, pad="left"),
        [
            [([0, 0, 1], [F, T, T]), ([1, 1, 1], [F, F, T])],
            [
                ([0, 1, 2], [T, T, T]),
                ([1, 2, 3], [T, T, T]),
                ([2, 3, 4], [T, T, T]),
                ([3, 3, 4], [F, T, T]),
                ([4, 4, 4], [F, F, T]),
            ],
        ],
    ),
    "up to each step, at the beginning": (
        Slice(3, before=2, pad="right"),
        [
            [([0, 0, 0], [T, F, F]), ([0, 1, 1], [T, T, F])],
            [
                ([0, 0, 0], [T, F, F]),
                ([0, 1, 1], [T, T, F]),
                ([0, 1, 2], [T, T, T]),
                ([1, 2, 3], [T, T, T]),
                ([2, 3, 4], [T, T, T]),
            ],
        ],
    ),
    "both ends, on the left": (
        Slice(4, before=2, after=1, stride=2, pad="left"),
        [
            [([0, 0, 0, 1], [F, F, T, T])],  # starts at -2
            [([0, 0, 0, 1], [F, F, T, T]), ([0, 1, 2, 3], [T, T, T, T]), ([2, 2, 3, 4], [F, T, T, T])],
        ],
    ),
    "both ends, on the right": (
        Slice(4, before=2, after=1, stride=2, pad="right"),
        [
            [([0, 1, 1, 1], [T, T, F, F])],
            [([0, 1, 1, 1], [T, T, F, F]), ([0, 1, 2, 3], [T, T, T, T]), ([2, 3, 4, 4], [T, T, T, F])],
        ],
    ),
}


def slices(loader: Loader) -> list[tuple[int, list[int], list[bool]]]:
    found = []
    for batch in loader:
        for k, steps, mask in zip(batch["episode"], batch["step"], batch["mask"], strict=True):
            found.append((int(k[0]), steps.tolist(), mask.tolist()))
    return found


@pytest.mark.parametrize("case", BY_HAND)
@pytest.mark.parametrize("fill", ["edge", "zero"])
def test_steps_masks_and_fields(ds: Dataset, case: str, fill: Any) -> None:
    window, by_hand = BY_HAND[case]
    filled = Slice(**{n: getattr(window, n) for n in ("length", "before", "after", "stride", "pad")}, fill=fill)
    fields = [..., "episode", "step", "index", "text", ReturnToGo(), "previous/action", "next/action"]
    loader = Loader(ds, 3, window=filled, fields=fields, **EXACT)
    expected = [(k, *one) for k, of_one in enumerate(by_hand) for one in of_one]
    assert slices(loader) == expected
    rows = iter(expected)
    for batch in loader:
        for i, (k, steps, mask) in zip(range(len(batch["step"])), rows, strict=False):
            last = LENGTHS[k] - 1
            t, real = np.array(steps), np.array(mask) | (fill == "edge")
            for name, values in (
                ("observation/state", 10 * k + t),
                ("next/observation/state", 10 * k + t + 1),
                ("next/reward", t + 1),
                ("next/terminated", t == last),
                ("return_to_go", [sum(range(s + 1, LENGTHS[k] + 1)) for s in steps]),
                ("previous/action", np.where(t > 0, 10 * k + t - 1, 0)),
                ("next/action", np.where(t < last, 10 * k + t + 1, 0)),
            ):
                assert batch[name][i, :, 0].tolist() == np.where(real, values, 0).tolist(), name
            assert batch["index"][i].tolist() == (sum(LENGTHS[:k]) + t).tolist()
            assert batch["text"][i].tolist() == [f"{k}/{s}" if ok else None for s, ok in zip(steps, real, strict=True)]
            image = batch["observation/image"][i]
            assert image.shape == (len(steps), 4, 4, 3)
            assert image[:, 1, 2, 0].tolist() == np.where(real, 10 * k + t, 0).tolist()


def test_the_same_steps_are_drawn_in_the_same_order(ds: Dataset) -> None:
    """A side changes the place of steps alone: without the mask's other places the slices are equal."""
    real: dict[str | None, list[list[tuple[int, int]]]] = {}
    for pad in (None, "left", "right"):
        window = Slice(4, before=3, after=3, pad=pad)
        loader = Loader(ds, 4, window=window, sampler=Uniform(), seed=5, fields=[..., "episode", "step"])
        real[pad] = [
            [(int(k), int(t)) for k, t, ok in zip(*one, strict=True) if ok]
            for batch in itertools.islice(loader, 6)
            for one in zip(batch["episode"], batch["step"], batch["mask"], strict=True)
        ]
    assert real[None] == real["left"] == real["right"]


def test_goals_are_those_of_the_last_real_step(ds: Dataset) -> None:
    goals = Goals("goal", horizon=1, of="observation/state")
    window = Slice(3, after=2, pad="left")
    loader = Loader(ds, 16, window=window, fields=[..., "episode", "step", goals], **EXACT)
    batch = next(iter(loader))
    k, last = batch["episode"][:, 0], batch["step"][:, -1]
    goal = last + 1  # the observation after it, which is recorded
    assert batch["goal"][..., 0].tolist() == np.repeat((10 * k + goal)[:, None], 3, 1).tolist()
    assert batch["goal_distance"][..., 0].tolist() == (goal[:, None] - batch["step"]).tolist()


def test_slices_longer_than_what_is_written_at_once(home: object) -> None:
    long = rlds_cli.create("local/long", [episode(0, 230), episode(1, 250)])
    for pad, first in (("left", 300 - 230), ("right", 0)):
        window = Slice(300, after=299, pad=pad)  # type: ignore[arg-type]
        batch = next(iter(Loader(long, 1, window=window, fields=[..., "step"], **EXACT)))
        mask = np.zeros(300, bool)
        mask[first : first + 230] = True
        assert batch["mask"][0].tolist() == mask.tolist()
        assert batch["action"][0, mask, 0].tolist() == list(range(230))
        assert set(batch["step"][0, ~mask].tolist()) == {0 if pad == "left" else 229}


def test_zeros_stay_zeros_after_transforms(ds: Dataset) -> None:
    transform = Normalize(ds, "observation/state", eps=0)
    window = Slice(3, after=2, pad="left", fill="zero")
    batch = next(iter(Loader(ds, 2, window=window, transform=transform, sampler=Sequential(), dtype="float64")))
    rows = np.concatenate([10.0 * k + np.arange(steps) for k, steps in enumerate(LENGTHS)])
    mean, std = rows.mean(), rows.std()
    expected = [0, (0 - mean) / std, (1 - mean) / std]
    assert batch["observation/state"][0, :, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("pad", ["left", "right"])
@pytest.mark.parametrize("fill", ["edge", "zero"])
def test_rows_on_a_device_are_those_of_the_host(ds: Dataset, pad: Any, fill: Any) -> None:
    for window in (Slice(4, before=3, pad=pad, fill=fill), Slice(4, before=1, after=2, stride=2, pad=pad, fill=fill)):
        for sampler in (Shuffled(), Prioritized()):  # a prioritised draw stays on the device
            given: dict[str, Any] = {"window": window, "sampler": sampler, "fields": [..., "step", "index"], "steps": 4}
            there = Loader(ds, 5, **given, memory="device", device="cpu")
            for a, b in zip(Loader(ds, 5, **given), there, strict=True):
                assert a.names() == b.names()
                assert all(torch.equal(x, b[name]) for name, x in a.leaves())


def test_members_of_a_mixture_and_pairs(ds: Dataset) -> None:
    window = Slice(3, after=2, pad="left")
    mixture = Mixture({"a": ds.select(episodes=[0]), "b": ds.select(episodes=[1])})
    fields = [..., "episode", "step"]
    batch = next(iter(Loader(mixture, 32, window=window, fields=fields, sampler=Shuffled())))
    by_hand = BY_HAND["from each step on, at the end"][1]
    for k, steps, mask in zip(batch["source"][:, 0], batch["step"], batch["mask"], strict=True):
        assert (steps.tolist(), mask.tolist()) in by_hand[int(k)]
    pairs = next(iter(Loader(ds, 8, window=window, fields=fields, sampler=Pairs())))
    assert pairs["mask"].shape == (8, 2, 3) and pairs["mask"][..., -1].all()


def test_priorities_count_real_steps_alone(ds: Dataset) -> None:
    loader = Loader(ds, 4, window=Slice(3, after=2, pad="left"), sampler=Prioritized(alpha=1.0, eps=1e-9), seed=1)
    batches = iter(loader)
    batch = next(batches)
    error = torch.where(batch["mask"], 2.0, 1e9)
    loader.update_priorities(batch, error, reduce="max")
    reported = dict(zip(batch["window"][:, 0].tolist(), [2.0] * 4, strict=True))
    total = sum(LENGTHS) + len(reported)  # those that were reported have 2, the others 1
    for batch in itertools.islice(batches, 20):
        for window, chance in zip(batch["window"][:, 0].tolist(), batch["probability"][:, 0].tolist(), strict=True):
            assert chance == pytest.approx(reported.get(window, 1.0) / total)


def test_a_state_resumes_exactly(ds: Dataset) -> None:
    given: dict[str, Any] = {"window": Slice(3, after=2, pad="left"), "sampler": Shuffled(), "steps": 9}
    loader = Loader(ds, 2, **given)
    batches = list(itertools.islice(loader, 4))
    state = loader.state_dict()
    rest, again = list(loader), Loader(ds, 2, **given)
    del batches, rest
    again.load_state_dict(state)
    whole = list(Loader(ds, 2, **given))
    for a, b in zip(again, whole[4:], strict=True):
        assert all(torch.equal(x, b[name]) for name, x in a.leaves())
    with pytest.raises(WrongState, match="window"):
        Loader(ds, 2, **given | {"window": Slice(3, after=2)}).load_state_dict(state)


def test_sides_are_named_and_need_something_to_pad(ds: Dataset) -> None:
    assert "pad" not in repr(Slice(20, after=19))  # a state of earlier loaders is read
    assert repr(Slice(20, after=19, pad="left")).endswith("fill='edge', pad='left')")
    assert "pad='left'" in Loader(ds, 2, window=Slice(3, after=2, pad="left")).describe()
    with pytest.raises(InvalidArgument, match=r"has nothing to pad") as e:
        Slice(20, pad="left")
    assert e.value.hint == "Slice(20, after=19, pad='left')"
    with pytest.raises(InvalidArgument, match=r"pad='both'"):
        Slice(20, after=19, pad="both")  # type: ignore[arg-type]
