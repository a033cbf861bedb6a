"""The episodes and windows that a loader draws from, as arrays, and the windows drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.loader.order import Order, SampleNumbers
from rlds_cli.ted import Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


class EpisodeIndex:
    """Columns over episodes.

    Attributes
    ----------
    start : int array [episodes]
        First row.
    steps, transitions, observed : int arrays [episodes]
        T, m, and how many observations are recorded (T+1 or T).
    number : int array [episodes]
        k of ``ds.episode(k)``.
    index : int array [episodes]
        Number of the first transition in ``ds[...]``.
    """

    def __init__(
        self,
        start: IntArray,
        steps: IntArray,
        transitions: IntArray,
        observed: IntArray,
        *,
        chosen: IntArray | None = None,
        index: IntArray | None = None,
    ) -> None:
        self.start, self.steps, self.transitions, self.observed = start, steps, transitions, observed
        self._chosen, self._index = chosen, index

    @classmethod
    def of(cls, dataset: Dataset) -> EpisodeIndex:
        """Make the table of all episodes of a dataset or selection."""
        columns = ("start", "length", "num_transitions", "num_observed")
        return cls(*(np.asarray(dataset.episodes[c], np.int64) for c in columns))

    @cached_property
    def number(self) -> IntArray:
        """Number of each episode, made on demand: 8 MB for a million episodes."""
        return np.arange(len(self)) if self._chosen is None else self._chosen

    @cached_property
    def index(self) -> IntArray:
        """Number of each episode's first transition, made on demand."""
        return np.cumsum(self.transitions) - self.transitions if self._index is None else self._index

    def where(self, chosen: Array) -> EpisodeIndex:
        """Return the episodes that ``chosen`` marks (bool), or lists (int), in that order."""
        if chosen.dtype == bool and chosen.all():
            return self
        columns = (self.start, self.steps, self.transitions, self.observed)
        return EpisodeIndex(*(c[chosen] for c in columns), chosen=self.number[chosen], index=self.index[chosen])

    def __len__(self) -> int:
        return len(self.start)


_CORRECTIONS = 3
_BLOCK = 1 << 16  # slices of the range at a time


class PrefixIndex:
    """Finds the episode of a number in constant time: 0..total-1 are laid out over episodes, ``counts[e]`` in each.

    A table of about two entries per episode holds the first episode of each equal slice of the range. A look-up and at
    most three vectorised corrections find the episode of almost every number, a binary search finds the others.

    Parameters
    ----------
    counts : int array [episodes]
        Numbers in each episode; all positive.
    """

    def __init__(self, counts: IntArray) -> None:
        self.counts = counts
        # one array for both ends of an episode, which then lie in one cache line
        self._bounds: IntArray = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self._bounds[1:])
        self.starts, self.ends = self._bounds[:-1], self._bounds[1:]
        self.total = int(self._bounds[-1])
        slices = max(2, 2 * len(counts))
        self._shift = max(0, (self.total - 1).bit_length() - (slices - 1).bit_length())
        self._table, self._depth = self._first_episodes()

    def _first_episodes(self) -> tuple[npt.NDArray[np.signedinteger[Any]], int]:
        """Return the first episode of each slice of the range, and the most episodes in a slice, less one."""
        slices, last = (max(self.total, 1) - 1 >> self._shift) + 1, max(len(self.counts) - 1, 0)
        table: npt.NDArray[np.signedinteger[Any]] = np.empty(
            slices, np.int32 if len(self.counts) < 1 << 31 else np.int64
        )
        spread = 0
        for start in range(0, slices, _BLOCK):
            edges = np.arange(start, min(start + _BLOCK, slices) + 1, dtype=np.int64) << self._shift
            found = np.minimum(np.searchsorted(self.ends, edges, "right"), last)
            table[start : start + _BLOCK] = found[:-1]
            spread = max(spread, int(np.diff(found).max(initial=0)))
        return table, spread

    def find(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return the episode of every number, and the number's place within the episode."""
        episode = self._episode(numbers)
        return episode, numbers - self.starts.take(episode)

    def _episode(self, numbers: IntArray) -> IntArray:
        episode: IntArray = self._table.take(numbers >> self._shift).astype(np.int64)
        for _ in range(min(self._depth, _CORRECTIONS)):
            episode += self.ends.take(episode) <= numbers
        if self._depth > _CORRECTIONS:
            late = np.flatnonzero(self.ends.take(episode) <= numbers)
            if late.size:
                episode[late] = np.searchsorted(self.ends, numbers[late], "right")
        return episode


# names of columns that samplers add
PROBABILITY, WEIGHT, WINDOW, INDEX = "probability", "weight", "window", "index"
FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class WindowIndex:
    """All windows of a dataset.

    Attributes
    ----------
    dataset : Dataset
    table : EpisodeIndex
        The episodes that have a window.
    prefix : PrefixIndex
        Numbers all windows 0..prefix.total-1, episode by episode.
    anchor : callable
        From window numbers within their episodes [K] to their anchor steps [K].
    bucket : int or None
        The episodes are sorted by length, and this many neighbours are drawn together.
    in_mixture : bool
        Whether the dataset is one of several in a mixture.
    """

    dataset: Dataset
    table: EpisodeIndex
    prefix: PrefixIndex
    anchor: Callable[[IntArray], IntArray]
    bucket: int | None = None
    in_mixture: bool = False


@dataclass(frozen=True, slots=True)
class SampledWindows:
    """The windows that were drawn for some samples.

    Attributes
    ----------
    order : Order
    positions : range or int array [K]
        Numbers of the samples.
    episode : int array [K]
        Rows of the table.
    number : int array [K]
        Number of the window within its episode.
    probability : callable
        Returns the chance of one draw to give each window, float64 [K].
    weight : float array [K] or None
        Importance weights, of prioritised draws.
    longest : int
        Steps of the longest episode in the batch, of all ranks; used with a ``bucket`` and in mixtures, else 0.
    """

    order: Order
    positions: SampleNumbers
    episode: IntArray
    number: IntArray
    probability: Callable[[], FloatArray]
    weight: FloatArray | None = None
    longest: int = 0
