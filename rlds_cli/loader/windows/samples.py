"""Where the samples of one gather lie in the columns, and how their values are read.

``Points`` are single rows; ``Spans`` are runs of consecutive rows, read as whole windows::

    Points   rows   [K]      column.take(rows)
    Spans    first  [K]      one void scalar per window of the column seen as overlapping windows, ``windows[first]``

``np.take`` on the overlapping view would copy the whole view first; indexing it does not.

Where the samples of one gather lie, whatever is read of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol, TypeVar

import numpy as np

from rlds_cli.loader.index import EpisodeTable, SampledWindows
from rlds_cli.loader.storage.page_cache import RandomMap
from rlds_cli.ted import Array, BoolArray, IntArray


class ColumnRows:
    """All rows of a column, to read some of.

    Parameters
    ----------
    values : array [rows, ...]
        Contiguous.
    file : RandomMap, optional
        What they are mapped from.
    """

    def __init__(self, values: Array, file: RandomMap | None = None) -> None:
        self.values, self.file = np.asarray(values), file
        self.row_bytes = self.values.itemsize * prod(self.values.shape[1:])
        self._windows: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: IntArray) -> Array:
        """Values of ``rows`` [...] -> [..., *shape]."""
        taken: Array = self.values.take(rows, axis=0)
        return taken

    def take_windows(self, first: IntArray, length: int) -> Array:
        """Values of the ``length`` rows from each of ``first`` [K] on -> [K, length, *shape]."""
        if length not in self._windows:
            kind = np.dtype((np.void, length * self.row_bytes))
            self._windows[length] = np.ndarray(len(self) - length + 1, kind, self.values, 0, (self.row_bytes,))
        taken = self._windows[length][first].view(self.values.dtype)
        return taken.reshape(len(first), length, *self.values.shape[1:])


class RowSet(Protocol):
    """Rows of the store, in the shape of the batch: [K] or [K, L]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the samples: [K] or [K, L]."""
        ...

    @property
    def rows(self) -> IntArray:
        """Row of every step."""
        ...

    @property
    def stretches(self) -> tuple[IntArray, int]:
        """First rows of the stretches that are read, and how many rows each has; about, near the ends of episodes."""
        ...

    def take(self, column: ColumnRows, shift: int = 0) -> Array:
        """Values of a column, ``shift`` rows further on: [K, ...] or [K, L, ...], in memory of their own."""
        ...


@dataclass(frozen=True, slots=True)
class Points:
    """One row per sample."""

    rows: IntArray

    @property
    def shape(self) -> tuple[int, ...]:
        """[K]."""
        return self.rows.shape

    @property
    def stretches(self) -> tuple[IntArray, int]:
        """Single rows."""
        return self.rows.reshape(-1), 1

    def take(self, column: ColumnRows, shift: int = 0) -> Array:
        """Values at the rows, see `RowSet`."""
        return column.take(self.rows + shift if shift else self.rows)


class Spans:
    """``length`` consecutive rows per sample, each kept inside its episode.

    Parameters
    ----------
    start : int array [K]
        First row of the episode.
    first : int array [K]
        First step of the window; may be negative.
    steps : int array [K]
        Steps of the episode. A place before step 0 or after the last step stands for the nearest step.
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
        """One for each window."""
        return self._start + np.clip(self._first, 0, self._steps - 1), self.length

    def take(self, column: ColumnRows, shift: int = 0) -> Array:
        """Values of the windows, see `RowSet`."""
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
    """Where the K samples of one gather lie.

    Parameters
    ----------
    table : EpisodeTable
    drawn : SampledWindows
        Episodes are rows of ``table``.
    here : RowSet
        The steps themselves: where observations and actions are read.
    anchor : int array [K]
        The step of each that is its anchor.
    """

    def __init__(self, table: EpisodeTable, drawn: SampledWindows, here: RowSet, anchor: IntArray) -> None:
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
    def last(self) -> RowSet:
        """The last of the steps summed up: where what came of the action is read. The row after is bootstrapped."""
        return self.here

    def once(self, key: object, work_out: Callable[[], _T]) -> _T:
        """What several columns share, worked out by the first that asks."""
        if key not in self._known:
            self._known[key] = work_out()
        return self._known[key]  # type: ignore[return-value]

    def outcome(self, column: ColumnRows) -> Array:
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

    def __init__(self, table: EpisodeTable, drawn: SampledWindows, step: IntArray, span: IntArray) -> None:
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
