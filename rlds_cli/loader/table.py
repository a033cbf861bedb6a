"""The episodes that a loader draws from, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.ted import Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Table:
    """Columns over episodes.

    ``number`` in ``ds.episode(number)``; ``start`` first row; ``steps`` T; ``transitions`` m; ``observed`` how many
    observations are recorded (T+1 or T); ``index`` number of the first transition in ``ds[...]``.
    """

    number: IntArray
    start: IntArray
    steps: IntArray
    transitions: IntArray
    observed: IntArray
    index: IntArray

    @classmethod
    def of(cls, dataset: Dataset) -> Table:
        """All episodes of a dataset or selection."""
        columns = ("start", "length", "num_transitions", "num_observed")
        start, steps, transitions, observed = (np.asarray(dataset.episodes[c], np.int64) for c in columns)
        return cls(np.arange(len(start)), start, steps, transitions, observed, np.cumsum(transitions) - transitions)

    def where(self, chosen: Array) -> Table:
        """The episodes that ``chosen`` marks (bool), or in the order in which it numbers them."""
        if chosen.dtype == bool and chosen.all():
            return self
        return Table(*(getattr(self, name)[chosen] for name in self.__slots__))

    def __len__(self) -> int:
        return len(self.start)
