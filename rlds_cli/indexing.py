"""Numbers of transitions and episodes as users give them: integers, flags, from the end."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.ted import IntArray


def numbers(given: npt.NDArray[Any], count: int, id: str) -> IntArray:
    """Transition numbers from an array of them, or from one bool for each of ``count``."""
    if given.ndim != 1 or (given.size and given.dtype.kind not in "biu"):
        if given.dtype.kind == "U":
            raise IndexError(f'transitions are chosen by number; ds.column("{given}") is for fields')
        raise IndexError(f"transitions are chosen by integers or bools [n], not by {given.dtype} {list(given.shape)}")
    if given.dtype != bool:
        return given.astype(np.int64)
    if len(given) != count:
        raise IndexError(f"{len(given):,} bools for the {count:,} transitions of {id}")
    return np.flatnonzero(given)


def chosen(given: npt.NDArray[Any] | Sequence[int]) -> npt.NDArray[Any]:
    """Numbers or flags as an index; an empty list is no numbers."""
    index = np.asarray(given)
    return index if index.size else index.astype(np.int64)


def within(index: int | np.integer[Any], count: int, what: str) -> int:
    """A number from 0 on, of one that may count from the end."""
    number = operator.index(index)
    if not -count <= number < count:
        raise IndexError(f"no number {number:,} of the {count:,} {what}")
    return number % count
