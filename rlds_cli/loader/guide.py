"""From a number to the episode that it falls into, in constant time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlds_cli.ted import IntArray

_CORRECTIONS = 3


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
        self.ends: IntArray = np.cumsum(counts, dtype=np.int64)
        self.starts: IntArray = self.ends - counts
        self.total = int(self.ends[-1]) if len(counts) else 0
        slices = max(2, 2 * len(counts))
        self._shift = max(0, (self.total - 1).bit_length() - (slices - 1).bit_length())
        firsts = np.arange((max(self.total, 1) - 1 >> self._shift) + 1, dtype=np.int64) << self._shift
        self._table: npt.NDArray[np.int64] = np.searchsorted(self.ends, firsts, "right")
        spans = np.diff(self._table, append=max(len(counts) - 1, 0))
        self._depth = int(spans.max(initial=0))

    def find(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return the episode of every number, and its place within the episode."""
        episode = self._episode(numbers)
        return episode, numbers - self.starts.take(episode)

    def _episode(self, numbers: IntArray) -> IntArray:
        episode = self._table.take(numbers >> self._shift)
        for _ in range(min(self._depth, _CORRECTIONS)):
            episode += self.ends.take(episode) <= numbers
        if self._depth > _CORRECTIONS:
            late = np.flatnonzero(self.ends.take(episode) <= numbers)
            if late.size:
                episode[late] = np.searchsorted(self.ends, numbers[late], "right")
        return episode
