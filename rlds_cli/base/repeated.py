"""What repeats: a sequence with one value, distinct numbers, and rows that are worked out once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TypeVar, overload

import numpy as np

from rlds_cli.base.array_types import Array, IntArray

T = TypeVar("T")


class Repeated(Sequence[T]):
    """A column with one value for all episodes, which takes no memory."""

    __slots__ = ("_count", "value")

    def __init__(self, value: T, count: int) -> None:
        self.value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Repeated[T]: ...
    def __getitem__(self, index: int | slice) -> T | Repeated[T]:
        found = range(self._count)[index]
        return self.value if isinstance(found, int) else Repeated(self.value, len(found))

    def __iter__(self) -> Iterator[T]:
        return repeat(self.value, self._count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == self._count and all(v == self.value for v in other)

    __hash__ = None  # type: ignore[assignment]


def distinct(numbers: IntArray) -> IntArray:
    """Return the distinct values of integers of any shape, ascending [n].

    As `numpy.unique` does, which imports numpy.ma: 10 ms of a first batch.
    """
    found = np.sort(numbers, axis=None)
    new = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=new[1:])
    return found[new]


def copy_repeated(out: Sequence[Array] | Array, place: IntArray, which: IntArray) -> None:
    """Copy each distinct frame of ``out``, [n, ...] or n arrays, to the other places where it belongs.

    ``place`` are the places of the distinct frames, and ``which`` [n] says which of them belongs to each place:
    ``return_index`` and ``return_inverse`` of `numpy.unique`.
    """
    again = np.ones(len(out), bool)
    again[place] = False
    first = place[which.reshape(-1)[again]]
    if isinstance(out, np.ndarray):
        out[again] = out[first]
        return
    for at, of in zip(np.flatnonzero(again).tolist(), first.tolist(), strict=True):
        out[at][...] = out[of]
