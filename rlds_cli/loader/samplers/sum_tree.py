"""Positive masses that change, and the number that a draw in proportion to them falls on.

Sixteen masses make a node, sixteen nodes a node above, until at most 4,096 are left, which are scanned flat::

    top       sums, minima   [<= 4096]            running sums, and one binary search a draw
    ...                                           one row of 16 a draw and level
    level 1   sums, minima   [count / 16]
    level 0   masses         [count]

A million masses have two levels below the top, 10**8 four. A few wide levels take half as many array operations as a
binary tree, and hold 9.1 bytes a mass where that holds 16, and as many again for its minima.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rlds_cli.ted import Array

_BITS = 4
_WIDTH = 1 << _BITS
_TOP = 4096
_BLOCK = 1 << 14  # nodes summed at a time when all are: what they take stays in the cache
_BELOW = 1 - 2.0**-53  # times a positive number: rounded to less than the number

LEAST, MOST = 1e-290, 1e290  # masses between them have sums that are neither infinite nor short of bits


class SumTree:
    """The masses of the numbers 0..count-1, all equal at first.

    The arrays are NumPy's, or torch tensors on a device: the same code runs on both.

    Parameters
    ----------
    count : int
        At least 1.
    mass : float
        Of every number, in [`LEAST`, `MOST`] as all that are set later.
    device : torch.device or str, optional
        Where tensors lie; None for NumPy arrays.
    """

    def __init__(self, count: int, mass: float, *, device: Any = None) -> None:
        self.count = count
        self.library: Library = NumPy() if device is None else Torch(device)
        self._sizes = [count]
        while self._sizes[-1] > _TOP:
            self._sizes.append(-(-self._sizes[-1] // _WIDTH))
        padded = [-(-size // _WIDTH) * _WIDTH for size in self._sizes]
        self._sums = [self.library.full(size, 0.0) for size in padded]
        self._minima = [self._sums[0]] + [self.library.full(size, np.inf) for size in padded[1:]]
        self.fill(mass)

    @property
    def masses(self) -> Any:
        """All masses, float64 [count]: a view, not to be written."""
        return self._sums[0][: self.count]

    @property
    def total(self) -> Any:
        """Their sum, float64 []."""
        return self._sums[-1].sum()

    @property
    def least(self) -> Any:
        """The least of them, float64 []."""
        return self._minima[-1][: self._sizes[-1]].min()

    def find(self, u: Any) -> Any:
        """Return the number that each of ``u``, float64 [K] in [0, 1), falls on: int64 [K]."""
        xp = self.library.module
        sums = self.library.running(self._sums[-1])
        at = u * sums[-1]  # below the sum, as u <= 1 - 2**-53
        node = place = self.library.search(sums[1:], at)
        draws = self.library.arange(len(u))
        for masses in self._sums[-2::-1]:
            at = at - sums.reshape(-1).take(place)
            sums = self.library.running(self.library.children(masses, node))
            at = xp.minimum(at, sums[-1] * _BELOW)  # what rounding left over must not fall on the padding
            child = (sums[1:] <= at).sum(0)
            place = child * len(u) + draws
            node = (node << _BITS) + child
        return node

    def update(self, numbers: Any, masses: Any) -> None:
        """Set the masses, float64 [K], of ``numbers``, int64 [K]; where one stands there twice its last mass counts.

        A node is summed anew over all that it holds, so that sums never drift from the masses.
        """
        self.library.put(self._sums[0], numbers, masses)
        for level in range(len(self._sums) - 1):
            numbers = numbers >> _BITS
            self._gather(level, numbers)

    def fill(self, masses: Any) -> None:
        """Set all masses, float64 [count] or one for all."""
        self._sums[0][: self.count] = masses
        for level, size in enumerate(self._sizes[1:]):
            for start in range(0, size, _BLOCK):
                self._gather(level, slice(start, min(start + _BLOCK, size)))

    def _gather(self, level: int, nodes: Any) -> None:
        """Take the sums and minima of ``nodes`` of the level above from their children."""
        library, xp = self.library, self.library.module
        masses = library.dense(library.children(self._sums[level], nodes))
        self._sums[level + 1][nodes] = _fold(xp.add, masses)
        minima = library.dense(library.children(self._minima[level], nodes)) if level else masses
        self._minima[level + 1][nodes] = _fold(xp.minimum, minima)
        if not level:  # the last node may be padded with zeros
            last = self._sizes[1] - 1
            self._minima[1][last] = self._sums[0][last << _BITS : self.count].min()


def _fold(operation: Callable[[Any, Any], Any], children: Any) -> Any:
    """Combine sixteen rows into one; unlike a reduction, which orders its additions by the shape, always alike."""
    while len(children) > 1:
        half = len(children) // 2
        children = operation(children[:half], children[half:])
    return children[0]


class Library(Protocol):
    """What NumPy and torch do not call the same."""

    module: Any

    def full(self, size: int, value: float) -> Any:
        """Float64 [size]."""
        ...

    def arange(self, stop: int) -> Any:
        """Int64 [stop]."""
        ...

    def children(self, values: Any, nodes: Any) -> Any:
        """The sixteen values below each of ``nodes`` [16, K], in any layout; they are [K] or a slice."""
        ...

    def dense(self, values: Any) -> Any:
        """``values`` [16, K] as sixteen long rows: they are added several times faster than many short ones."""
        ...

    def floats(self, values: Any) -> Any:
        """Anything like an array, on whatever device, as float64 [K]."""
        ...

    def integers(self, values: Any) -> Any:
        """The same as int64 [K]; TypeError where they are no integers."""
        ...

    def numpy(self, values: Any) -> Array:
        """A NumPy array of its own."""
        ...

    def running(self, values: Any) -> Any:
        """Sums along the first axis, of none to all of ``values``: one more than there are."""
        ...

    def search(self, sums: Any, at: Any) -> Any:
        """How many of the sorted ``sums`` [n] are at most ``at`` [K]: int64 [K]."""
        ...

    def put(self, values: Any, numbers: Any, new: Any) -> None:
        """Set ``values`` at ``numbers`` [K] to ``new`` [K]; the last counts."""
        ...


class NumPy:
    """`Library` of NumPy."""

    module: Any = np

    def full(self, size: int, value: float) -> Array:
        """Return values; zeros are not written, which halves the time to make 10**8."""
        return np.full(size, value) if value else np.zeros(size)

    def arange(self, stop: int) -> Array:
        """Return numbers."""
        return np.arange(stop)

    def children(self, values: Array, nodes: Any) -> Array:
        """Return values."""
        rows = values.reshape(-1, _WIDTH)
        return (rows[nodes] if isinstance(nodes, slice) else rows.take(nodes, 0)).T

    def dense(self, values: Array) -> Array:
        """Return values."""
        return np.ascontiguousarray(values)

    def floats(self, values: Any) -> Array:
        """Return values."""
        if hasattr(values, "detach"):  # a tensor, whose bfloat16 NumPy does not know
            values = values.detach().cpu().double()
        return np.asarray(values, np.float64).reshape(-1)

    def integers(self, values: Any) -> Array:
        """Return values."""
        given = np.asarray(values.cpu() if hasattr(values, "cpu") else values).reshape(-1)
        return given.astype(np.int64, casting="same_kind", copy=False)

    def numpy(self, values: Array) -> Array:
        """Return values."""
        return values.copy()

    def running(self, values: Array) -> Array:
        """Return sums; NumPy's own cumsum takes 17 us for [16, 256] along either axis, additions of rows half of it."""
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

    def search(self, sums: Array, at: Array) -> Array:
        """Return places; sorted, as branches are foreseen then: 9 us for 256 among 4,096, sorting included, not 20."""
        order = at.argsort()
        places = np.empty(len(at), np.int64)
        places[order] = sums.searchsorted(at.take(order), "right")
        return places

    def put(self, values: Array, numbers: Array, new: Array) -> None:
        """Set values: NumPy assigns in order."""
        values[numbers] = new


class Torch:
    """`Library` of torch tensors on ``device``."""

    def __init__(self, device: Any) -> None:
        import torch

        self.module: Any = torch
        self.device = torch.device(device)

    def full(self, size: int, value: float) -> Any:
        """Return values."""
        return self.module.full((size,), value, dtype=self.module.float64, device=self.device)

    def arange(self, stop: int) -> Any:
        """Return numbers."""
        return self.module.arange(stop, device=self.device)

    def children(self, values: Any, nodes: Any) -> Any:
        """Return values."""
        return values.view(-1, _WIDTH)[nodes].t()

    def dense(self, values: Any) -> Any:
        """Return values."""
        return values.contiguous()

    def floats(self, values: Any) -> Any:
        """Return values."""
        return self.module.as_tensor(values, dtype=self.module.float64, device=self.device).detach().reshape(-1)

    def integers(self, values: Any) -> Any:
        """Return values."""
        given = self.module.as_tensor(values, device=self.device).reshape(-1)
        if given.is_floating_point() or given.is_complex():
            raise TypeError
        return given.long()

    def numpy(self, values: Any) -> Array:
        """Return values."""
        copy: Array = values.cpu().numpy().copy()
        return copy

    def running(self, values: Any) -> Any:
        """Return sums."""
        return self.module.nn.functional.pad(values, (0,) * (2 * values.ndim - 2) + (1, 0)).cumsum(0)

    def search(self, sums: Any, at: Any) -> Any:
        """Return places."""
        return self.module.searchsorted(sums, at, side="right")

    def put(self, values: Any, numbers: Any, new: Any) -> None:
        """Set values: torch assigns in no order, so each number is kept once, where it stands last."""
        ordered, places = self.module.sort(numbers, stable=True)
        last = self.module.ones_like(ordered, dtype=self.module.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        values[ordered[last]] = new[places[last]]
