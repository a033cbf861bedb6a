"""The steps of some episodes, end to end, and what is computed over each episode of them at once.

::

    step        0  1  2  3 | 4  5 | 6  7  8         start [0, 4, 6], length [4, 2, 3]
    episode     0  0  0  0 | 1  1 | 2  2  2
    changes     0  x  x  x | 0  x | 0  x  x         from the step before; 0 at the first step of an episode

Steps are the last axis of all arrays: each element of a field lies end to end, so that one call of NumPy goes through
the steps of many short episodes. Parts of a block fit the caches of a processor; a long episode is one by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset import Rows

_CACHED_BYTES = 3 << 20  # of the fields of a part of a block: fewer take longer in Python, more in memory


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

    def __init__(self, rows: Rows, first: int, stop: int, within: Block | None = None) -> None:
        self.rows, self.first, self.stop, self._within = rows, first, stop, within
        self.length: IntArray = rows.length[first:stop]
        self.start: IntArray = np.cumsum(self.length) - self.length
        self.steps = int(self.length.sum())
        self._read: dict[str, Array] = {}
        self._fields: dict[str, Array] = {}

    def parts(self, names: Sequence[str]) -> Iterator[Block]:
        """Yield blocks of some of its episodes, whose fields fit the caches of a processor together."""
        width = sum(self._rows_of(n)[:1].nbytes for n in names)
        for part in divided(self.length, _CACHED_BYTES // max(1, width)):
            yield Block(self.rows, self.first + part.start, self.first + part.stop, self)

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def episode(self) -> IntArray:
        """Number of the episode of each step, counted in the block [steps]."""
        return np.repeat(np.arange(len(self)), self.length)

    # -- values

    def values(self, names: Sequence[str]) -> Array:
        """Return fields of floats one after the other [elements, steps]."""
        if not names:
            return np.zeros((0, self.steps), np.float32)
        parts = [self._of_steps(name) for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _of_steps(self, name: str) -> Array:
        if name not in self._read:
            rows = self._rows_of(name)
            found = rows.take(self._row, axis=0).reshape(self.steps, math.prod(rows.shape[1:]))
            self._read[name] = np.ascontiguousarray(found.T, np.result_type(found.dtype, np.float32))
        return self._read[name]

    @cached_property
    def _row(self) -> IntArray:
        """Row of each step, counted from the first one of the block [steps]."""
        return np.arange(self.steps) + self.episode  # each episode has a final observation

    def _rows_of(self, name: str) -> Array:
        """Return the rows of a field, final observations among them [rows, ...]."""
        a, b = int(self.rows.start[self.first]), int(self.rows.final[self.stop - 1]) + 1
        if self._within is not None:
            begin = int(self.rows.start[self._within.first])
            return self._within._rows_of(name)[a - begin : b - begin]
        if name not in self._fields:
            self._fields[name] = self.rows.between(name, a, b)
        return self._fields[name]

    def changes(self, values: Array, first: int = 1) -> Array:
        """Return what each step [..., steps] differs by from the one before.

        0 where that is not known, and at the first steps of an episode.
        """
        found = np.empty_like(values)
        with np.errstate(invalid="ignore", over="ignore"):
            np.subtract(values[..., 1:], values[..., :-1], out=found[..., 1:])
        early = (self.start[:, None] + np.arange(first)).ravel()
        found[..., early[early < self.steps]] = 0
        known = np.isfinite(found)
        if not known.all():
            found[~known] = 0
        return found

    def centred(self, values: Array) -> Array:
        """Subtract from values [n, steps], in place, the mean of their episode; those that are not finite become 0."""
        known = np.isfinite(values)
        if known.all():
            values -= self.per_step((self.sum(values) / self.length).astype(values.dtype))
            return values
        values[~known] = 0
        values -= self.per_step(self.sum(values) / np.maximum(1, self.sum(known))).astype(values.dtype)
        values[~known] = 0
        return values

    def per_step(self, of_episodes: Array) -> Array:
        """Repeat a value of each episode [..., episodes] for each of its steps."""
        return np.repeat(of_episodes, self.length, axis=-1)

    def padded(self, values: Array, fill: float) -> Iterator[tuple[IntArray, Array]]:
        """Yield numbers of episodes of similar lengths [n], and their values [steps] in rows [n, a power of two]."""
        size = 1 << np.ceil(np.log2(np.maximum(2, self.length))).astype(np.int64)
        for n in np.unique(size).tolist():
            some = np.flatnonzero(size == n)
            found = np.full((len(some), n), fill, values.dtype)
            found[np.arange(n) < self.length[some, None]] = values[self.per_step(size == n)]
            yield some, found

    # -- over each episode

    def sum(self, values: Array) -> Array:
        """Add up the values of each episode [..., steps], as float64.

        NumPy adds float32 pairwise along the last axis: n of them are right to 16 + log2(n) roundings of 6e-8.
        """
        exact = values.dtype == np.float64
        parts = np.add.reduceat(values if exact else values.astype(np.float32, copy=False), self.start, axis=-1)
        return parts.astype(np.float64)

    def max(self, values: Array) -> Array:
        """Return the greatest value of each episode that is not NaN."""
        found = np.maximum.reduceat(values, self.start, axis=-1)  # faster than fmax
        unknown = found.dtype.kind == "f" and np.isnan(found).any()
        return np.asarray(np.fmax.reduceat(values, self.start, axis=-1) if unknown else found)

    def min(self, values: Array) -> Array:
        """Return the least value of each episode that is not NaN."""
        found = np.minimum.reduceat(values, self.start, axis=-1)
        unknown = found.dtype.kind == "f" and np.isnan(found).any()
        return np.asarray(np.fmin.reduceat(values, self.start, axis=-1) if unknown else found)

    @cached_property
    def _place(self) -> IntArray:
        """Number of each step in its episode [steps]."""
        return np.arange(self.steps) - self.per_step(self.start)

    @cached_property
    def _left(self) -> IntArray:
        """Number of steps from each on to the end of its episode [steps]."""
        return self.per_step(self.length) - self._place

    def has_later(self, lag: int) -> BoolArray:
        """Return which steps have one ``lag`` steps later, or earlier if it is negative, in their episode [steps]."""
        return np.asarray(self._left > lag if lag >= 0 else self._place >= -lag)

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


def divided(length: IntArray, most: int) -> list[slice]:
    """Return runs of episodes with about ``most`` steps each, and at least one episode."""
    edges = np.flatnonzero(np.diff(np.cumsum(length) // max(1, most))) + 1
    return [slice(a, b) for a, b in pairwise([0, *edges.tolist(), len(length)]) if b > a]
