"""The rows of the samples of one gather, and the reading of their values.

``Points`` are single rows; ``Spans`` are runs of consecutive rows, read as whole windows::

    Points   rows   [K]      column.take(rows)
    Spans    first  [K]      one void scalar per window of the column seen as overlapping windows, ``windows[first]``

``np.take`` on the overlapping view would copy the whole view first; indexing it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol, TypeVar

import numpy as np

from rlds_cli.loader.index import EpisodeIndex, SampledWindows
from rlds_cli.loader.storage.page_cache import RandomMap
from rlds_cli.ted import Array, BoolArray, IntArray


class ColumnRows:
    """All rows of a column, from which rows are taken.

    Parameters
    ----------
    values : array [rows, ...]
        Contiguous.
    file : RandomMap, optional
        The file that they are mapped from.
    """

    def __init__(self, values: Array, file: RandomMap | None = None) -> None:
        self.values, self.file = np.asarray(values), file
        self.row_bytes = self.values.itemsize * prod(self.values.shape[1:])
        self._windows: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: IntArray) -> Array:
        """Return the values of ``rows`` [...] as [..., *shape]."""
        taken: Array = self.values.take(rows, axis=0)
        return taken

    def take_windows(self, first: IntArray, length: int) -> Array:
        """Return the values of the ``length`` rows from each of ``first`` [K] on, as [K, length, *shape]."""
        if length not in self._windows:
            kind = np.dtype((np.void, length * self.row_bytes))
            self._windows[length] = np.ndarray(len(self) - length + 1, kind, self.values, 0, (self.row_bytes,))
        taken = self._windows[length][first].view(self.values.dtype)
        return taken.reshape(len(first), length, *self.values.shape[1:])


class RowSet(Protocol):
    """Rows of the store for the samples of a gather: [K] or [K, L]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the samples: [K] or [K, L]."""
        ...

    @property
    def rows(self) -> IntArray:
        """Row of every step."""
        ...

    @property
    def stretches(self) -> tuple[IntArray, int]:
        """First rows and length of the stretches that are read; approximate near the ends of episodes."""
        ...

    def take(self, column: ColumnRows, shift: int = 0) -> Array:
        """Return a column's values, ``shift`` rows further on: [K, ...] or [K, L, ...], in new memory."""
        ...


@dataclass(frozen=True, slots=True)
class Points:
    """One row per sample."""

    rows: IntArray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, [K]."""
        return self.rows.shape

    @property
    def stretches(self) -> tuple[IntArray, int]:
        """The rows, as stretches of one row."""
        return self.rows.reshape(-1), 1

    def take(self, column: ColumnRows, shift: int = 0) -> Array:
        """Return the values at the rows, see `RowSet`."""
        return column.take(self.rows + shift if shift else self.rows)


class Spans:
    """``length`` consecutive rows per sample, clipped to its episode.

    Parameters
    ----------
    start : int array [K]
        First row of the episode.
    first : int array [K]
        First step of the window; may be negative.
    steps : int array [K]
        Steps of the episode. A place outside the episode stands for the nearest step.
    length : int
    """

    def __init__(self, start: IntArray, first: IntArray, steps: IntArray, length: int) -> None:
        self.length = length
        self.shape = (len(first), length)
        self._start, self._first, self._steps = start, first, steps
        self._reaching: IntArray = np.flatnonzero((first < 0) | (first + length > steps))

    @cached_property
    def step(self) -> IntArray:
        """Step within the episode at every place [K, L]."""
        return self._inside(slice(None))

    @cached_property
    def rows(self) -> IntArray:
        """Row at every place [K, L]."""
        return self._start[:, None] + self.step

    @cached_property
    def mask(self) -> BoolArray:
        """False where a place lies outside its episode [K, L]."""
        mask = np.ones(self.shape, bool)
        if self._reaching.size:
            at = self._first[self._reaching, None] + np.arange(self.length)
            mask[self._reaching] = (at >= 0) & (at < self._steps[self._reaching, None])
        return mask

    @property
    def stretches(self) -> tuple[IntArray, int]:
        """One stretch for each window."""
        return self._start + np.clip(self._first, 0, self._steps - 1), self.length

    def take(self, column: ColumnRows, shift: int = 0) -> Array:
        """Return the values of the windows, see `RowSet`."""
        room = len(column) - self.length
        if room < 0 or column.row_bytes == 0 or 2 * self._reaching.size > len(self._first):
            return column.take(self.rows + shift)
        first = self._from_row + shift if shift else self._from_row
        if not self._reaching.size:
            return column.take_windows(first, self.length)
        values = column.take_windows(first.clip(0, room), self.length)
        values[self._reaching] = column.take(self._reaching_rows + shift)
        return values

    @cached_property
    def _from_row(self) -> IntArray:
        return self._start + self._first

    @cached_property
    def _reaching_rows(self) -> IntArray:
        return self._start[self._reaching, None] + self._inside(self._reaching)

    def _inside(self, samples: IntArray | slice) -> IntArray:
        at = self._first[samples, None] + np.arange(self.length)
        inside: IntArray = np.clip(at, 0, self._steps[samples, None] - 1)
        return inside


_T = TypeVar("_T")


class Samples:
    """The K samples of one gather: their episodes, steps and rows.

    Parameters
    ----------
    table : EpisodeIndex
    drawn : SampledWindows
        Episodes are rows of ``table``.
    here : RowSet
        Rows of the steps themselves, for observations and actions.
    anchor : int array [K]
        The anchor step of each sample.
    """

    def __init__(self, table: EpisodeIndex, drawn: SampledWindows, here: RowSet, anchor: IntArray) -> None:
        self.table, self.drawn, self.here, self.anchor = table, drawn, here, anchor
        self.episode = drawn.episode
        self._known: dict[object, object] = {}

    @property
    def step(self) -> IntArray:
        """Step within the episode, [K] or [K, L]; outside it the nearest step."""
        return self.anchor

    @property
    def mask(self) -> BoolArray | None:
        """True where a step is real [K, L]; None where all are."""
        return None

    @property
    def span(self) -> IntArray | int:
        """Steps that each sample sums [K]; 1 except for n-step transitions."""
        return 1

    @property
    def last(self) -> RowSet:
        """Rows of the last steps summed, for outcomes of actions. The rows after hold the observations to bootstrap."""
        return self.here

    def once(self, key: object, work_out: Callable[[], _T]) -> _T:
        """Return a value that several columns share, computed once."""
        if key not in self._known:
            self._known[key] = work_out()
        return self._known[key]  # type: ignore[return-value]

    def outcome(self, column: ColumnRows) -> Array:
        """Return the outcome of the last action: a reward or flag."""
        return self.once(id(column), lambda: self.last.take(column))

    def each(self, values: IntArray) -> IntArray:
        """Return a column of the table for every sample, [K] or [K, 1]."""
        return values.take(self.episode).reshape(-1, *(1,) * (len(self.here.shape) - 1))

    def spread(self, values: Array) -> Array:
        """Repeat one value per sample [K, ...] for its steps [K, ...] or [K, L, ...]; not to be written."""
        if len(self.here.shape) == 1:
            return values
        return np.broadcast_to(values[:, None], (*self.here.shape, *values.shape[1:]))


class NStepSamples(Samples):
    """N-step transitions."""

    def __init__(self, table: EpisodeIndex, drawn: SampledWindows, step: IntArray, span: IntArray) -> None:
        super().__init__(table, drawn, Points(table.start.take(drawn.episode) + step), step)
        self._span = span

    @property
    def span(self) -> IntArray:
        """Steps summed [K]."""
        return self._span

    @cached_property
    def last(self) -> Points:
        """Rows of the last steps summed."""
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
