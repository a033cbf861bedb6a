"""Transitions of a dataset by number, in any order: `reader`. Nothing is drawn, and the columns are the caller's.

::

    transitions = reader(dataset)
    rows = transitions.compile({"a": transitions.column("action"), "start": transitions.derived(is_first, step)})
    rows.read(np.array([7, 0]))  # values [2, ...] of each
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.dataset import Dataset
from rlds_cli.loader.build import pool
from rlds_cli.loader.compiled import CompiledColumns
from rlds_cli.loader.fields import columns
from rlds_cli.loader.fields.columns import BatchColumn, Memo
from rlds_cli.loader.fields.fields import DONE, Fields, Names
from rlds_cli.loader.index import Located, SampledWindows, WindowIndex
from rlds_cli.loader.kernel import StepReader, address
from rlds_cli.loader.order import Order
from rlds_cli.loader.storage.memory import ColumnRows, check_decoded
from rlds_cli.loader.windows.windows import Anchors, Transition
from rlds_cli.ted import FLAGS

_ORDER, _NO_CHANCE = Order(0), np.empty(0)  # numbers are given, not drawn
_AHEAD, _AHEAD_BYTES = 32, 1 << 20

# Arrays that one batch is written to, the address of the array of their addresses, and this array.
BatchPlaces = tuple[list[Any], int, Array]


def reader(dataset: Dataset, anchors: Anchors = "transitions") -> TransitionReader:
    """Return what reads the transitions of a dataset by number, or all its steps.

    Parameters
    ----------
    dataset : Dataset
        A selection, or one that grows, too; the latter stays at its version.
    anchors : {"transitions", "steps"}
        ``steps``: number all steps, and leave out the fields that need a next observation.
    """
    return TransitionReader(dataset, anchors)


class TransitionReader:
    """The columns that there are of a dataset's transitions, which are numbered as ``ds[...]`` numbers them.

    Attributes
    ----------
    counts : array
        Number of transitions of each episode that has some, int64 [episodes].
    first : array
        Number of the first transition of each of these episodes, int64 [episodes].
    episode : array
        Which episodes these are: k of ``ds.episode(k)``, int64 [episodes].
    """

    def __init__(self, dataset: Dataset, anchors: Anchors) -> None:
        window = Transition(anchors=anchors)
        self.dataset, self._windows = dataset, pool(dataset, window)
        self._fields = Fields(self._windows, window, ())
        self.counts: IntArray = self._windows.prefix.counts
        self.first: IntArray = self._windows.prefix.starts
        self.episode: IntArray = self._windows.table.number

    def __len__(self) -> int:
        return self._windows.prefix.total

    def choose(self, names: Names) -> list[str]:
        """Return the names of the columns that ``names`` stand for, as in ``Loader(fields=...)``.

        Raises
        ------
        UnknownField
            There is no such field.
        NeedsMemory
            The dataset is compressed and does not fit the memory allowed when decoded.
        """
        chosen = self._fields.choose(names)
        check_decoded(self.dataset, self._fields.stored(chosen), None)
        return chosen

    def behind(self, name: str) -> str:
        """Return the name of the field whose values a column has; empty if it is computed."""
        return self._fields.behind.get(name, "")

    def column(self, name: str) -> BatchColumn:
        """Return the column of a name, as a loader gives it."""
        return self._fields.column(name, None)

    def previous(self, name: str) -> BatchColumn:
        """Return the column of a field at the step before; zero at the first step of an episode."""
        return self.column(self._fields.expand(f"previous/{name}")[0])

    def following(self, name: str) -> BatchColumn:
        """Return the column of a field of floats at the step after, NaN where the episode has none."""
        beside = columns.neighbour(self._fields.rows(name), None, 1, axis=False, zeroed=False, like=name)

        def mark(memo: Memo, values: Array, inside: Array) -> Array:
            values[~inside] = np.nan
            return values

        output = replace(beside.outputs[0], mask=beside.mask, blank=True)
        return BatchColumn((output, beside.inside()), beside.row_bytes, mark, rows=beside.rows)

    def done(self) -> BatchColumn:
        """Return the column ``next/done`` that also ends the episodes whose last step is not a transition."""
        table = self._windows.table
        short = table.transitions < table.steps
        if self._fields.window.whole or not short.any():
            return self.column(DONE)
        terminated, truncated = (np.array(self.dataset.store.rows(flag)) for flag in FLAGS)
        truncated[(table.start + table.transitions - 1)[short]] = True
        return columns.done(ColumnRows(terminated), ColumnRows(truncated), None, late=False, mask=0)

    def step(self) -> BatchColumn:
        """Return the column of the number of the step within its episode."""
        return columns.step()

    def of_episode(self, numbers: IntArray) -> BatchColumn:
        """Return the column of a number of each episode, int64 [episodes]."""
        return columns.of_episode(numbers)

    def derived(self, make: Callable[..., Array], *given: BatchColumn) -> BatchColumn:
        """Return a column that ``make`` computes of the values of others, which are read as they are."""
        outputs = tuple(output for column in given for output in column.outputs)

        def finish(memo: Memo, *values: Array) -> Array:
            return make(*values)

        return BatchColumn(outputs, sum(column.row_bytes for column in given), finish)

    def compile(self, columns: Mapping[str, BatchColumn]) -> NumberedRows:
        """Return what reads these columns."""
        return NumberedRows(self._windows, columns)


class NumberedRows:
    """Reads columns of transitions by number.

    Attributes
    ----------
    is_plain : bool
        Whether each column is written by the kernel as it is, from rows on this disk: `write` writes it anywhere.
    """

    def __init__(self, windows: WindowIndex, columns: Mapping[str, BatchColumn]) -> None:
        self._windows, self._compiled = windows, CompiledColumns(windows, columns, (), None)
        self._plan = self._compiled.of_steps
        self.is_plain = self._plan is not None

    def read(self, numbers: IntArray) -> list[Array]:
        """Return the values [n, ...] of transitions ``numbers`` [n], a column each.

        Raises
        ------
        IndexError
            There is no transition of such a number.
        """
        drawn = SampledWindows(_ORDER, range(len(numbers)), *self._windows.prefix.find(numbers), lambda: _NO_CHANCE)
        values, _ = self._compiled.read(Located(self._windows.table, drawn, 0), 0, len(numbers))
        return list(values.values())

    def writer(self, n: int) -> StepReader:
        """Return what writes the columns of ``n`` transitions to `places`; one thread uses it at a time."""
        assert self._plan is not None
        return StepReader(self._plan, self._windows.prefix.table, n)

    def places(self, n: int, wrap: Callable[[Array, int], Sequence[Any]]) -> list[BatchPlaces]:
        """Make the memory of small batches for several of them at a time: this takes a third of the time of one by one.

        Batches that are kept keep that of the others, 1 MiB at most. ``wrap(x, n)`` divides an array into parts of
        ``n`` rows.
        """
        kinds = self._compiled.kinds
        size = n * sum(dtype.itemsize * prod(shape) for dtype, shape in kinds)
        count = max(1, min(_AHEAD, _AHEAD_BYTES // max(size, 1)))
        arrays = [np.empty((count * n, *shape), dtype) for dtype, shape in kinds]
        places = np.array([address(x) for x in arrays]) + np.arange(count)[:, None] * [
            x.nbytes // count for x in arrays
        ]
        parts = zip(*(wrap(x, n) for x in arrays), strict=True)
        at, step = address(places), places.strides[0]
        return [(list(values), at + i * step, places) for i, values in enumerate(parts)]
