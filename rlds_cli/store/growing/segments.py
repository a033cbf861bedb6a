"""Rows in segments: files of equal numbers of rows, which are mapped side by side and read as one array.

A segment is a chunk of a Zarr array without compression: a file of raw rows, made at its full length and sparse, so
that rows which are written later are in the map already. Its number of rows is a multiple of 4,096: it then starts at a
page in the files of every field, and segments of a field lie next to each other in memory. A segment of which no row is
kept is removed. Its memory then stays with the processes that have it mapped, and others see zeros there, which belong
to no episode.

A field of encoded images has two arrays in segments, and so has a field of videos::

    FIELD/offsets       int64 [rows, 2]   first byte of the image of each row, and the byte behind it
    FIELD/bytes         uint8 [bytes]     the images of all episodes, end to end
    FIELD               int32 [rows, 2]   number of the video, number of the frame in it; -1 for none
    video/FIELD/bytes   uint8 [bytes]     the videos, end to end

Large rows and encoded images have digests, see `store.digests`: ``rows/FIELD``, uint8 [rows, 32] in segments.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays, disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import layouts
from rlds_cli.store.columns import Column
from rlds_cli.store.growing.logs import HINT, sync
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.table import arrays_of

_SEGMENT_BYTES = 128 << 20  # of one row of all fields
_FRAME_BYTES = 64 << 20, 64 << 10  # of a segment of encoded frames: at most, and at least, a multiple of any page
_MOST_ROWS = 1 << 22  # of a segment
_MOST_SEGMENTS = 1 << 26


def rows_of_segment(row_bytes: int, most: int | None = None) -> int:
    """Return the rows of a segment: about 128 MiB of all fields, and at most ``most``, a multiple of 4,096."""
    rows = min(_MOST_ROWS, _SEGMENT_BYTES // max(1, row_bytes), most or _MOST_ROWS)
    return max(layouts.PAGE_ROWS, 1 << max(0, rows.bit_length() - 1))


def bytes_of_segment(frame_bytes: int, most: int | None = None) -> int:
    """Return the bytes of a segment of encoded frames: 64 MiB, and at most ``most`` frames as they are decoded."""
    largest, least = _FRAME_BYTES
    wanted = largest if most is None else most * frame_bytes
    return max(least, min(largest, 1 << max(0, wanted.bit_length() - 1)))


def columns_of(m: Manifest) -> list[Column]:
    """Return the arrays of a growing dataset, as they are before its first version has entries."""
    rows, size = int(m.growing["segment_rows"]), int(m.growing.get("segment_bytes", 0))
    return [replace(c, segment_rows=rows if c.by_row else size) for f in m.fields for c in arrays_of(f)]


def episodes_in(first: IntArray, stop: IntArray, segment_rows: int) -> IntArray:
    """Count the episodes with rows in each segment, by its number [segments].

    Parameters
    ----------
    first, stop : int array [episodes]
        Rows of the episodes.
    segment_rows : int

    Raises
    ------
    DamagedDataset
        An episode lies where no dataset has rows.
    """
    some = stop > first
    start, first, last = first[some], first[some] // segment_rows, (stop[some] - 1) // segment_rows
    wrong = (first < 0) | (last < first) | (last >= _MOST_SEGMENTS)
    if wrong.any():
        row = int(start[np.argmax(wrong)])
        raise DamagedDataset(f"An episode begins at row {row:,} or ends where no dataset has rows.", hint=HINT)
    count = int(last.max(initial=-1)) + 1
    begin, end = (np.bincount(numbers, minlength=count + 1) for numbers in (first, last + 1))
    return np.cumsum(begin - end)[:count]


# -- writing


class SegmentWriter:
    """Writes the rows of one array of a dataset from a given row on. ``durable`` as of an `Appender`."""

    def __init__(self, dataset: Path, column: Column, *, durable: bool = True) -> None:
        self.dataset, self.column, self._durable = dataset, column, durable
        self._segment_rows, self._width = column.segment_rows, column.width
        self._open: dict[int, int] = {}  # descriptors by segment
        self._dirty: set[int] = set()

    def write(self, row: int, values: Array) -> None:
        """Write rows; those after them are not committed yet, or not there."""
        dtype, shape = self.column.dtype, self.column.shape
        if values.dtype != dtype or values.shape[1:] != shape:
            raise ValueError(f"{self.directory}: {values.dtype} {values.shape[1:]} instead of {dtype} {shape}")
        done = 0
        while self._width and done < len(values):
            number, within = divmod(row + done, self._segment_rows)
            count = min(len(values) - done, self._segment_rows - within)
            part = arrays.little_endian(values[done : done + count])
            arrays.write_at(self._descriptor(number), within * self._width, part)
            self._dirty.add(number)
            done += count

    @property
    def directory(self) -> Path:
        """The directory of the array."""
        return self.dataset / self.column.directory

    def _file(self, number: int) -> Path:
        return self.dataset / self.column.file(number)

    def names(self, number: int) -> int:
        """Return how many names the file of a segment has: a second one is that of a dataset that shares it."""
        try:
            return self._file(number).stat().st_nlink
        except FileNotFoundError:
            return 0

    def existing(self) -> list[int]:
        """Return the numbers of the segments that exist."""
        try:
            return sorted(int(e.name) for e in os.scandir(self.directory / "c") if e.name.isdecimal())
        except FileNotFoundError:
            return []

    def _descriptor(self, number: int) -> int:
        if number in self._open and os.fstat(self._open[number]).st_nlink:
            return self._open[number]
        for old in [n for n in self._open if n < number - 1 or n == number]:
            self._close(old)
        file = self._file(number)
        safe_files.make(file.parent)
        descriptor = self._open[number] = safe_files.open_own(file, os.O_RDWR | os.O_CREAT)
        if os.fstat(descriptor).st_size != self.column.size:
            os.ftruncate(descriptor, self.column.size)
            for made in list(file.parents)[: 2 + len(self.column.shape)] if self._durable else ():
                disk.sync_directory(made)
        return descriptor

    def _close(self, number: int) -> None:
        """Close a file, which is on the disk then if it has to be."""
        descriptor = self._open.pop(number)
        try:
            if number in self._dirty and self._durable and os.fstat(descriptor).st_nlink:
                sync(descriptor)
        finally:
            self._dirty.discard(number)
            os.close(descriptor)

    def dirty(self) -> list[int]:
        """Return the descriptors of files that were written to since the last call."""
        found = [self._open[number] for number in self._dirty]
        self._dirty.clear()
        return found

    def punch(self, first: int, stop: int) -> None:
        """Give the disk back that rows [first, stop) take, as far as whole pages do.

        Nothing is given back of a file with a second name: another dataset has its rows there.
        """
        page = mmap.PAGESIZE
        for number in range(first // self._segment_rows, -(-stop // self._segment_rows)):
            base = number * self._segment_rows
            a = -(-(max(first, base) - base) * self._width // page) * page
            b = (min(stop, base + self._segment_rows) - base) * self._width // page * page
            if b > a and self.names(number) == 1:
                _punch(self._descriptor(number), a, b - a)

    def drop(self, row: int) -> None:
        """Give the disk back that rows from ``row`` on take, which are not committed."""
        number, within = divmod(row, self._segment_rows)
        for later in self.existing():
            if later > number or (later == number and not within):
                self.remove(later)
        if within:
            self.punch(row, (number + 1) * self._segment_rows)

    def remove(self, number: int) -> None:
        """Remove a segment, of which no row is kept."""
        self._dirty.discard(number)
        if number in self._open:
            self._close(number)
        file = self._file(number)
        file.unlink(missing_ok=True)
        for parent in list(file.parents)[: len(self.column.shape)]:
            if parent.name != "c" and parent.is_dir():
                parent.rmdir()

    def close(self) -> None:
        """Close all files."""
        for number in list(self._open):
            self._close(number)


_libc = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate(2)


def _punch(descriptor: int, at: int, size: int) -> None:
    """Give pages of a file back, where the file system can."""
    if hasattr(_libc, "fallocate"):
        _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_longlong(at), ctypes.c_longlong(size))
