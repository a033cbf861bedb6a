"""Decoded frames of a field, at the size of training, in files that all processes share; safe to delete at any moment.

::

    <home>/frames/<hash>/about.json    the dataset, the field, and the shape of a frame
    <home>/frames/<hash>/index         a record of 32 bytes for each frame, in the order in which they were added
    <home>/frames/<hash>/rows          the frames, end to end, in the same order
    <home>/frames/<hash>/lock          flock: shared by those who use the frames, exclusive to remove them

A frame has the name of what it was decoded from: its video and its number there, or its image, see
`loader.fields.frame_names`. So it is right for every version of a dataset. A record is written after its frame. Its
CRC-32 is compared whenever the frame is read: a restart of the machine, a quota or a file server that fails late may
have lost bytes, which then read as zeros. That is 3 us for 64x64 pixels, and 7 for 96x96.

The frames of all datasets of a home share a limit. Where it is reached, those that no process uses leave, the oldest
first; if there are none, no more are added, and the others are decoded as without a cache. Nothing in use is replaced:
where an epoch is larger than the cache, frames that were just added would leave before they are read again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import NoPermission

FORMAT = 2
_DIRECTORY = "frames"  # of a home
ABOUT, INDEX, ROWS, LOCK = "about.json", "index", "rows", "lock"
RECORD = np.dtype([("name", "<u8", 2), ("crc", "<u8"), ("check", "<u8")])
_MOST, _PIECE = 1 << 26, 1 << 20  # records that are read at all, and at once
_LATEST = 4096  # frames that are sorted by themselves, until they are more than a sixteenth of the others
_ODD = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # to mix bits with


class FrameCache:
    """The cached frames of one field in one size.

    Parameters
    ----------
    home : Path
    key : mapping
        All that a frame's values depend on beside what it is decoded from, as JSON.
    shape : tuple of int
        Of a frame, in uint8.
    limit : int
        Bytes that the frames of all datasets of the home may take.

    Attributes
    ----------
    full : bool
        True if no more frames are added.

    Raises
    ------
    OSError, NoPermission
        The home does not take the files.
    """

    def __init__(self, home: Path, key: Mapping[str, Any], shape: tuple[int, ...], limit: int) -> None:
        self.limit, self.full = limit, False
        self.frame_bytes = arrays.row_bytes((0, *shape), "uint8")
        about = json.dumps({"format": FORMAT, **key, "shape": shape}, sort_keys=True)
        self.directory = home / _DIRECTORY / hashlib.sha256(about.encode()).hexdigest()[:16]
        self._own(_joined(self.directory, home, about))
        self._index, self._rows = (self._own(_opened(self.directory / name)) for name in (INDEX, ROWS))
        nothing = _places(np.zeros(0, RECORD), 0)
        self._known = _Known(sorted=nothing, latest=nothing, read=0)
        self._damaged = set[int]()
        self._refresh()

    def _own(self, descriptor: int) -> int:
        weakref.finalize(self, os.close, descriptor).atexit = False
        return descriptor

    # -- looking frames up

    def find(self, names: Array) -> IntArray:
        """Return where frames lie, by their names uint64 [n, 2]; -1 for those that are not cached."""
        self._refresh()
        known = self._known
        found = known.latest.find(names)
        older = found < 0
        found[older] = known.sorted.find(names[older])
        if self._damaged:
            found[np.isin(found, list(self._damaged))] = -1
        return found

    def _refresh(self) -> None:
        """Read the records that were added since the last call; of threads that do so at once, the last one counts.

        Records that are more than the frames of the other file are none: an index may be a hole of any size.
        """
        known = self._known
        count = min(self._count(), os.fstat(self._rows).st_size // max(1, self.frame_bytes), _MOST)
        while (first := known.read) < count:
            data = os.pread(self._index, min(count - first, _PIECE) * RECORD.itemsize, first * RECORD.itemsize)
            if not len(records := np.frombuffer(data, RECORD, len(data) // RECORD.itemsize)):
                return
            latest, older = known.latest.joined(_places(records, first)), known.sorted
            if len(latest) > max(_LATEST, len(older) // 16):
                older, latest = older.joined(latest), _places(records[:0], 0)
            self._known = known = _Known(sorted=older, latest=latest, read=first + len(records))

    def _count(self) -> int:
        """Return the number of records in the file."""
        return os.fstat(self._index).st_size // RECORD.itemsize

    def read(self, place: int, into: Array) -> bool:
        """Read the frame at a place into uint8 [*shape], contiguous; False if it is not what was written."""
        whole = os.preadv(self._rows, [into.data], place * self.frame_bytes) == self.frame_bytes
        record = np.frombuffer(os.pread(self._index, RECORD.itemsize, place * RECORD.itemsize), RECORD)
        is_right = whole and len(record) == 1 and zlib.crc32(into.data) == record["crc"][0]
        if not is_right:
            self._damaged.add(place)
        return is_right

    # -- adding frames

    def add(self, names: Array, frames: Array) -> None:
        """Add frames uint8 [n, *shape] by their names uint64 [n, 2]; those that others have added meanwhile stay.

        Where the room or the disk is full, none is added any more.
        """
        with self._locked():
            new = np.flatnonzero(self.find(names) < 0)
            if not len(new) or self.full or not self._has_room(len(new)):
                return
            names, frames = names[new], np.ascontiguousarray(frames[new])
            records = np.zeros(len(new), RECORD)
            records["name"] = names
            records["crc"] = [zlib.crc32(frame) for frame in frames]
            records["check"] = _checks(records)
            place = self._count()  # not what is known: another thread may set that back
            try:
                arrays.write_at(self._rows, place * self.frame_bytes, frames)
                arrays.write_at(self._index, place * RECORD.itemsize, records.view(np.uint8))
            except OSError:  # the disk is full, or the quota
                self.full = True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes, and other threads, from adding."""
        descriptor = _opened(self.directory / INDEX)  # of its own: an flock belongs to an open file
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _has_room(self, count: int) -> bool:
        """Return whether frames may be added, after frames of others that no process uses have left, if need be."""
        while self._used() + count * self.frame_bytes > self.limit:
            others = [d for d in self.directory.parent.iterdir() if d != self.directory and (d / INDEX).exists()]
            if not any(discard_frames(d) for d in sorted(others, key=lambda d: (d / INDEX).stat().st_mtime)):
                self.full = True
                return False
        return True

    def _used(self) -> int:
        used = 0
        for rows in self.directory.parent.glob(f"*/{ROWS}"):
            with suppress(OSError):
                used += rows.stat().st_size
        return used


def _joined(directory: Path, home: Path, about: str) -> int:
    """Take part in the lock of a directory of frames, which is made if it does not exist; return its descriptor."""
    while True:
        safe_files.directory(directory, home)
        with suppress(FileNotFoundError):  # another process removes the directory at this moment
            lock = _opened(directory / LOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(lock), (directory / LOCK).stat()):
                    if not (directory / ABOUT).exists():
                        safe_files.replace_text(directory / ABOUT, about)
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)


def _opened(path: Path) -> int:
    return safe_files.open_own(path, os.O_RDWR | os.O_CREAT)


def discard_frames(directory: Path) -> bool:
    """Remove the cached frames of one field; return False if a process uses them."""
    try:
        lock = _opened(directory / LOCK)
    except (OSError, NoPermission):
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), (directory / LOCK).stat()):
            return False  # another process has removed that one, and this is a new one
        trees.remove_aside(trees.set_aside(directory))  # under its name, somebody could join while files leave
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


# -- places of frames by their names


class _Places:
    """Where frames lie, sorted by the first half of their names."""

    def __init__(self, names: Array, place: IntArray) -> None:
        order = np.lexsort((place, names[:, 0]))
        self._names, self._place = names[order], place[order]
        self._first = np.ascontiguousarray(self._names[:, 0])

    def __len__(self) -> int:
        return len(self._place)

    def find(self, names: Array) -> IntArray:
        """Return the places of names uint64 [n, 2], the latest of each; -1 for those that are not known."""
        if not len(self):
            return np.full(len(names), -1)
        at = np.searchsorted(self._first, names[:, 0], "right") - 1
        return np.where((self._names[at] == names).all(1), self._place[at], -1)

    def joined(self, other: _Places) -> _Places:
        """Return the places of both."""
        names = np.concatenate([self._names, other._names])
        return _Places(names, np.concatenate([self._place, other._place]))


class _Known(NamedTuple):
    """The records that were read, how many they are, and their places: of most, sorted rarely, and of the latest."""

    sorted: _Places
    latest: _Places
    read: int


def _places(records: Array, first: int) -> _Places:
    """Return the places of whole records, of which the first is number ``first``."""
    whole = np.flatnonzero(records["check"] == _checks(records))
    return _Places(records["name"][whole], whole + first)


def _checks(records: Array) -> Array:
    """Return the checksums of records, which a killed process or a restart may have left unfinished."""
    mixed = records["name"][:, 0] * _ODD[0] + records["name"][:, 1] * _ODD[1] + records["crc"] * _ODD[2]
    return np.asarray(mixed ^ mixed >> np.uint64(29) ^ _ODD[0])
