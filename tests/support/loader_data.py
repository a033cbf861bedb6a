"""Small datasets of which a test knows every value; `reference` works out what a loader must give of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from made_once import made_once
from reference import windows

import rlds_cli


@dataclass
class Known:
    """One episode: ``observation`` [T or T+1, 3] is (episode, step, noise), so that a sample says where it is from."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    qpos: np.ndarray

    @property
    def length(self) -> int:
        return windows.length(self.plain())

    @property
    def num_observed(self) -> int:
        return windows.recorded(self.plain())

    @property
    def num_transitions(self) -> int:
        return windows.transitions(self.plain())

    def next_observation(self, t: int) -> np.ndarray:
        """The row after; where it is not recorded the store repeats the last."""
        return windows.value(self.plain(), "next/observation", t)

    def n_step(self, t: int, n: int, gamma: float) -> tuple[float, int]:
        """Reward sum and number of steps, one step at a time."""
        return windows.n_step(self.plain(), t, n, gamma)

    def plain(self, *, reward: bool = True) -> dict[str, Any]:
        """As `rlds_cli.create` and the reference take it."""
        after = {"terminated": self.terminated, "truncated": self.truncated, "qpos": self.qpos}
        return {
            "observation": self.observation,
            "action": self.action,
            "info": {"step": self.observation[: len(self.action), 1].astype(np.int32)},
            "text": [f"episode {int(row[0])}" for row in self.observation[: len(self.action)]],
            "next": after | ({"reward": self.reward} if reward else {}),
        }


def episode(
    number: int, length: int, *, observed: bool = True, end: str = "terminated", inner: tuple[int, ...] = ()
) -> Known:
    """Make an episode; ``inner`` steps are terminated and it goes on."""
    rng = np.random.default_rng((number, length))
    rows = length + observed
    observation = np.stack([np.full(rows, number), np.arange(rows), rng.standard_normal(rows)], 1)
    terminated, truncated = np.zeros(length, bool), np.zeros(length, bool)
    terminated[[i for i in inner if i < length - 1]] = True
    terminated[-1] = end == "terminated"
    truncated[-1] = end != "terminated"
    return Known(
        observation,
        rng.standard_normal((length, 2)).astype(np.float32),
        rng.standard_normal(length),
        terminated,
        truncated,
        rng.standard_normal((length, 2)),
    )


def create(
    episodes: list[Known], *, reward: bool = True, storage: str = "memmap", ref: str = "local/known"
) -> rlds_cli.Dataset:
    """Write them, in place of what a test wrote under the same id before."""

    def make() -> rlds_cli.Dataset:
        return rlds_cli.create(ref, (e.plain(reward=reward) for e in episodes), storage=storage, force=True)

    return made_once(ref, make, episodes, reward, storage)


@st.composite
def episode_lists(draw: st.DrawFn, most: int = 6, longest: int = 9) -> list[Known]:
    """Episodes with terminals inside, unknown final observations and every kind of end."""
    shape = st.tuples(
        st.integers(1, longest),
        st.booleans(),
        st.sampled_from(["terminated", "truncated"]),
        st.lists(st.integers(0, longest), max_size=2),
    )
    shapes = draw(st.lists(shape, min_size=1, max_size=most))
    return [
        episode(i, length, observed=observed, end=end, inner=tuple(inner))
        for i, (length, observed, end, inner) in enumerate(shapes)
    ]


def varied() -> list[Known]:
    """One episode of every kind: lengths 1 to 8, final observation known or not, both ends, terminals inside."""
    kinds = itertools.product(range(1, 9), (True, False), ("terminated", "truncated"), ((), (0,), (1, 4)))
    return [
        episode(k, length, observed=observed, end=end, inner=inner)
        for k, (length, observed, end, inner) in enumerate(kinds)
    ]


SELECTIONS = st.lists(st.integers(0, 95), min_size=1, max_size=7, unique=True)  # numbers of `varied`, in any order
