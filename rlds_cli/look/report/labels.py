"""Compare the episode columns of users, and the facts, of two datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.dataset import Dataset
from rlds_cli.store import Facts, StoredColumn
from rlds_cli.ted import Scalar

FEW = 3  # episodes of which values are listed


@dataclass(frozen=True, slots=True)
class Example:
    """The values of one episode, which has this number in ``a``."""

    episode: int
    a: Scalar
    b: Scalar


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """An episode column that differs.

    ``a`` and ``b`` are its types, None where a dataset lacks the column. Among the ``episodes`` that are compared,
    ``differing`` have other values, the first of them in ``examples``.
    """

    name: str
    a: str | None
    b: str | None
    episodes: int
    differing: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class FactDifference:
    """A fact that differs: ``fps``, ``license``, ``description`` or ``depth_unit``; None where it is not stated."""

    name: str
    a: Any
    b: Any


def of_columns(a: Dataset, b: Dataset) -> Iterator[ColumnDifference]:
    """Yield the episode columns that differ.

    Episodes with the same id are compared. If there are none, and the numbers of episodes agree, it is those with the
    same number.
    """
    names = dict.fromkeys([*a.store.own_columns, *b.store.own_columns])
    at, behind = _matched(a, b) if names else (np.zeros(0, np.int64),) * 2
    for name in names:
        one, other = _column(a, name, at), _column(b, name, behind)
        differ = np.flatnonzero(StoredColumn.differing(one, other, len(at))).tolist()
        types = [None if c is None else c.dtype for c in (one, other)]
        if differ or types[0] != types[1]:
            values = ([None if c is None else c.scalar(k) for c in (one, other)] for k in differ[:FEW])
            examples = tuple(Example(int(at[k]), x, y) for k, (x, y) in zip(differ, values, strict=False))
            yield ColumnDifference(name, types[0], types[1], len(at), len(differ), examples)


def of_facts(a: Dataset, b: Dataset) -> Iterator[FactDifference]:
    """Yield the facts that differ."""
    differing = Facts(a.manifest).differing(Facts(b.manifest))
    return (FactDifference(name, one, other) for name, (one, other) in differing.items())


def _matched(a: Dataset, b: Dataset) -> tuple[IntArray, IntArray]:
    """Return the numbers of the episodes that are compared, in ``a`` and in ``b``, in the order of ``a``."""
    ids = [np.ascontiguousarray(ds.episodes["id"]).view("V16").ravel() for ds in (a, b)]
    numbers = {id.tobytes(): k for k, id in enumerate(ids[1])}
    pairs = [(k, numbers[id.tobytes()]) for k, id in enumerate(ids[0]) if id.tobytes() in numbers]
    if not pairs and len(ids[0]) == len(ids[1]):
        pairs = [(k, k) for k in range(len(ids[0]))]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _column(ds: Dataset, name: str, episodes: IntArray) -> StoredColumn | None:
    if name not in ds.store.own_columns:
        return None
    return ds.store.own_column(name).take(ds.episodes.index[episodes])
