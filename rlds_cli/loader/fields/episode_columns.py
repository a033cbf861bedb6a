"""Columns of the episode table as fields of a batch: ``episode/task``, ``episode/length``, ...

A sample has the value of its episode. An episode without a value has zero, False or None, and a mask says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.dataset import Tasks
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import kernel
from rlds_cli.loader.fields.columns import INT64, BatchColumn, Grid, Memo
from rlds_cli.loader.index import EpisodeIndex
from rlds_cli.loader.kernel import Output, RowPlace, Value
from rlds_cli.ted import TASK

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

EPISODE, NUMBER = "episode", "number"
_TEXTS = ("group", "options")


class _Values(NamedTuple):
    """Values by episode [episodes], and True for the episodes without one [episodes]."""

    values: Array
    missing: BoolArray


class EpisodeFields:
    """The columns of the episode table of a dataset, for the episodes of an index.

    Parameters
    ----------
    dataset : Dataset
    table : EpisodeIndex
    floats : str or None
        Dtype in which the loader works with floats; None for that of the table.
    """

    def __init__(self, dataset: Dataset, table: EpisodeIndex, floats: str | None) -> None:
        self._dataset, self._table, self._floats = dataset, table, floats
        self._known: dict[str, _Values] = {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns as fields; those of the user's own come first."""
        own, all_ = self._dataset.store.own_columns, self._dataset.episodes
        return tuple(f"{EPISODE}/{n}" for n in dict.fromkeys([*own, NUMBER, *all_, *_TEXTS]))

    def is_complete(self, name: str) -> bool:
        """Return whether every episode has a value of the field ``name``."""
        return not self._of(name).missing.any()

    def column(self, name: str) -> BatchColumn:
        """Return the field ``name``: [B], floats [B, 1], texts as objects; with several steps [B, L]."""
        values = self._of(name).values
        if values.dtype == object:
            return _of_texts(values)
        value, dtype = kernel.cast(values.dtype, self._floats)
        axis, source = values.dtype.kind == "f", np.ascontiguousarray(values)
        output = Output(value, dtype, (1,) if axis else (), place=RowPlace.EPISODE, source=source)
        return BatchColumn((output,), values.dtype.itemsize, axis=axis)

    def told(self, name: str, grid: Grid | None, mask: int) -> BatchColumn:
        """Return ``task`` or ``subtask``, the text of a step: [B], [B, L], or at the offsets of a ``grid`` [B, k].

        Places that count as outside by ``mask``, see `BatchColumn`, have none.
        """
        if name == TASK:
            return self._task(grid, mask)
        known = Tasks(self._dataset.store).subtasks(self._dataset.episodes.index.take(self._table.number))

        def finish(memo: Memo, rows: Array) -> Array:
            found: Array = known.at(rows.reshape(-1)).reshape(rows.shape)
            return found

        where = {"place": RowPlace.HERE} if grid is None else grid.where
        return BatchColumn((Output(Value.ROW, INT64, **where),), 8, finish, mask=mask)

    def _task(self, grid: Grid | None, mask: int) -> BatchColumn:
        texts = self._of(f"{EPISODE}/{TASK}").values.astype(object)
        numbers, where = np.arange(len(texts)), {"place": RowPlace.HERE} if grid is None else grid.where

        def finish(memo: Memo, rows: Array, at: IntArray) -> Array:
            found = texts[at].reshape(at.shape + (1,) * (rows.ndim - at.ndim))
            return np.broadcast_to(found, rows.shape).copy()

        outputs = Output(Value.ROW, INT64, **where), Output(Value.COPY, INT64, place=RowPlace.EPISODE, source=numbers)
        return BatchColumn(outputs, 8, finish, mask=mask)

    def mask(self, name: str) -> BatchColumn:
        """Return the mask of the field ``name``: False where the episode has no value."""
        known = np.ascontiguousarray(~self._of(name).missing)
        return BatchColumn((Output(Value.COPY, known.dtype, place=RowPlace.EPISODE, source=known),), 1)

    def _of(self, name: str) -> _Values:
        if name not in self._known:
            self._known[name] = self._read(name.removeprefix(f"{EPISODE}/"))
        return self._known[name]

    def _read(self, name: str) -> _Values:
        store, episodes, number = self._dataset.store, self._dataset.episodes, self._table.number
        if name == NUMBER:
            return _Values(number, np.zeros(len(number), bool))
        at: IntArray = episodes.index.take(number)
        if name in store.own_columns:
            column = store.own_column(name)
            values, missing = np.array(column.values, object if column.dtype == "str" else None), column.missing
            values, missing = values.take(at), missing.take(at)
        else:
            values = np.asarray(episodes[name]).take(number)
            values = values.astype(object) if values.dtype.kind == "U" else values
            missing = np.zeros(len(values), bool)
            if name == "seed":
                missing = ~store.episodes["has_seed"].take(at)
            elif name in _TEXTS:
                missing = np.equal(values, "").astype(bool)
        if missing.any():
            values = values.copy()
            values[missing] = None if values.dtype == object else 0
        return _Values(values, missing)


def _of_texts(texts: Array) -> BatchColumn:
    numbers = np.arange(len(texts))

    def finish(memo: Memo, at: IntArray) -> Array:
        found: Array = texts[at]
        return found

    return BatchColumn((Output(Value.COPY, INT64, place=RowPlace.EPISODE, source=numbers),), 8, finish)


def check(chosen: Iterable[str]) -> None:
    """Refuse ``episode``, the number of the episode, beside columns that are nested below that name.

    Raises
    ------
    InvalidArgument
    """
    names = list(chosen)
    below = [n for n in names if n.startswith(f"{EPISODE}/")]
    if EPISODE in names and below:
        raise InvalidArgument(
            f'"{EPISODE}" and "{below[0]}": a field cannot be a group of fields, too.',
            hint=f'"{EPISODE}/{NUMBER}" is the number of the episode, as "{EPISODE}" is',
        )
