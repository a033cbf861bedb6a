"""Files of a download on the disk: the record beside a file, and a partial file with its origin and its pieces.

::

    x.h5                  a complete file
    x.h5.json             its record: source, size, hashes
    x.h5.part             the beginning of a partial download, without a gap
    x.h5.part.json        the answer that its bytes come from
    x.h5.part.67108864    a piece that another connection fetches ahead: the bytes from this one on
    x.h5.part.lock        held while a process works on the file

A part and a piece only grow, so their sizes say how much is downloaded, whenever the process ends. Bytes are hashed and
synced in threads of their own.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Self

from rlds_cli.base import text
from rlds_cli.base.files import disk, hashing
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import sync_directory
from rlds_cli.base.files.hashing import Digest
from rlds_cli.base.files.locks import LockHeld, file_lock
from rlds_cli.errors import RldsError
from rlds_cli.places.http.connections import AHEAD
from rlds_cli.places.http.ranges import sendable
from rlds_cli.places.sources import names

if TYPE_CHECKING:
    from rlds_cli.make.downloads.remote_file import RemoteFile

_INLINE = 8 << 20  # bytes that are hashed without threads
_SYNC = 64 << 20  # bytes between two syncs, so that the last one is short


# -- records


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The source, size and hashes of a file when it was fetched.

    ``size`` is in bytes, ``fetched_at`` an ISO-8601 UTC time. Another ``mtime_ns`` means that the file was changed.
    """

    url: str
    revision: str | None
    size: int
    etag: str | None
    last_modified: str | None
    sha256: str
    git_sha1: str | None
    fetched_at: str
    mtime_ns: int
    md5: str | None = None
    crc32c: str | None = None

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Return the record beside ``file``; None if there is none that is valid."""
        values = documents.load_own(record_path(file))
        if values is None or not all(is_count(values.get(k)) for k in ("size", "mtime_ns")):
            return None
        known: dict[str, Any] = {f.name: values.get(f.name) for f in fields(cls)}
        if not all(isinstance(known[k], str) for k in ("url", "sha256", "fetched_at")):
            return None
        optional = ("revision", "etag", "last_modified", "git_sha1", "md5", "crc32c")
        return cls(**known) if all(isinstance(known[k], str | None) for k in optional) else None

    @classmethod
    def of(
        cls,
        file: Path,
        *,
        url: str,
        sha256: str,
        promised: str | None = None,
        other: str | None = None,
        revision: str | None = None,
        etag: str | None = None,
        last_modified: str | None = None,
    ) -> Self:
        """Create the record of a file on the disk, with the kind of hash that its source publishes.

        ``other`` is the hash of that kind, if it is known already.
        """
        status = file.stat()
        kinds = {promised: other or hashing.hash_of(promised, file)} if promised not in (None, "sha256") else {}
        return cls(
            url=url,
            revision=revision,
            size=status.st_size,
            etag=etag,
            last_modified=last_modified,
            sha256=sha256,
            git_sha1=kinds.get("git_sha1"),
            md5=kinds.get("md5"),
            crc32c=kinds.get("crc32c"),
            fetched_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            mtime_ns=status.st_mtime_ns,
        )

    def write(self, file: Path) -> None:
        """Write the record beside ``file``, in one step."""
        documents.save_own(record_path(file), asdict(self) | {"url": names.shown(self.url)})


def record_path(file: Path) -> Path:
    """Return the path of the record of ``file``."""
    return file.with_name(file.name + ".json")


def is_count(value: object) -> bool:
    """Return whether a value of untrusted JSON is a valid number of bytes or nanoseconds."""
    return type(value) is int and 0 <= value < 1 << 63


@dataclass(frozen=True, slots=True)
class PartOrigin:
    """The answer that the bytes of a part come from."""

    url: str
    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None

    @classmethod
    def read(cls, part: Path) -> Self | None:
        """Return the origin recorded beside a part; None if it is missing or not valid."""
        values = documents.load_own(record_path(part))
        if values is None or not isinstance(values.get("url"), str):
            return None
        etag, modified, size = (values.get(k) for k in ("etag", "last_modified", "size"))
        if any(v is not None and sendable(v) is None for v in (etag, modified)):
            return None
        if size is not None and not is_count(size):
            return None
        return cls(values["url"], etag, modified, size)

    @property
    def validator(self) -> str | None:
        """Value for ``If-Range``: a strong ETag, else the date."""
        weak = self.etag is None or self.etag.startswith("W/")
        return self.last_modified if weak else self.etag


# -- partial files


def part_path(target: Path) -> Path:
    """Return the path of the part of ``target``."""
    return target.with_name(target.name + ".part")


def offset_of(target: Path) -> int:
    """Return the bytes of ``target`` that an earlier download has left and that can be resumed."""
    part = part_path(target)
    try:
        size = part.stat().st_size if PartOrigin.read(part) else 0
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
        self.path = part_path(target)
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
        record_path(self.path).unlink(missing_ok=True)
        self.offset, self.resumed, self.joined, self.origin = 0, 0, False, None
        self._hash.finish()
        self._hash = self._hasher()

    def begin(self, origin: PartOrigin) -> None:
        """Record the origin of the bytes on disk and of those to come."""
        if origin != self.origin:
            documents.save_own(record_path(self.path), asdict(origin))
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
            record_path(self.path).unlink(missing_ok=True)
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
        part.take_up()
        yield part
    finally:
        part.close()
        if not os.fstat(descriptor).st_size:
            part.ahead.clear()
            _forget(target)  # no empty part is left
        os.close(descriptor)


def _forget(target: Path) -> None:
    part = part_path(target)
    if part.is_file() and not part.stat().st_size:
        part.unlink()
        record_path(part).unlink(missing_ok=True)


@contextmanager
def locked(target: Path, destination: Path, check: Callable[[], None], say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``target``, below ``destination``; others ``say`` that they wait, and ``check`` every second."""
    path = target.with_name(target.name + ".part.lock")
    try:
        safe_files.directory(target.parent, destination.parent)
        lock, waiting = file_lock(path), False
        while True:
            check()
            try:
                lock.acquire(timeout=1)
                break
            except LockHeld:
                if not waiting:
                    say(f"locked by another process: waiting for {path}")
                waiting = True
    except OSError as exc:
        raise disk.disk_error(exc, target) from exc
    try:
        yield
    finally:
        with suppress(PermissionError):  # a file of another user in a directory with the sticky bit
            path.unlink(missing_ok=True)
        lock.release()


class Pieces:
    """The pieces ahead of a part: the first byte of each, and the number of bytes fetched."""

    def __init__(self, part: Path) -> None:
        self._part = part
        self.sizes: dict[int, int] = {}

    def look(self) -> None:
        """Find the pieces that an earlier process has left."""
        self.sizes = {start: path.stat().st_size for start, path in pieces_of(self._part).items() if path.is_file()}

    def path(self, start: int) -> Path:
        """Return the path of the piece from byte ``start`` on."""
        return self._part.with_name(f"{self._part.name}.{start}")

    def add(self, start: int) -> None:
        """Begin a piece, unless there is one already."""
        if start not in self.sizes:
            self.path(start).unlink(missing_ok=True)  # an unknown piece belongs to another download
            self.sizes[start] = 0

    def remove(self, start: int) -> None:
        """Forget a piece."""
        self.path(start).unlink(missing_ok=True)
        self.sizes.pop(start, None)

    def clear(self) -> None:
        """Forget all pieces."""
        for start in list(self.sizes):
            self.remove(start)

    def first(self) -> int | None:
        """Return the first byte of the first piece."""
        return min(list(self.sizes), default=None)

    def beyond(self, offset: int) -> int:
        """Return the number of bytes in pieces from ``offset`` on."""
        return sum(max(0, start + size - max(start, offset)) for start, size in list(self.sizes.items()))


def pieces_of(part: Path) -> dict[int, Path]:
    """Return the pieces ahead of a part by their first byte, in order."""
    name = re.compile(re.escape(part.name) + r"\.(0|[1-9][0-9]{0,17})")
    try:
        entries = list(part.parent.iterdir())
    except OSError:
        return {}
    matches = ((name.fullmatch(e.name), e) for e in entries)
    return dict(sorted((int(m[1]), e) for m, e in matches if m))


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
        self._room = BoundedSemaphore(AHEAD)

    def feed(self, block: bytes | memoryview) -> None:
        """Hash ``block``, maybe later: it must not change until `AHEAD` further ones were fed.

        Raises the error of an earlier sync.
        """
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
            try:
                self._update(block)
            finally:
                self._room.release()

    def _update(self, block: bytes | memoryview) -> None:
        self._sha256.update(block)
        if self._other is not None:
            self._other.update(block)
