"""Where the samples of one gather lie, whatever is read of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import numpy as np

from rlds_cli.loader.sampling.pool import Drawn
from rlds_cli.loader.sampling.table import Table
from rlds_cli.loader.windowing.places import Place, Points, Rows, Spans
from rlds_cli.ted import Array, BoolArray, IntArray

_T = TypeVar("_T")


class Samples:
    """Where the K samples of one gather lie.

    Parameters
    ----------
    table : Table
    drawn : Drawn
        Episodes are rows of ``table``.
    here : Place
        The steps themselves: where observations and actions are read.
    anchor : int array [K]
        The step of each that is its anchor.
    """

    def __init__(self, table: Table, drawn: Drawn, here: Place, anchor: IntArray) -> None:
        self.table, self.drawn, self.here, self.anchor = table, drawn, here, anchor
        self.episode = drawn.episode
        self._known: dict[object, object] = {}

    @property
    def step(self) -> IntArray:
        """Step within the episode, [K] or [K, L]; beyond its ends the nearest one."""
        return self.anchor

    @property
    def mask(self) -> BoolArray | None:
        """True where a step is real [K, L]; None where all are."""
        return None

    @property
    def span(self) -> IntArray | int:
        """How many steps each sample sums up [K]; 1 but for n-step transitions."""
        return 1

    @property
    def last(self) -> Place:
        """The last of the steps summed up: where what came of the action is read. The row after is bootstrapped."""
        return self.here

    def once(self, key: object, work_out: Callable[[], _T]) -> _T:
        """What several columns share, worked out by the first that asks."""
        if key not in self._known:
            self._known[key] = work_out()
        return self._known[key]  # type: ignore[return-value]

    def outcome(self, column: Rows) -> Array:
        """What came of the last action: a reward or flag."""
        return self.once(id(column), lambda: self.last.take(column))

    def each(self, values: IntArray) -> IntArray:
        """A column of the table for every sample, [K] or [K, 1]."""
        return values.take(self.episode).reshape(-1, *(1,) * (len(self.here.shape) - 1))

    def spread(self, values: Array) -> Array:
        """One value for each sample [K, ...], given to each of its steps [K, ...] or [K, L, ...]; not to be written."""
        if len(self.here.shape) == 1:
            return values
        return np.broadcast_to(values[:, None], (*self.here.shape, *values.shape[1:]))


class NStepSamples(Samples):
    """Transitions over several steps."""

    def __init__(self, table: Table, drawn: Drawn, step: IntArray, span: IntArray) -> None:
        super().__init__(table, drawn, Points(table.start.take(drawn.episode) + step), step)
        self._span = span

    @property
    def span(self) -> IntArray:
        """Steps summed up [K]."""
        return self._span

    @cached_property
    def last(self) -> Points:
        """Their last step."""
        return Points(self.here.rows + self._span - 1)


class SliceSamples(Samples):
    """Runs of steps."""

    here: Spans

    @property
    def step(self) -> IntArray:
        """Step within the episode [K, L]."""
        return self.here.step

    @property
    def mask(self) -> BoolArray:
        """True where a step is real [K, L]."""
        return self.here.mask
