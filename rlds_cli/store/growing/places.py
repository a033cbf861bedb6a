"""Where episodes are in the logs of a growing dataset.

An episode has one number that a caller can hold: that of the version, k of ``ds.episode(k)``. Episodes that left or are
dropped stay in the logs, so its place there is another one::

    place in the logs     0     1     2     3     4     5
    became of it         left        drop
    number                      0           1     2     3

Places stay within this package. They are of a class of their own, which NumPy takes for no index and no number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray

T = TypeVar("T")


class LogPlaces:
    """Places of episodes [n] in the logs, counted from the first one that was ever recorded; ascending unless taken so.

    Parameters
    ----------
    of : int array [n] or range
    """

    __slots__ = ("_of",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, of: IntArray | range) -> None:
        self._of = of

    def __len__(self) -> int:
        return len(self._of)

    @property
    def logged(self) -> IntArray:
        """The places as the logs have them [n]."""
        return np.arange(self._of.start, self._of.stop) if isinstance(self._of, range) else self._of

    def pick(self, values: Array, first: int) -> Array:
        """Return the values [n, ...] of these episodes, of an array that begins with place ``first``."""
        if isinstance(self._of, range):
            return values[self._of.start - first : self._of.stop - first]
        found: Array = values[self._of - first]
        return found

    def pick_list(self, values: list[T], first: int) -> list[T]:
        """Return the values of these episodes, of a list that begins with place ``first``."""
        if isinstance(self._of, range):
            return values[self._of.start - first : self._of.stop - first]
        return [values[at] for at in (self._of - first).tolist()]

    def take(self, numbers: IntArray | BoolArray) -> LogPlaces:
        """Return the places of some of the episodes, by their numbers among these, or by a bool for each."""
        return LogPlaces(self.logged[numbers])

    def without(self, others: LogPlaces) -> LogPlaces:
        """Return those of the episodes that are not among others; of either, each occurs once."""
        return self.take(~np.isin(self.logged, others.logged, assume_unique=True))

    def has(self, place: int) -> bool:
        """Return whether an episode is among these, which ascend."""
        at = bisect_left(self._of, place)
        return at < len(self._of) and bool(self._of[at] == place)

    def marked(self, places: Sequence[int]) -> BoolArray:
        """Return which of these episodes [n], which ascend, are at some of ``places``."""
        return np.isin(self.logged, np.array(places, np.int64), assume_unique=True)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, LogPlaces) and np.array_equal(self.logged, other.logged)

    def __repr__(self) -> str:
        return f"<places of {len(self):,} episodes in the logs>"
