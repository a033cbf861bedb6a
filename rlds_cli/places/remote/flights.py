"""Flights: runs of blocks on their way, and the threads that bring them, the most urgent first."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from itertools import count, pairwise
from queue import PriorityQueue
from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import DownloadFailed
from rlds_cli.places.remote.presence import MANY

_AT_EXIT, NOW, AHEAD, BEHIND, _END = range(5)  # what is done first
LONGEST_RUN = 8 * MANY  # blocks of one request
_EXIT_TIMEOUT = 5.0  # seconds in which requests that are on their way may end with the process


def runs(blocks: IntArray, starts: IntArray, longest: int = LONGEST_RUN) -> list[tuple[int, int]]:
    """Return runs of adjacent blocks of one file as (first, blocks); ``starts`` are the first blocks of all files."""
    if len(blocks) <= 1:
        return [(b, 1) for b in blocks.tolist()]
    cuts = list[int]()
    one, other = starts.searchsorted(blocks[:: len(blocks) - 1], "right").tolist()
    if one != other or blocks[-1] - blocks[0] >= len(blocks):
        cuts = (np.flatnonzero((blocks[1:] - blocks[:-1] > 1) | np.isin(blocks[1:], starts)) + 1).tolist()
    return [
        (int(blocks[at]), min(longest, stop - at))
        for first, stop in pairwise([0, *cuts, len(blocks)])
        for at in range(first, stop, longest)
    ]


class BlockRequest:
    """A run of blocks that is being fetched."""

    __slots__ = ("begun", "blocks", "done", "error", "first", "made", "stop", "urgency")

    def __init__(self, first: int, blocks: int, urgency: int) -> None:
        self.first, self.blocks, self.stop = first, blocks, first + blocks
        self.urgency, self.made, self.begun = urgency, time.monotonic(), False
        self.done = threading.Event()
        self.error: BaseException | None = None

    @property
    def groups(self) -> range:
        """Numbers of its groups."""
        return range(self.first // MANY, (self.stop - 1) // MANY + 1)

    def brings(self, blocks: IntArray) -> bool:
        """Return whether one of some ascending blocks is in it."""
        at = int(blocks.searchsorted(self.first))
        return at < len(blocks) and blocks[at] < self.stop


class Pool:
    """Daemon threads that fetch; what is waited for goes before what was announced."""

    def __init__(self, threads: int) -> None:
        self._most, self._threads = threads, 0
        self._idle = self._waiting = 0  # threads, and flights that none has taken
        self._numbers = count()
        self._queue: PriorityQueue[tuple[int, int, Any, Any]] = PriorityQueue()
        self._lock = threading.Lock()
        self._process, self._made = os.getpid(), list[threading.Thread]()
        _pools.add(self)

    def put(self, urgency: int, method: weakref.WeakMethod[Any], flight: BlockRequest) -> None:
        """Have a flight flown."""
        with self._lock:
            self._waiting += 1
            self._queue.put((urgency, next(self._numbers), method, flight))
            if self._idle < self._waiting and self._threads < self._most:
                self._threads += 1
                self._made.append(threading.Thread(target=self._work, daemon=True, name="rlds-blocks"))
                self._made[-1].start()

    def grow(self) -> None:
        """Allow one more thread, in place of one that is stuck."""
        with self._lock:
            self._most += 1

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            _, _, method, flight = self._queue.get()
            with self._lock:
                self._idle -= 1
                self._waiting -= 1
            if method is None:
                return
            fly = method()
            if fly is None:
                flight.error = DownloadFailed("the dataset was closed")
                flight.done.set()
            else:
                fly(flight)
            del fly, method, flight

    def close(self, urgency: int = _END) -> None:
        """End all threads, those that fetch after what they do."""
        for _ in range(self._threads):
            self._waiting += 1
            self._queue.put((urgency, next(self._numbers), None, None))

    def finish(self) -> None:
        """End all threads before the interpreter ends: obstore aborts a process in which it cannot return to it."""
        if self._process == os.getpid():
            self._most = 0  # what is announced from now on stays where it is
            self.close(_AT_EXIT)
            until = time.monotonic() + _EXIT_TIMEOUT
            for thread in self._made:
                thread.join(max(0.0, until - time.monotonic()))


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _finish_pools() -> None:
    for pool in list(_pools):
        pool.finish()
