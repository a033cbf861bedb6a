"""From a uniform draw to the item that it falls on when items weigh differently, in constant time."""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.errors import InvalidArgument
from rlds_cli.ted import IntArray

FloatArray = npt.NDArray[np.float64]

_CORRECTIONS = 3
_BLOCK = 1 << 14  # slices of the range at a time: their part of the sums stays in the cache


class Cumulative:
    """Numbers 0..n-1, drawn with probability weight / sum of weights.

    The inverse of the distribution function (Chen and Asmussen's guide table, 1974): a table holds the first item of
    each of n to 2n equal slices of the range; a look-up and at most three vectorised corrections find almost every
    item, a binary search the rest. A draw needs less than one correction on average, whatever the weights.

    Between 12 and 16 bytes an item are held (20 and 24 above 2**31 items). An item of weight zero is never drawn, nor
    is one whose weight vanishes in the rounding of the sum (about 1e-16 of it).

    Parameters
    ----------
    weights : array [n]
        Any numbers, not negative and not all zero; not kept.

    Raises
    ------
    InvalidArgument
        Not one axis, empty, all zero, or with a value that is negative, infinite or NaN: says which and where.
    """

    def __init__(self, weights: npt.ArrayLike) -> None:
        given = check_weights(weights)
        self._sums: FloatArray = np.zeros(len(given) + 1)
        self._ends = self._sums[1:]
        # scaled by a power of two no sum overflows, none is so small that bits are missing, and no bit is lost
        self._exponent = frexp(float(given.max()))[1]
        np.ldexp(given, -self._exponent, out=self._ends)
        np.cumsum(self._ends, out=self._ends)
        self._total = float(self._ends[-1])
        self._slices = 1 << (len(given) - 1).bit_length()
        self._table, spread = _table(self._ends, self._slices)
        self._corrections = min(spread, _CORRECTIONS)
        self._search = spread > _CORRECTIONS

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def total(self) -> float:
        """The sum of the weights; infinite where a float cannot hold it, which disturbs no draw."""
        with np.errstate(over="ignore"):
            return float(np.ldexp(self._total, self._exponent))

    def find(self, u: FloatArray) -> IntArray:
        """Return the item that each of ``u`` falls on.

        Parameters
        ----------
        u : float64 array [K]
            Uniform, in [0, 1).

        Returns
        -------
        int64 array [K]
        """
        # Below the total, so that the last item that weighs anything ends above it: u <= 1 - 2**-53, and that times a
        # number is rounded to less than the number. A slice's own product is not above it either, as slices are 2**k.
        at = u * self._total
        item: IntArray = self._table.take((u * self._slices).astype(np.int64)).astype(np.int64)
        for _ in range(self._corrections):
            item += self._ends.take(item) <= at
        if self._search:
            late = np.flatnonzero(self._ends.take(item) <= at)
            if late.size:
                item[late] = np.searchsorted(self._ends, at[late], "right")
        return item

    def probability(self, numbers: IntArray) -> FloatArray:
        """Return the chance of one draw to give each of ``numbers``.

        It is taken from the sums, as drawing does: off from weight / sum by about 1e-16 times the root of n.

        Parameters
        ----------
        numbers : int array [...]
            In [0, n).

        Returns
        -------
        float64 array [...]
        """
        probability: FloatArray = (self._ends.take(numbers) - self._sums.take(numbers)) / self._total
        return probability


def check_weights(weights: Any) -> FloatArray:
    """Return ``weights`` as float64 [n], or say what is wrong with them: see `Cumulative`.

    Raises
    ------
    InvalidArgument
    """
    try:
        given = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise InvalidArgument(f"weights of type {type(weights).__name__} are not numbers.") from None
    if given.ndim != 1:
        raise InvalidArgument(f"weights of shape {list(given.shape)}: one number an item is needed, [n].")
    if not len(given):
        raise InvalidArgument("There are no weights: nothing can be drawn.")
    least, most = given.min(), given.max()
    if not (least >= 0 and most < np.inf):  # also when NaN
        place = int(np.flatnonzero(~((given >= 0) & (given < np.inf)))[0])
        raise InvalidArgument(
            f"weight {given[place]} at place {place:,} of {len(given):,}: weights are finite and not negative.",
            hint="0 for what is never to be drawn",
        )
    if most == 0:
        raise InvalidArgument(f"All {len(given):,} weights are zero: nothing can be drawn.")
    return given


def _table(ends: FloatArray, slices: int) -> tuple[npt.NDArray[Any], int]:
    """First item of each slice of the range, and the most items that one slice spreads over, less one."""
    total, n = ends[-1], len(ends)
    table: npt.NDArray[Any] = np.empty(slices, np.int32 if n < 1 << 31 else np.int64)
    first = spread = 0
    for start in range(0, slices, _BLOCK):
        stop = min(start + _BLOCK, slices)
        edges = np.arange(start, stop + 1) / slices * total
        last = int(np.searchsorted(ends, edges[-1], "right")) if stop < slices else n - 1
        part = np.searchsorted(ends[first : last + 1], edges[:-1], "right") + first
        table[start:stop] = part
        spread = max(spread, int(np.diff(part, append=last).max()))
        first = last
    return table, spread
