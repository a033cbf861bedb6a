"""The sha256 of bytes on their way to a file, and their way from memory to the disk, beside the work of receiving."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import BoundedSemaphore

from rlds_cli.hashing import Digest

_ALONE = 8 << 20  # bytes from which on threads are worth it
_WAITING = 4  # blocks: they are still in the cache when they are hashed
_SYNC = 64 << 20  # bytes between two syncs: the one at the end then has little left to do


class Behind:
    """Hashes blocks in the order in which they were written to a file, in a thread of its own if they are many.

    ``other`` is a second hash, of a kind that a source has promised.
    """

    def __init__(self, descriptor: int, other: Digest | None = None) -> None:
        self._fd = descriptor
        self._sha256 = hashlib.sha256()
        self._other = other
        self._fed = self._synced = 0
        self._threads: ThreadPoolExecutor | None = None
        self._hashing: Future[None] | None = None
        self._syncing: Future[None] | None = None
        self._blocks: SimpleQueue[bytes | memoryview | None] = SimpleQueue()
        self._room = BoundedSemaphore(_WAITING)

    def feed(self, block: bytes | memoryview) -> None:
        """Hash ``block``, now or soon; it must not change. Raises the error of an earlier sync."""
        self._fed += len(block)
        if self._threads is None and self._fed <= _ALONE:
            self._update(block)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="rlds-behind")
            self._hashing = self._threads.submit(self._hash)
        self._room.acquire()
        self._blocks.put(block)
        if self._fed - self._synced >= _SYNC and (self._syncing is None or self._syncing.done()):
            self._check()
            self._synced = self._fed
            self._syncing = self._threads.submit(os.fsync, self._fd)

    def hexdigest(self) -> str:
        """The hash of all blocks so far."""
        self.finish()
        self._check()
        return self._sha256.hexdigest()

    def other(self) -> str | None:
        """The second hash of all blocks so far."""
        self.finish()
        return None if self._other is None else self._other.hexdigest()

    def finish(self) -> None:
        """Wait for the threads and let them go."""
        if self._threads is not None:
            self._blocks.put(None)
            self._threads.shutdown()
            self._threads, self._fed, self._synced = None, 0, 0

    def _check(self) -> None:
        if self._syncing is not None:
            self._syncing.result()

    def _hash(self) -> None:
        while (block := self._blocks.get()) is not None:
            self._room.release()
            self._update(block)

    def _update(self, block: bytes | memoryview) -> None:
        self._sha256.update(block)
        if self._other is not None:
            self._other.update(block)
