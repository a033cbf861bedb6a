"""Columns of rows that lie in blocks: arrays of which the part that is read is fetched, copied and let go of."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import NeedsMemory
from rlds_cli.places.remote.cache import BlockFiles, BlockHold
from rlds_cli.places.remote.presence import GROUP
from rlds_cli.store.blocks import BytePlace

_AT_A_TIME = 32  # groups of blocks that are read together
_AHEAD = 2  # times as many that arrive meanwhile


class RemoteColumn(NDArrayOperatorsMixin):
    """Rows of a remote dataset as an array: what is read of it is fetched and copied.

    Slices and arrays of row numbers read only these rows. Everything else that arrays can do works on a copy of all
    rows.

    Parameters
    ----------
    raw : array [n, ...]
        The rows as they are mapped: of blocks that are not held, they are anything.
    blocks : BlockFiles
    place : BytePlace
    """

    __array_priority__ = 1.0

    def __init__(self, raw: Array, blocks: BlockFiles, place: BytePlace) -> None:
        self._raw, self._blocks, self._place = raw, blocks, place
        self.dtype, self.shape, self.ndim = raw.dtype, raw.shape, raw.ndim
        self._width = math.prod(raw.shape[1:]) * raw.dtype.itemsize

    def __len__(self) -> int:
        return len(self._raw)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self._raw) * self._width

    def window(self, start: int, stop: int) -> RemoteColumn:
        """Return rows ``start`` to ``stop`` without reading them."""
        place = replace(self._place, skip=self._place.skip + start * self._width)
        return RemoteColumn(self._raw[start:stop], self._blocks, place)

    def hold(self, starts: IntArray, stops: IntArray) -> BlockHold:
        """Return a hold on ranges of rows [n], so that reading them one by one waits for nothing."""
        hold = self._announce(starts, stops)
        try:
            hold.wait()
        except BaseException:
            hold.release()
            raise
        return hold

    def held(self, starts: IntArray, stops: IntArray) -> HeldColumn:
        """Return the rows for whoever has a hold on these ranges [n] of them."""
        order = np.argsort(starts)
        starts, reached = starts[order], np.maximum.accumulate(stops[order])
        before = np.append(0, reached)[: len(reached)]
        rows = int((reached - np.maximum(starts, before)).clip(0).sum())
        self._blocks.stats.add(used=rows * self._width)
        return HeldColumn(self, starts.tolist(), reached.tolist())

    def _announce(self, starts: IntArray, stops: IntArray) -> BlockHold:
        """Return a hold on ranges of rows [n] that begin to arrive."""
        starts, stops = starts * self._width, stops * self._width
        large = len(starts) and int((stops - starts).sum()) >= len(starts) * self._blocks.large
        wanted = self._place.wanted(starts, stops)
        return self._blocks.announce(wanted, [file for file, _ in wanted] if large else ())

    # -- reading

    def __getitem__(self, index: Any) -> Any:
        rest: tuple[Any, ...] = ()
        if isinstance(index, tuple):
            index, *others = index or (slice(None),)
            rest = tuple(others)
        if index is None or index is Ellipsis or (rest and not isinstance(index, slice | int | np.integer)):
            found = self._slice(slice(None))
            return found[(index, *rest)]
        if isinstance(index, bool | np.bool_):
            return self._slice(slice(None))[(index, *rest)]
        if isinstance(index, slice):
            found = self._slice(index)
            return found[(slice(None), *rest)] if rest else found
        if isinstance(index, int | np.integer):
            row = int(index) + (len(self) if index < 0 else 0)
            if not 0 <= row < len(self):
                raise IndexError(f"index {int(index)} is out of bounds for axis 0 with size {len(self)}")
            one = self._slice(slice(row, row + 1))[0]
            return one[rest] if rest else one
        rows = np.asarray(index)
        if rows.dtype == bool:
            if rows.ndim != 1 or len(rows) != len(self):
                return self._slice(slice(None))[rows]
            rows = np.flatnonzero(rows)
        if not rows.size:
            return self._raw[:0][rows.astype(np.int64)]
        if rows.dtype.kind not in "iu":
            raise IndexError("arrays used as indices must be of integer (or boolean) type")
        numbers = rows.reshape(-1).astype(np.int64)
        low, high = int(numbers.min()), int(numbers.max())
        if low < -len(self) or high >= len(self):
            wrong = low if low < -len(self) else high
            raise IndexError(f"index {wrong} is out of bounds for axis 0 with size {len(self)}")
        taken = self._take(np.where(numbers < 0, numbers + len(self), numbers))
        return taken.reshape(*rows.shape, *self.shape[1:])

    def _slice(self, index: slice) -> Array:
        start, stop, step = index.indices(len(self))
        if abs(step) > 1:
            return self._take(np.arange(start, stop, step))
        if step < 0:
            return self._slice(slice(stop + 1, start + 1))[::-1] if start > stop else self._raw[:0].copy()
        stop = max(start, stop)
        out = self._empty(stop - start)
        rows = max(1, _AT_A_TIME * GROUP // max(1, self._width))
        firsts = range(start, stop, rows)
        for first, _ in self._arriving([(a, min(a + rows, stop)) for a in firsts]):
            last = min(first + rows, stop)
            out[first - start : last - start] = self._raw[first:last]
        return out

    def _arriving(self, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows while each is held, with some ahead."""
        ahead: deque[BlockHold] = (
            deque()
        )  # without `finally`: the garbage collector may end a generator, and takes no locks
        at = 0
        for a, b in ranges:
            while at < len(ranges) and len(ahead) <= _AHEAD:
                ahead.append(self._announce(*(np.array([row]) for row in ranges[at])))
                at += 1
            ahead[0].wait()
            yield a, b
            self._blocks.stats.add(used=(b - a) * self._width)
            ahead.popleft().release()

    def _take(self, rows: IntArray) -> Array:
        out = self._empty(len(rows))
        order = np.argsort(rows, kind="stable")
        groups = rows[order] * self._width // GROUP
        rank = np.cumsum(np.diff(groups, prepend=groups[:1]) > 0) * max(1, self._width // GROUP)
        parts = np.split(order, np.flatnonzero(np.diff(rank // _AT_A_TIME)) + 1)
        ahead: deque[BlockHold] = deque()
        at = 0
        try:
            for part in parts:
                while at < len(parts) and len(ahead) <= _AHEAD:
                    ahead.append(self._announce(rows[parts[at]], rows[parts[at]] + 1))
                    at += 1
                ahead[0].wait()
                out[part] = self._raw[rows[part]]
                self._blocks.stats.add(used=len(part) * self._width)
                ahead.popleft().release()
        finally:
            for hold in ahead:
                hold.release()
        return out

    def _empty(self, rows: int) -> Array:
        needed, memory = rows * self._width, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            raise NeedsMemory(
                f"{rows:,} rows take {needed:,} bytes; this machine has {memory:,}.",
                hint="read a part: column[start:stop]",
            )
        return np.empty((rows, *self.shape[1:]), self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self._slice(slice(None))
        return found if dtype is None else found.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(i) if isinstance(i, RemoteColumn) else i for i in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __iter__(self) -> Iterator[Any]:
        rows = max(1, GROUP // max(1, self._width))
        for first in range(0, len(self), rows):
            yield from self._slice(slice(first, first + rows))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def __repr__(self) -> str:
        return f"<RemoteColumn {self.dtype} {list(self.shape)}>"


class HeldColumn(RemoteColumn):
    """Rows of which somebody holds some ranges: slices of these are copied without asking for their blocks.

    The ranges count as used as a whole, when they are held.

    Parameters
    ----------
    of : RemoteColumn
    starts : sequence of int
        First row of each range, ascending.
    reached : sequence of int
        The row behind the last one of all ranges so far.
    first : int
        Where ``of`` begins in what the ranges count.
    """

    def __init__(self, of: RemoteColumn, starts: Sequence[int], reached: Sequence[int], first: int = 0) -> None:
        super().__init__(of._raw, of._blocks, of._place)
        self._starts, self._reached, self._first = starts, reached, first

    def window(self, start: int, stop: int) -> HeldColumn:
        """Return rows ``start`` to ``stop`` without reading them."""
        return HeldColumn(super().window(start, stop), self._starts, self._reached, self._first + start)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.step is None and index.start is not None and index.stop is not None:
            start, stop = index.start, index.stop
            if 0 <= start < stop <= len(self._raw):
                known = bisect_right(self._starts, self._first + start)
                if known and self._first + stop <= self._reached[known - 1]:
                    return self._raw[start:stop].copy()
        return super().__getitem__(index)
