"""Files of a download on the disk: the record beside a file, and a partial file with its origin.

::

    x.h5                a complete file
    x.h5.json           its record: source, size, hashes
    x.h5.part           a partial download: its beginning without a gap, or, with x.h5.part.spans, bytes at their places
    x.h5.part.json      the answer that its bytes come from
    x.h5.part.spans     which bytes of a file that several connections bring have arrived: see `spans`
    x.h5.part.lock      held while a process works on the file

A part of one connection only grows, so its size says how much is downloaded, whenever the process ends. Bytes are
hashed in their order, those that lie ahead when the beginning has reached them; hashing and syncing have threads of
their own.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore
from typing import Self

from rlds_cli.base import text
from rlds_cli.base.files import disk, hashing
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import sync_directory
from rlds_cli.base.files.hashing import Digest
from rlds_cli.base.http.connections import AHEAD
from rlds_cli.base.http.ranges import Tag, sendable
from rlds_cli.errors import RldsError
from rlds_cli.places.files.records import FileRecord
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.files.spans import Spans, spans_path

_INLINE = 8 << 20  # bytes that are hashed without threads
_SYNC = 64 << 20  # bytes between two syncs, so that the last one is short
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class PartOrigin:
    """The answer that the bytes of a part come from."""

    url: str
    tag: Tag

    @classmethod
    def read(cls, part: Path) -> Self | None:
        """Return the origin recorded beside a part; None if it is missing or not valid."""
        values = documents.load_own(FileRecord.beside(part))
        if values is None or not isinstance(values.get("url"), str):
            return None
        etag, modified, size = (values.get(k) for k in ("etag", "last_modified", "size"))
        if any(v is not None and sendable(v) is None for v in (etag, modified)):
            return None
        if size is not None and not documents.is_count(size):
            return None
        return cls(values["url"], Tag(etag=etag, modified=modified, size=size))

    def write(self, part: Path) -> None:
        """Write it beside a part."""
        tag = self.tag
        values = {"url": self.url, "etag": tag.etag, "last_modified": tag.modified, "size": tag.size}
        documents.save_own(FileRecord.beside(part), values)


def part_path(target: Path) -> Path:
    """Return the path of the part of ``target``."""
    return target.with_name(target.name + ".part")


class PartFile:
    """The bytes of a file so far. `opened` creates it.

    Attributes
    ----------
    front : int
        Bytes of the beginning, without a gap. One thread adds to it; others add to what lies ahead.
    ahead : dict of int to int
        Pieces ahead of the beginning: first byte, and the bytes from there on that have arrived.
    resumed : int
        Bytes at which the download was resumed.
    joined : bool
        True if the beginning holds bytes of other connections.
    """

    def __init__(self, target: Path, descriptor: int, file: RemoteFile) -> None:
        self.target = target
        self.path = part_path(target)
        self.front = self.resumed = 0
        self.ahead: dict[int, int] = {}
        self.joined = False
        self.origin: PartOrigin | None = None
        self._spans: Spans | None = None
        self._fd = descriptor
        self._file = file
        self._hash = self._hasher()

    def _hasher(self) -> StreamHasher:
        """Return a hasher for sha256 and, if the size is known, for the published kind of hash."""
        kind, size = self._file.promise[0] if self._file.promise else "sha256", self._file.size
        other = hashing.digest(kind, size) if kind != "sha256" and size is not None else None
        return StreamHasher(self._fd, other, sync=self._sync)

    @property
    def there(self) -> int:
        """Bytes on disk: the beginning, and the pieces ahead of it."""
        return self.front + sum(max(0, a + n - max(a, self.front)) for a, n in list(self.ahead.items()))

    @property
    def next_piece(self) -> int | None:
        """First byte of the next piece ahead."""
        return min(list(self.ahead), default=None)

    def take_up(self) -> None:
        """Resume from the bytes on disk: read and hash the beginning."""
        self.origin = PartOrigin.read(self.path)
        if self.origin is None:
            return self.restart()
        size = os.fstat(self._fd).st_size
        self._spans = Spans.read(spans_path(self.path), size)
        if self._spans is None:
            self.front = size
        elif not self._spans.total:
            return self.restart()
        else:
            self._spans.keep()
            self.front, self.ahead = self._spans.front, self._spans.ahead
        self._hash.feed_range(0, self.front)
        self.resumed = self.there
        return None

    def restart(self) -> None:
        """Drop all bytes."""
        self._hash.finish()
        if self.front or self.origin or os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, 0)
        self._forget_spans()
        FileRecord.beside(self.path).unlink(missing_ok=True)
        self.front, self.resumed, self.joined, self.origin = 0, 0, False, None
        self._hash = self._hasher()

    def _forget_spans(self) -> None:
        if self._spans is not None:
            self._spans.close()
        self._spans, self.ahead = None, {}
        spans_path(self.path).unlink(missing_ok=True)

    def begin(self, origin: PartOrigin) -> None:
        """Record the origin of the bytes on disk and of those to come."""
        if origin != self.origin:
            origin.write(self.path)
            self.origin = origin

    def append(self, block: bytes | memoryview) -> None:
        """Add a block to the beginning; raises NoSpace or another disk error, with the part kept."""
        rest = memoryview(block)
        while rest:
            try:
                written = os.pwrite(self._fd, rest, self.front)
                self._hash.feed(rest[:written])
                if self._spans is not None:
                    self._spans.note(self.front, self.front + written)
            except OSError as exc:
                raise self._disk_error(exc) from exc
            self.front += written
            rest = rest[written:]

    def divide(self, piece: int, size: int) -> int:
        """Have other connections add pieces ahead; return the bytes of a piece: those of an earlier run stay so."""
        if self._spans is None:
            self._spans = Spans.create(spans_path(self.path), piece, size, self.front)
        return self._spans.piece

    def add(self, start: int, block: bytes | memoryview) -> None:
        """Add a block to the piece that begins at ``start``; one thread at a time, which is not that of `append`."""
        assert self._spans is not None
        rest, at = memoryview(block), start + self.ahead[start]
        while rest:
            written = os.pwrite(self._fd, rest, at)
            self._spans.note(at, at + written)
            at += written
            self.ahead[start] = at - start
            rest = rest[written:]

    def join(self, start: int) -> None:
        """Take the piece that begins at ``start`` into the beginning, which has reached it."""
        end = start + self.ahead.pop(start)
        if end > self.front:
            self.joined = True
            try:
                self._hash.feed_range(self.front, end)
            except OSError as exc:
                raise self._disk_error(exc) from exc
            self.front = end

    def _sync(self) -> None:
        """Sync what was written, and note it."""
        spans = self._spans
        counts = None if spans is None else spans.counts()
        os.fsync(self._fd)
        if spans is not None and counts is not None:
            spans.note_synced(counts)

    def close(self) -> None:
        """Stop the thread that hashes."""
        self._hash.finish()
        if self._spans is not None:
            self._spans.close()

    def _disk_error(self, exc: OSError) -> RldsError:
        kept = f"{text.size_of(self.there)} of {self.target.name} are kept; the next run resumes there."
        return disk.disk_error(exc, self.path, kept=kept)

    def record(self, *, revision: str | None, promised: str | None) -> FileRecord:
        """Return the record of the part as it is now, with the published kind of hash."""
        origin = self.origin or PartOrigin("", Tag())
        try:
            sha256, other = self._hash.hexdigest(), self._hash.other()
        except OSError as exc:  # from a sync
            raise self._disk_error(exc) from exc
        return FileRecord.of(
            self.path,
            url=origin.url,
            revision=revision,
            etag=origin.tag.etag,
            last_modified=origin.tag.modified,
            sha256=sha256,
            promised=promised,
            other=other if self._file.size == self.front else None,
        )

    def publish(self, record: FileRecord) -> None:
        """Turn the part into the file: sync, record, rename."""
        try:
            os.fsync(self._fd)
            record.write(self.target)  # first: a record without its file is not believed
            self.path.replace(self.target)
            FileRecord.beside(self.path).unlink(missing_ok=True)
            spans_path(self.path).unlink(missing_ok=True)
            sync_directory(self.target.parent)
        except OSError as exc:
            raise self._disk_error(exc) from exc


@contextmanager
def opened(target: Path, file: RemoteFile) -> Iterator[PartFile]:
    """Open the part of ``target`` for writing; the caller holds `locked`."""
    try:
        descriptor = safe_files.open_own(part_path(target), os.O_RDWR | os.O_CREAT)
    except OSError as exc:
        raise disk.disk_error(exc, part_path(target)) from exc
    part = PartFile(target, descriptor, file)
    try:
        with disk.errors(part.path):
            part.take_up()
        yield part
    finally:
        part.close()
        if not os.fstat(descriptor).st_size:
            _forget(target)  # no empty part is left
        os.close(descriptor)


def _forget(target: Path) -> None:
    part = part_path(target)
    if part.is_file() and not part.stat().st_size:
        for path in (part, FileRecord.beside(part), spans_path(part)):
            path.unlink(missing_ok=True)


class StreamHasher:
    """Hashes the bytes of a file in their order, in a thread if there are many, and syncs the file now and then.

    Parameters
    ----------
    descriptor : int
        Of the file.
    other : Digest, optional
        A second hash, of the kind that the source publishes.
    sync : callable, optional
        Syncs the file.
    """

    def __init__(self, descriptor: int, other: Digest | None = None, *, sync: Callable[[], None] | None = None) -> None:
        self._fd, self._sync = descriptor, sync or partial(os.fsync, descriptor)
        self._sha256 = hashlib.sha256()
        self._other = other
        self._fed = self._synced = 0
        self._threads: ThreadPoolExecutor | None = None
        self._hashing: Future[None] | None = None
        self._syncing: Future[None] | None = None
        self._work: SimpleQueue[bytes | memoryview | range | None] = SimpleQueue()
        self._room = BoundedSemaphore(AHEAD)

    def feed(self, block: bytes | memoryview) -> None:
        """Hash ``block``, maybe later: it must not change until `AHEAD` further ones were fed.

        Raises the error of an earlier sync.
        """
        self._add(block, len(block))

    def feed_range(self, start: int, stop: int) -> None:
        """Hash bytes [start, stop) that the file has; the last of them maybe later."""
        for at in range(start, stop, _READ):
            end = min(stop, at + _READ)
            self._add(range(at, end), end - at)

    def _add(self, work: bytes | memoryview | range, size: int) -> None:
        self._fed += size
        if self._threads is None and self._fed <= _INLINE:
            self._do(work)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="rlds-hash")
            self._hashing = self._threads.submit(self._hash)
        self._room.acquire()
        self._work.put(work)
        if self._fed - self._synced >= _SYNC and (self._syncing is None or self._syncing.done()):
            self._check()
            self._synced = self._fed
            self._syncing = self._threads.submit(self._sync)

    def hexdigest(self) -> str:
        """Return the sha256 of all bytes so far."""
        self.finish()
        self._check()
        return self._sha256.hexdigest()

    def other(self) -> str | None:
        """Return the second hash of all bytes so far."""
        self.finish()
        return None if self._other is None else self._other.hexdigest()

    def finish(self) -> None:
        """Wait for the threads and stop them."""
        if self._threads is not None:
            self._work.put(None)
            self._threads.shutdown()
            self._threads, self._fed, self._synced = None, 0, 0

    def _check(self) -> None:
        for done in (self._syncing, self._hashing):
            if done is not None and done.done():
                done.result()

    def _hash(self) -> None:
        failure: OSError | None = None
        while (work := self._work.get()) is not None:
            try:
                if failure is None:
                    self._do(work)
            except OSError as exc:
                failure = exc  # what follows is taken, so that nobody waits
            finally:
                self._room.release()
        if failure is not None:
            raise failure

    def _do(self, work: bytes | memoryview | range) -> None:
        if not isinstance(work, range):
            return self._update(work)
        block = os.pread(self._fd, len(work), work.start)
        if len(block) < len(work):
            raise OSError(errno.EIO, "the file is shorter than it was")
        return self._update(block)

    def _update(self, block: bytes | memoryview) -> None:
        self._sha256.update(block)
        if self._other is not None:
            self._other.update(block)
