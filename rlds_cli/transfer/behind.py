"""The sha256 of bytes on their way to a file, and their way from memory to the disk, beside the work of receiving."""

from __future__ import annotations

import hashlib
import os
from queue import SimpleQueue
from threading import BoundedSemaphore, Thread

_ALONE = 8 << 20  # bytes from which on a thread is worth it
_WAITING = 16  # blocks
_SYNC = 128 << 20  # bytes between two syncs: that at the end has little left to do


class Behind:
    """Hashes blocks in the order in which they were written to a file, in a thread of its own if they are many."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._sha256 = hashlib.sha256()
        self._fed = self._synced = 0
        self._thread: Thread | None = None
        self._blocks: SimpleQueue[bytes | memoryview | None] = SimpleQueue()
        self._room = BoundedSemaphore(_WAITING)
        self._failure: OSError | None = None

    def feed(self, block: bytes | memoryview) -> None:
        """Hash ``block``, now or soon; it must not change. Raises the error of an earlier sync."""
        self._fed += len(block)
        if self._thread is None and self._fed <= _ALONE:
            self._sha256.update(block)
            return
        if self._thread is None:
            self._thread = Thread(target=self._work, name="rlds-hash", daemon=True)
            self._thread.start()
        self._room.acquire()
        self._blocks.put(block)
        if self._failure is not None:
            raise self._failure

    def hexdigest(self) -> str:
        """The hash of all blocks so far."""
        self.finish()
        if self._failure is not None:
            raise self._failure
        return self._sha256.hexdigest()

    def finish(self) -> None:
        """Wait for the thread and let it go."""
        if self._thread is not None:
            self._blocks.put(None)
            self._thread.join()
            self._thread, self._fed = None, 0

    def _work(self) -> None:
        while (block := self._blocks.get()) is not None:
            self._room.release()
            self._sha256.update(block)
            self._synced += len(block)
            if self._synced >= _SYNC and self._failure is None:
                self._synced = 0
                self._sync()

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as exc:
            self._failure = exc
