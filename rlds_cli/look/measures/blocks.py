"""The steps of some episodes, end to end, and what is computed over each episode of them at once.

::

    step        0  1  2  3 | 4  5 | 6  7  8         start [0, 4, 6], length [4, 2, 3]
    episode     0  0  0  0 | 1  1 | 2  2  2
    changes     0  x  x  x | 0  x | 0  x  x         from the step before; 0 at the first step of an episode
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset import Rows

_PIECE = 256  # steps: their sum as float32 is right to 1 in 100,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of steps [first, stop) of a block, and the number of the episode of each, counted in the block [n]."""

    episode: IntArray
    first: IntArray
    stop: IntArray

    @property
    def length(self) -> IntArray:
        """Steps of each run."""
        return self.stop - self.first

    def where(self, chosen: BoolArray) -> Runs:
        """Return some of them."""
        return Runs(episode=self.episode[chosen], first=self.first[chosen], stop=self.stop[chosen])


class Block:
    """Episodes ``first`` up to, but without, ``stop`` of a dataset; the final observations are left out.

    Attributes
    ----------
    start, length : int array [episodes]
    steps : int
        Number of steps of all of them.
    """

    def __init__(self, rows: Rows, first: int, stop: int) -> None:
        self.rows, self.first, self.stop = rows, first, stop
        self.length: IntArray = rows.length[first:stop]
        self.start: IntArray = np.cumsum(self.length) - self.length
        self.steps = int(self.length.sum())
        self._read: dict[str, Array] = {}

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def episode(self) -> IntArray:
        """Number of the episode of each step, counted in the block [steps]."""
        return np.repeat(np.arange(len(self)), self.length)

    # -- values

    def values(self, names: Sequence[str]) -> Array:
        """Return fields of floats side by side [steps, elements]."""
        if not names:
            return np.zeros((self.steps, 0), np.float32)
        parts = [self._of_steps(name) for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _of_steps(self, name: str) -> Array:
        if name not in self._read:
            a, b = int(self.rows.start[self.first]), int(self.rows.final[self.stop - 1]) + 1
            is_step = np.ones(b - a, bool)
            is_step[self.rows.final[self.first : self.stop] - a] = False
            found = self.rows.between(name, a, b)[is_step]
            width = math.prod(found.shape[1:])
            dtype = np.result_type(found.dtype, np.float32)
            self._read[name] = np.ascontiguousarray(found.reshape(self.steps, width), dtype)
        return self._read[name]

    def changes(self, values: Array) -> Array:
        """Return what each step [steps, n] differs by from the one before; 0 where that is not known."""
        found = np.empty_like(values)
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(values[1:], values[:-1], out=found[1:])
        found[self.start] = 0
        found[~np.isfinite(found)] = 0
        return found

    def centred(self, values: Array) -> Array:
        """Return values [steps, n] without the mean of their episode; 0 for those that are not finite."""
        known = np.isfinite(values)
        if known.all():
            mean = self.sum(values) / self.length[:, None]
            return np.asarray(values - self.per_step(mean).astype(values.dtype))
        count = np.maximum(1, self.sum(known.astype(values.dtype)))
        mean = self.sum(np.where(known, values, 0)) / count
        return np.asarray(np.where(known, values - self.per_step(mean), 0).astype(values.dtype))

    def per_step(self, of_episodes: Array) -> Array:
        """Repeat a value of each episode [episodes, ...] for each of its steps."""
        return np.repeat(of_episodes, self.length, axis=0)

    # -- over each episode

    def sum(self, values: Array) -> Array:
        """Add up the values of each episode, as float64.

        Pieces of a few steps are added in the type of the values, and the pieces as float64: NumPy takes six times as
        long to convert each value of a row.
        """
        exact = values.dtype == np.float64
        first, of_episodes = self._pieces
        parts = np.add.reduceat(values if exact else values.astype(np.float32, copy=False), first, axis=0)
        return np.asarray(np.add.reduceat(parts, of_episodes, axis=0, dtype=np.float64))

    @cached_property
    def _pieces(self) -> tuple[IntArray, IntArray]:
        """First steps of pieces of episodes [n], and the first piece of each episode."""
        count = -(-self.length // _PIECE)
        of_episodes = np.cumsum(count) - count
        number = np.arange(int(count.sum())) - np.repeat(of_episodes, count)
        return np.repeat(self.start, count) + number * _PIECE, of_episodes

    def max(self, values: Array) -> Array:
        """Return the greatest value of each episode that is not NaN."""
        found = np.maximum.reduceat(values, self.start, axis=0)  # four times as fast as fmax
        unknown = found.dtype.kind == "f" and np.isnan(found).any()
        return np.asarray(np.fmax.reduceat(values, self.start, axis=0) if unknown else found)

    def min(self, values: Array) -> Array:
        """Return the least value of each episode that is not NaN."""
        found = np.minimum.reduceat(values, self.start, axis=0)
        unknown = found.dtype.kind == "f" and np.isnan(found).any()
        return np.asarray(np.fmin.reduceat(values, self.start, axis=0) if unknown else found)

    def has_later(self, lag: int) -> BoolArray:
        """Return which steps have one ``lag`` steps later, or earlier if it is negative, in their episode [steps]."""
        place = np.arange(self.steps) - self.per_step(self.start) + lag
        return np.asarray((place >= 0) & (place < self.per_step(self.length)))

    def runs(self, flags: BoolArray) -> Runs:
        """Return the runs of steps [steps] whose flag is set; no run leads from one episode into the next."""
        before = np.concatenate([[False], flags[:-1]])
        before[self.start] = False
        behind = np.concatenate([flags[1:], [False]])
        behind[self.start[1:] - 1] = False
        first, last = np.flatnonzero(flags & ~before), np.flatnonzero(flags & ~behind)
        return Runs(episode=self.episode[first], first=first, stop=last + 1)

    def longest(self, runs: Runs) -> Array:
        """Return the length of the longest run of each episode; 0 without one."""
        found = np.zeros(len(self), np.int64)
        np.maximum.at(found, runs.episode, runs.length)
        return found

    def covered(self, runs: Runs) -> Array:
        """Return the steps of each episode in runs that do not overlap."""
        return np.bincount(runs.episode, runs.length, len(self))
