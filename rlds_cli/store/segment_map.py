"""Mapped segments of an array that a writer adds to, wherever their files are."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files.mapping import Addresses
from rlds_cli.errors import DamagedDataset
from rlds_cli.store.columns import Column

HINT = "rlds verify ID shows all damage"
_ROOM, _ROOM_BYTES = 1 << 24, 1 << 40  # rows to come, and bytes of them, for which addresses are reserved


Opened = Callable[[int], int]  # number of a segment: a new descriptor of its file


class SegmentMap:
    """The mapped segments of a column, from its first entry on; it stays valid while arrays of it are used.

    Parameters
    ----------
    column : Column
        Addresses are reserved for its entries, and for more to come.
    opened : callable
        Opens a segment by its number.
    """

    def __init__(self, column: Column, opened: Opened) -> None:
        self._opened = opened
        self._column, self._segment_rows = column, column.segment_rows
        self._first = column.first // self._segment_rows
        count, most = column.stop - column.first, max(self._segment_rows, _ROOM_BYTES // max(1, column.width))
        room = min(max(_ROOM, count), most)
        self._capacity = max(2, -(-(column.stop + room) // self._segment_rows) - self._first)  # segments
        self._mapped: set[int] = set()
        self._used: list[tuple[weakref.ref[Any], frozenset[int]]] = []  # arrays in use, and the segments that they need
        self._lock = threading.Lock()
        self._size = self._capacity * column.size
        if self._size:
            self._addresses = Addresses(self._size)

    def fits(self, first: int, rows: int) -> bool:
        """Return whether rows from ``first`` up to ``rows`` have addresses here."""
        return self._first * self._segment_rows <= first and rows <= (self._first + self._capacity) * self._segment_rows

    def rows(self, first: int, rows: int, needed: Sequence[int], hold: object = None) -> Array:
        """Return rows ``first`` to ``rows``, read-only; the segments ``needed`` must exist.

        The array keeps ``hold``, so that its rows are not freed while it is used.

        Raises
        ------
        DamagedDataset
            A segment is missing, or its file has another size.
        """
        if not self._size:
            empty: Array = np.zeros((rows - first, *self._column.shape), self._column.dtype)
            empty.flags.writeable = False
            return empty
        count = self._capacity * self._segment_rows
        view = self._addresses.view(hold)
        with self._lock:
            for number in needed:
                if number not in self._mapped:
                    self._map(number)
            self._used = [(used, numbers) for used, numbers in self._used if used() is not None]
            self._used.append((weakref.ref(view), frozenset(needed)))
            for number in self._mapped.difference(*(numbers for _, numbers in self._used)):
                self._unmap(number)
        whole: Array = np.frombuffer(view, self._column.dtype).reshape(count, *self._column.shape)
        part = whole[first - self._first * self._segment_rows :][: rows - first]
        part.flags.writeable = False
        return part

    def _map(self, number: int) -> None:
        """Map a segment where its addresses are reserved: elsewhere other memory of the process would be gone."""
        if not self._first <= number < self._first + self._capacity:
            last = self._first + self._capacity - 1
            raise DamagedDataset(
                f"{self._column.directory}: segment {number:,} is none of {self._first:,} to {last:,}.", hint=HINT
            )
        size = self._column.size
        descriptor = self._opened(number)
        try:
            self._addresses.map((number - self._first) * size, size, descriptor)
        finally:
            os.close(descriptor)
        self._mapped.add(number)

    def _unmap(self, number: int) -> None:
        """Let go of a segment that no array needs."""
        size = self._column.size
        self._addresses.unmap((number - self._first) * size, size)
        self._mapped.discard(number)
