"""A tree of sums: numbers drawn in proportion to masses that change.

Sixteen masses make a node, sixteen nodes a node above, until at most 4,096 are left, which are scanned flat::

    top       sums, minima   [<= 4096]            running sums, and one binary search a draw
    ...                                           one row of 16 a draw and level
    level 1   sums, minima   [count / 16]
    level 0   masses         [count]

A million masses have two levels below the top, 10**8 four. A few wide levels take half as many array operations as a
binary tree, and hold 9.1 bytes a mass where that holds 16, and as many again for its minima.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlds_cli.ted import IntArray

Masses = npt.NDArray[np.float64]

_BITS = 4
_WIDTH = 1 << _BITS
_TOP = 4096
_BLOCK = 1 << 14  # nodes summed at a time when all are: what they take stays in the cache
_BELOW = 1 - 2.0**-53  # times a positive number: rounded to less than the number

LEAST, MOST = 1e-290, 1e290  # masses between them have sums that are neither infinite nor short of bits


class SumTree:
    """The masses of the numbers 0..count-1, all equal at first.

    Parameters
    ----------
    count : int
        At least 1.
    mass : float
        Of every number, in [`LEAST`, `MOST`] like all masses set later.
    """

    def __init__(self, count: int, mass: float) -> None:
        self.count = count
        self._sizes = [count]
        while self._sizes[-1] > _TOP:
            self._sizes.append(-(-self._sizes[-1] // _WIDTH))
        padded = [-(-size // _WIDTH) * _WIDTH for size in self._sizes]
        self._sums: list[Masses] = [np.zeros(size) for size in padded]  # not written: half the time to make 10**8
        self._minima: list[Masses] = [self._sums[0]] + [np.full(size, np.inf) for size in padded[1:]]
        self.fill(mass)

    @property
    def masses(self) -> Masses:
        """All masses [count]: a view, not to be written."""
        return self._sums[0][: self.count]

    @property
    def total(self) -> np.float64:
        """The sum of the masses."""
        total: np.float64 = self._sums[-1].sum()
        return total

    @property
    def least(self) -> np.float64:
        """The smallest mass."""
        least: np.float64 = self._minima[-1][: self._sizes[-1]].min()
        return least

    def find(self, u: Masses) -> IntArray:
        """Return the number that each of ``u`` [K], in [0, 1), falls on [K]."""
        sums = _running(self._sums[-1])
        at = u * sums[-1]  # below the sum, as u <= 1 - 2**-53
        node = place = _search(sums[1:], at)
        draws = np.arange(len(u))
        for masses in self._sums[-2::-1]:
            at = at - sums.reshape(-1).take(place)
            sums = _running(_children(masses, node))
            at = np.minimum(at, sums[-1] * _BELOW)  # what rounding left over must not fall on the padding
            child = (sums[1:] <= at).sum(0)
            place = child * len(u) + draws
            node = (node << _BITS) + child
        return node

    def update(self, numbers: IntArray, masses: Masses) -> None:
        """Set the ``masses`` [K] of ``numbers`` [K]; where a number occurs twice, its last mass counts.

        A node is summed anew over all its children, so that sums never drift from the masses.
        """
        self._sums[0][numbers] = masses
        for level in range(len(self._sums) - 1):
            numbers = numbers >> _BITS
            self._gather(level, numbers)

    def fill(self, masses: Masses | float) -> None:
        """Set all masses [count], or one for all."""
        self._sums[0][: self.count] = masses
        for level, size in enumerate(self._sizes[1:]):
            for start in range(0, size, _BLOCK):
                self._gather(level, slice(start, min(start + _BLOCK, size)))

    def _gather(self, level: int, nodes: IntArray | slice) -> None:
        """Compute the sums and minima of ``nodes``, one level up, from their children."""
        masses = np.ascontiguousarray(_children(self._sums[level], nodes))  # 16 long rows: faster than many short ones
        self._sums[level + 1][nodes] = _fold(np.add, masses)
        minima = np.ascontiguousarray(_children(self._minima[level], nodes)) if level else masses
        self._minima[level + 1][nodes] = _fold(np.minimum, minima)
        if not level:  # the last node may be padded with zeros
            last = self._sizes[1] - 1
            self._minima[1][last] = self._sums[0][last << _BITS : self.count].min()


def _fold(operation: np.ufunc, children: Masses) -> Masses:
    """Combine sixteen rows into one, always in the same order; a reduction orders its additions by the shape."""
    while len(children) > 1:
        half = len(children) // 2
        children = operation(children[:half], children[half:])
    row: Masses = children[0]
    return row


def _children(values: Masses, nodes: IntArray | slice) -> Masses:
    """Return the sixteen values below each of ``nodes`` [16, K]."""
    rows = values.reshape(-1, _WIDTH)
    return (rows[nodes] if isinstance(nodes, slice) else rows.take(nodes, 0)).T


def _running(values: Masses) -> Masses:
    """Return the sums of the first 0, 1, ... n of ``values`` along the first axis: n + 1 of them.

    NumPy's own cumsum takes 17 us for [16, 256] along either axis, additions of rows half of it.
    """
    sums = np.empty((len(values) + 1, *values.shape[1:]))
    sums[0] = 0
    if values.ndim == 1:
        np.cumsum(values, out=sums[1:])
        return sums
    sums[1:] = values
    before = sums[1]
    for row in sums[2:]:
        np.add(before, row, row)
        before = row
    return sums


def _search(sums: Masses, at: Masses) -> IntArray:
    """Return how many of the sorted ``sums`` are at most each of ``at``.

    Sorted, as branches are predicted then: 9 us for 256 among 4,096, sorting included, not 20.
    """
    order = at.argsort()
    places = np.empty(len(at), np.int64)
    places[order] = sums.searchsorted(at.take(order), "right")
    return places
