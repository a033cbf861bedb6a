"""Fetch blocks of one remote dataset: each by one process, checked, written in place, and noted when it is whole.

A process locks the blocks that it fetches; others wait for these. Bytes that a killed process or a restart left are
taken over where they can be checked.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import disk
from rlds_cli.errors import DownloadFailed, RldsError
from rlds_cli.places.remote.flights import runs
from rlds_cli.places.remote.grounds import lock_bytes, unlock_bytes
from rlds_cli.places.remote.leases import Descriptor
from rlds_cli.places.remote.presence import FETCHING, BlockMap, Room

_POLL, _LONGEST_POLL = 0.001, 0.05  # seconds between two looks at what another process fetches
_AGAIN = 64 << 20  # bytes of blocks that leave when the disk is full

Take = Callable[[bytes | memoryview], object]
Source = Callable[[int, int, int, Take], None]
"""``source(file, start, length, take)`` gives bytes [start, start + length) of a file to ``take``, checked, in order.

It raises an RldsError for what cannot be had. ``start`` is the beginning of a block.
"""
Check = Callable[[int, int, memoryview], bool]
"""``check(file, start, data)`` returns whether ``data`` is the block of a file that begins at ``start``."""


@dataclass
class TransferStats:
    """Counts of one process since it opened the dataset.

    Attributes
    ----------
    waited : float
        Seconds for which a caller waited for blocks.
    requests : int
        Ranges that were asked for.
    fetched : int
        Bytes that arrived.
    used : int
        Bytes of rows that were read out of blocks; readers count them.
    evicted : int
        Blocks that were evicted.
    filled : int
        Bytes of blocks that arrived in the background, before anybody asked for them.
    """

    waited: float = 0.0
    requests: int = 0
    fetched: int = 0
    used: int = 0
    evicted: int = 0
    filled: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **more: float) -> None:
        """Add to counts; several threads may."""
        with self._lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)


class BlockFetcher:
    """Brings blocks into the files of one remote dataset, in this process; several threads may.

    Parameters
    ----------
    room : Room
    map : BlockMap
        The blocks of the dataset in the room.
    source : callable
        See `Source`.
    check : callable, optional
        See `Check`. Without it, bytes that a killed process or a restart left are fetched again.
    timeout : float
        Seconds to wait for other processes while no block arrives.
    where : str
        The address, for messages.
    counts : bool
        Count requests and bytes that arrive; False if the source does.
    """

    def __init__(
        self,
        room: Room,
        map: BlockMap,
        source: Source,
        *,
        check: Check | None,
        timeout: float,
        where: str,
        stats: TransferStats,
        counts: bool,
    ) -> None:
        self.room, self.map, self.source, self.stats = room, map, source, stats
        self._check, self._timeout, self._where, self._counts = check, timeout, where, counts
        self.begin()

    def begin(self) -> None:
        """Set up what belongs to this process alone: after a fork, too."""
        self._lock = threading.Lock()
        self._locks: Descriptor | None = None

    def bring(self, first: int, stop: int) -> None:
        """Fetch blocks [first, stop) that no other process fetches, and wait for those that one does."""
        left = self._missing(first, stop)
        with self._lock:
            self._locks = self._locks or Descriptor(self.map.ground.open(FETCHING))
            locks = self._locks.number
        pause, until = _POLL, time.monotonic() + self._timeout
        while len(left):
            mine = self._locked(locks, left)
            try:
                for at, many in mine:
                    for run in runs(self._missing(at, at + many), self.map.first):
                        self._fetch(*run)
            finally:
                for at, many in mine:
                    unlock_bytes(locks, at, many)
            others = left[self.map.state[left] == 0]
            if mine or len(others) < len(left):
                pause, until = _POLL, time.monotonic() + self._timeout
            elif len(others) and time.monotonic() > until:
                raise DownloadFailed(
                    f"{self.describe(int(others[0]))} did not arrive within {self._timeout:g} s: another process "
                    "fetches it.",
                    hint="a larger timeout=, or end that process",
                )
            else:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLL)
            left = others

    def _missing(self, first: int, stop: int) -> IntArray:
        """Return those of blocks [first, stop) that are not cached."""
        return first + np.flatnonzero(self.map.state[first:stop] == 0)

    def _locked(self, locks: int, blocks: IntArray) -> list[tuple[int, int]]:
        """Lock blocks, but those that another process has locked; return runs of them."""
        mine = []
        for first, many in runs(blocks, self.map.first):
            if lock_bytes(locks, first, many):
                mine.append((first, many))
            else:
                mine += [(b, 1) for b in range(first, first + many) if lock_bytes(locks, b, 1)]
        return mine

    def _fetch(self, first: int, blocks: int) -> None:
        """Fetch adjacent blocks of one file, whose locks this process has."""
        numbers, todo = np.arange(first, first + blocks), [(first, blocks)]
        if self.map.taken[first : first + blocks].any():
            numbers = self._not_adopted(numbers)
            todo = runs(numbers, self.map.first)
            if not todo:
                return
        if evicted := self.room.reserve(self.map, numbers):
            self.stats.add(evicted=evicted)
        for at, many in todo:
            file, start, _ = self.map.place(at)
            length = min(many * self.map.block, self.map.files[file].size - start)
            try:
                descriptor = self.map.open_rows(file)
            except OSError as e:
                raise self._failed(disk.disk_error(e, Path(str(self.map.ground))), at, start, start) from e
            writing = _Writing(self, descriptor, at, start)
            try:
                self.source(file, start, length, writing.take)
                if writing.at != start + length:
                    raise DownloadFailed(f"{writing.at - start:,} of {length:,} bytes came.")
            except RldsError as e:
                raise self._failed(e, at, start, writing.at) from e
            finally:
                os.close(descriptor)
            if self._counts:
                self.stats.add(requests=1, fetched=length)
            self.note(arrived=length)

    def _failed(self, e: RldsError, first: int, start: int, reached: int) -> RldsError:
        """Return the error with the block that did not arrive."""
        error = copy.copy(e)
        error.message = f"{self.describe(first + (reached - start) // self.map.block)} did not arrive: {e.message}"
        error.args = (error.message,)
        return error

    def _not_adopted(self, blocks: IntArray) -> IntArray:
        """Return blocks but those whose bytes were left on the disk without being noted: they are checked and noted."""
        if self._check is None:
            return blocks
        left = []
        for b, taken in zip(blocks.tolist(), self.map.taken[blocks].tolist(), strict=True):
            file, start, length = self.map.place(b)
            if taken and self._is_right(file, start, length):
                self.map.state[b] = 1
            else:
                left.append(b)
        return np.array(left, np.int64)

    def _is_right(self, file: int, start: int, length: int) -> bool:
        descriptor = self.map.open_rows(file)
        try:
            data = os.pread(descriptor, length, start)
        finally:
            os.close(descriptor)
        return len(data) == length and self._check is not None and self._check(file, start, memoryview(data))

    def note(self, *, arrived: int = 0, waited: float = 0.0) -> None:
        """Add to the figures of the map, as `BlockMap.note`, for the threads of this process one at a time."""
        with self._lock:
            self.map.note(arrived=arrived, waited=waited)

    def describe(self, block: int) -> str:
        """Return a block in words, by its number over all files."""
        file, start, length = self.map.place(block)
        number, path = block - int(self.map.first[file]), self.map.files[file].path
        return f"Block {number:,} of {path} (bytes {start:,}-{start + length - 1:,}) of {self._where}"


class _Writing:
    """Writes what arrives, from the beginning of a block on, and notes each block that is whole."""

    def __init__(self, of: BlockFetcher, descriptor: int, block: int, start: int) -> None:
        self._of, self._descriptor, self._block, self.at = of, descriptor, block, start
        file, _, _ = of.map.place(block)
        self._first, self._size = int(of.map.first[file]), of.map.files[file].size
        self._unit = of.map.block

    def take(self, data: bytes | memoryview) -> None:
        """Write the next bytes."""
        left = memoryview(data).cast("B")
        while left:
            done = self._write(left)
            self.at, left = self.at + done, left[done:]
        whole = self._first + (-(-self.at // self._unit) if self.at == self._size else self.at // self._unit)
        self._of.map.state[self._block : whole] = 1
        self._block = whole

    def _write(self, data: memoryview) -> int:
        try:
            return os.pwrite(self._descriptor, data, self.at)
        except OSError as e:
            if disk.is_full(e) and (left := self._of.room.shrink(least=_AGAIN)):
                self._of.stats.add(evicted=left)
                return 0
            root = self._of.room.root or Path("memory")
            raise disk.disk_error(e, root, kept="Cached blocks stay.") from e
