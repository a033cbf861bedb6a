"""From a number to the episode that it falls into, in constant time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.ted import IntArray

_CORRECTIONS = 3
_BLOCK = 1 << 16  # slices of the range at a time


class Guide:
    """Numbers 0..total-1 laid out over episodes, ``counts[e]`` of them each.

    A table of about two entries per episode holds the first episode of each equal slice of the range; a look-up and at
    most three vectorised corrections find the episode of almost every number, a binary search that of the rest.

    Parameters
    ----------
    counts : int array [episodes]
        How many numbers fall into each episode; all positive.
    """

    def __init__(self, counts: IntArray) -> None:
        self.counts = counts
        # one array for both ends of an episode: what is read of it lies in one cache line
        self._bounds: IntArray = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self._bounds[1:])
        self.starts, self.ends = self._bounds[:-1], self._bounds[1:]
        self.total = int(self._bounds[-1])
        slices = max(2, 2 * len(counts))
        self._shift = max(0, (self.total - 1).bit_length() - (slices - 1).bit_length())
        self._table, self._depth = self._first_episodes()

    def _first_episodes(self) -> tuple[npt.NDArray[np.signedinteger[Any]], int]:
        """First episode of each slice of the range, and the most episodes that one spreads over, less one."""
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
        """Return the episode of every number, and its place within the episode."""
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
