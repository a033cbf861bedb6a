"""Rows that come back one at a time, put into columns as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.episodes import Flat
from rlds_cli.errors import InvalidEpisode
from rlds_cli.preprocess import forms
from rlds_cli.ted import Array, EncodedFrames

# Path of a dict, number of its keys, and its leaves from it, as a tuple.
Groups = list[tuple[tuple[str, ...], int, Callable[[Any], tuple[Any, ...]]]]


class Stack:
    """Columns of ``size`` rows, with the fields of the first row.

    A row is copied when it is added: a function may return one buffer again and again. What comes back as the very
    array that was given is not: a field of which every row does is the column in ``given`` itself.
    """

    def __init__(self, size: int, given: Any) -> None:
        self._size = size
        arrays = dict(given.leaves()) if isinstance(given, Batch) else {}
        self._given = {n: v for n, v in arrays.items() if isinstance(v, np.ndarray) and v.dtype != object}
        self._order = {n: k for k, n in enumerate(arrays)}
        self._names: list[str] = []
        self._columns: list[Array | list[str | None]] = []
        self._kept: list[int] = []  # per column: which of the leaves given it is so far; -1 for none
        self._groups: Groups | None = None
        self._first: Any = None

    def add(self, i: int, value: Any, where: Any, leaves: Sequence[Any] = ()) -> None:
        """Add what came back for step ``i``, of which the arrays ``leaves`` were given, as ``forms.each`` does.

        Raises
        ------
        InvalidEpisode
            It has other fields, shapes or kinds than the first.
        """
        if not self._columns:
            self._start(forms.take_back(value, where), value, where)
        returned = self._pick(value) if self._groups else None
        if returned is None:
            returned = self._named(forms.take_back(value, where), where)
        for j, leaf in enumerate(returned):
            kept = self._kept[j]
            if kept >= 0:
                if leaf is leaves[kept]:
                    continue
                self._part(j, i)
            column = self._columns[j]
            if (
                isinstance(leaf, np.ndarray | np.generic)
                and isinstance(column, np.ndarray)
                and leaf.dtype == column.dtype
                and leaf.shape == column.shape[1:]
            ):
                column[i] = leaf
            else:
                self._put(j, i, leaf, where)

    def _part(self, j: int, rows: int) -> None:
        """Give a column memory of its own, in which so many rows are as given."""
        given = self._columns[j]
        assert isinstance(given, np.ndarray)
        self._columns[j] = column = np.zeros_like(given)
        column[:rows] = given[:rows]
        self._kept[j] = -1

    def columns(self) -> Flat:
        """The columns, all rows added."""
        return dict(zip(self._names, self._columns, strict=True))

    def _start(self, flat: Flat, value: Any, where: Any) -> None:
        self._first = where
        self._names = list(flat)
        for first in flat.values():
            assert not isinstance(first, EncodedFrames)
            self._columns.append(
                [] if isinstance(first, list) else np.zeros((self._size, *first.shape), first.dtype.newbyteorder("="))
            )
        groups = _groups(value, ())
        named = ["/".join((*path, k)) for path, _, keys in groups or () for k in keys]
        if groups and sorted(named) == sorted(self._names):
            self._groups = [(path, size, _picker(keys)) for path, size, keys in groups]
            order = {n: j for j, n in enumerate(self._names)}
            self._columns = [self._columns[order[n]] for n in named]
            self._names = named
        self._kept = [self._order[n] if n in self._given else -1 for n in self._names]
        self._columns = [self._given.get(n, c) for n, c in zip(self._names, self._columns, strict=True)]

    def _pick(self, value: Any) -> list[Any] | None:
        """The leaves of a dict that is built like the first; None where it is not."""
        leaves: list[Any] = []
        try:
            for path, size, pick in self._groups or ():
                node = value
                for part in path:
                    node = node[part]
                if len(node) != size:
                    return None
                leaves += pick(node)
        except (KeyError, TypeError, IndexError):
            return None
        return leaves

    def _named(self, flat: Flat, where: Any) -> list[Any]:
        if flat.keys() != set(self._names):
            differ = ", ".join(sorted(set(flat) ^ set(self._names)))
            raise InvalidEpisode(f"{where}: other fields than {self._first}: {differ}.")
        return [flat[n] for n in self._names]

    def _put(self, j: int, i: int, leaf: Any, where: Any) -> None:
        """What is no array of the column's dtype: text, numbers of Python, tensors, other dtypes."""
        name, column = self._names[j], self._columns[j]
        value = forms.take_back({name: leaf}, where)[name]
        assert not isinstance(value, EncodedFrames)
        if isinstance(value, list) != isinstance(column, list):
            raise InvalidEpisode(f"{where}: {name} is text at some steps only.")
        if isinstance(column, list):
            column.extend(value)
            return
        assert not isinstance(value, list)
        if value.shape != column.shape[1:]:
            raise InvalidEpisode(
                f"{where}: {name} has shape {list(value.shape)}; {list(column.shape[1:])} at {self._first}."
            )
        if value.dtype != column.dtype:
            self._columns[j] = column = column.astype(np.promote_types(column.dtype, value.dtype))
        column[i] = value


def _picker(keys: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    return (lambda node: (node[keys[0]],)) if keys else (lambda _: ())


def _groups(value: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], int, tuple[str, ...]]] | None:
    """The dicts in ``value`` with the keys of their leaves; None where it is not plainly nested."""
    if not isinstance(value, dict) or not all(isinstance(k, str) and "/" not in k for k in value):
        return None
    inner = [k for k, v in value.items() if isinstance(v, Mapping)]
    groups = [(path, len(value), tuple(k for k in value if k not in inner))]
    for k in inner:
        below = _groups(value[k], (*path, k))
        if below is None:
            return None
        groups += below
    return groups
