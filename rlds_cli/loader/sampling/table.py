"""The episodes that a loader draws from, as arrays."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.ted import Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


class Table:
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
    def of(cls, dataset: Dataset) -> Table:
        """All episodes of a dataset or selection."""
        columns = ("start", "length", "num_transitions", "num_observed")
        return cls(*(np.asarray(dataset.episodes[c], np.int64) for c in columns))

    @cached_property
    def number(self) -> IntArray:
        """Made when it is asked for: 8 MB for a million episodes."""
        return np.arange(len(self)) if self._chosen is None else self._chosen

    @cached_property
    def index(self) -> IntArray:
        """Made when it is asked for."""
        return np.cumsum(self.transitions) - self.transitions if self._index is None else self._index

    def where(self, chosen: Array) -> Table:
        """The episodes that ``chosen`` marks (bool), or in the order in which it numbers them."""
        if chosen.dtype == bool and chosen.all():
            return self
        columns = (self.start, self.steps, self.transitions, self.observed)
        return Table(*(c[chosen] for c in columns), chosen=self.number[chosen], index=self.index[chosen])

    def __len__(self) -> int:
        return len(self.start)
