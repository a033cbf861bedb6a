"""A partial download: its beginning in ``<name>.part``, its origin in ``<name>.part.json``.

Other connections write pieces ahead of it, beside it. Bytes are hashed and synced in threads of their own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore

from rlds_cli import text
from rlds_cli.downloads.fetch import sidecars
from rlds_cli.downloads.fetch.client import Client
from rlds_cli.downloads.fetch.sidecars import FileRecord, PartOrigin
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import RldsError
from rlds_cli.files import disk, hashing
from rlds_cli.files import safe as safe_files
from rlds_cli.files.disk import sync_directory
from rlds_cli.files.hashing import Digest
from rlds_cli.files.locks import FileLock, LockHeld
from rlds_cli.files.parts import Pieces


def path_of(target: Path) -> Path:
    """Return the path of the part of ``target``."""
    return target.with_name(target.name + ".part")


def offset_of(target: Path) -> int:
    """Return the bytes of ``target`` that an earlier download has left and that can be resumed."""
    part = path_of(target)
    try:
        size = part.lstat().st_size if safe_files.is_own_file(part) and PartOrigin.read(part) else 0
    except OSError:
        return 0
    if not size:
        return 0
    ahead = Pieces(part)
    ahead.look()
    return size + ahead.beyond(size)


class PartFile:
    """The bytes of a file so far, hashed as they arrive. `opened` creates it."""

    def __init__(self, target: Path, descriptor: int, file: RemoteFile) -> None:
        self.target = target
        self.path = path_of(target)
        self.offset = 0
        self.resumed = 0  # offset at which the download was resumed
        self.joined = False  # True if it holds pieces of other connections
        self.origin: PartOrigin | None = None
        self.ahead = Pieces(self.path)
        self._fd = descriptor
        self._file = file
        self._hash = self._hasher()

    def _hasher(self) -> StreamHasher:
        """Return a hasher for sha256 and, if the size is known, for the published kind of hash."""
        kind, size = self._file.promise[0] if self._file.promise else "sha256", self._file.size
        return StreamHasher(self._fd, hashing.digest(kind, size) if kind != "sha256" and size is not None else None)

    @property
    def there(self) -> int:
        """Bytes on disk: the beginning, and the pieces ahead of it."""
        return self.offset + self.ahead.beyond(self.offset)

    def take_up(self) -> None:
        """Resume from the bytes on disk: read and hash them."""
        self.origin = PartOrigin.read(self.path)
        if self.origin is None:
            return self.restart()
        while block := os.read(self._fd, 1 << 20):
            self._hash.feed(block)
            self.offset += len(block)
        self.ahead.look()
        self.resumed = self.there
        return None

    def restart(self) -> None:
        """Drop all bytes."""
        if self.offset or self.origin or os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
        self.ahead.clear()
        sidecars.path_of(self.path).unlink(missing_ok=True)
        self.offset, self.resumed, self.joined, self.origin = 0, 0, False, None
        self._hash.finish()
        self._hash = self._hasher()

    def begin(self, origin: PartOrigin) -> None:
        """Record the origin of the bytes on disk and of those to come."""
        if origin != self.origin:
            sidecars.write_json(sidecars.path_of(self.path), asdict(origin))
            self.origin = origin

    def append(self, block: bytes | memoryview) -> None:
        """Append a block; raises NoSpace or another disk error, with the part kept."""
        rest = memoryview(block)
        while rest:
            try:
                written = os.write(self._fd, rest)
                self._hash.feed(rest[:written])
            except OSError as exc:
                raise self._disk_error(exc) from exc
            self.offset += written
            rest = rest[written:]

    def join(self, start: int) -> None:
        """Append the piece that starts at ``start``, once the beginning has reached it, and remove it."""
        try:
            with safe_files.updating(self.ahead.path(start)) as piece:
                piece.seek(max(0, self.offset - start))
                while block := piece.read(1 << 20):
                    self.joined = True
                    self.append(block)
        except FileNotFoundError:
            pass
        self.ahead.remove(start)

    def close(self) -> None:
        """Stop the thread that hashes."""
        self._hash.finish()

    def _disk_error(self, exc: OSError) -> RldsError:
        kept = f"{text.size_of(self.there)} of {self.target.name} are kept; the next run resumes there."
        return disk.disk_error(exc, self.path, kept=kept)

    def record(self, *, revision: str | None, promised: str | None) -> FileRecord:
        """Return the record of the part as it is now, with the published kind of hash."""
        origin = self.origin or PartOrigin(url="")
        try:
            sha256, other = self._hash.hexdigest(), self._hash.other()
        except OSError as exc:  # from a sync
            raise self._disk_error(exc) from exc
        return FileRecord.of(
            self.path,
            url=origin.url,
            revision=revision,
            etag=origin.etag,
            last_modified=origin.last_modified,
            sha256=sha256,
            promised=promised,
            other=other if self._file.size == self.offset else None,
        )

    def publish(self, record: FileRecord) -> None:
        """Turn the part into the file: sync, record, rename."""
        try:
            os.fsync(self._fd)
            record.write(self.target)  # first: a record without its file is not believed
            self.path.replace(self.target)
            sidecars.path_of(self.path).unlink(missing_ok=True)
            sync_directory(self.target.parent)
        except OSError as exc:
            raise self._disk_error(exc) from exc


@contextmanager
def opened(target: Path, file: RemoteFile) -> Iterator[PartFile]:
    """Open the part of ``target`` for writing; the caller holds `locked`."""
    try:
        descriptor = safe_files.open_own(path_of(target), os.O_RDWR | os.O_CREAT)
    except OSError as exc:
        raise disk.disk_error(exc, path_of(target)) from exc
    part = PartFile(target, descriptor, file)
    try:
        part.take_up()
        yield part
    finally:
        part.close()
        if not os.fstat(descriptor).st_size:
            part.ahead.clear()
            _forget(target)  # no empty part is left
        os.close(descriptor)


def _forget(target: Path) -> None:
    part = path_of(target)
    if safe_files.is_own_file(part) and not part.lstat().st_size:
        part.unlink()
        sidecars.path_of(part).unlink(missing_ok=True)


@contextmanager
def locked(target: Path, destination: Path, client: Client) -> Iterator[None]:
    """Hold the lock of ``target``, below ``destination``; other processes and threads wait."""
    path = target.with_name(target.name + ".part.lock")
    try:
        safe_files.directory(target.parent, destination.parent)
        lock = FileLock(path)
        while True:
            client.check()
            try:
                lock.acquire(timeout=1)
                break
            except LockHeld:
                continue
    except OSError as exc:
        raise disk.disk_error(exc, target) from exc
    try:
        yield
    finally:
        with suppress(PermissionError):  # a file of another user in a directory with the sticky bit
            path.unlink(missing_ok=True)
        lock.release()


_INLINE = 8 << 20  # bytes that are hashed without threads
_WAITING = 4  # blocks in the queue: few enough to be in the CPU cache when they are hashed
_SYNC = 64 << 20  # bytes between two syncs, so that the last one is short


class StreamHasher:
    """Hashes blocks in the order in which they are written to a file, in a thread if there are many.

    ``other`` is a second hash, of the kind that the source publishes.
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
        """Hash ``block``, maybe later: it must not change. Raises the error of an earlier sync."""
        self._fed += len(block)
        if self._threads is None and self._fed <= _INLINE:
            self._update(block)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="rlds-hash")
            self._hashing = self._threads.submit(self._hash)
        self._room.acquire()
        self._blocks.put(block)
        if self._fed - self._synced >= _SYNC and (self._syncing is None or self._syncing.done()):
            self._check()
            self._synced = self._fed
            self._syncing = self._threads.submit(os.fsync, self._fd)

    def hexdigest(self) -> str:
        """Return the sha256 of all blocks so far."""
        self.finish()
        self._check()
        return self._sha256.hexdigest()

    def other(self) -> str | None:
        """Return the second hash of all blocks so far."""
        self.finish()
        return None if self._other is None else self._other.hexdigest()

    def finish(self) -> None:
        """Wait for the threads and stop them."""
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
