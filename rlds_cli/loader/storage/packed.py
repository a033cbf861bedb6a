"""Files that follow from a dataset: built once, mapped by every process, deleted at any moment.

::

    <home>/packed/<fingerprint>-<hash of the key>.<kind>     content | key as JSON | sha256 per block | of both | end
    <home>/locks/packed-<fingerprint>.lock                   held while one is built

A process that has mapped a file keeps it when the name goes. Where no file can be had, the content is built in memory
of this process, if the caller has some to spare.

Before a process maps a file for the first time it hashes blocks of it, up to `MOST_CHECKED` bytes: all of a file that
is not larger; else every nth, from one drawn anew each time. That finds whatever is altered over n blocks on end, at a
cost that does not grow with the file. A damaged file is built anew.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlds_cli import settings, text
from rlds_cli.errors import NoPermission
from rlds_cli.files import disk
from rlds_cli.files import json as documents
from rlds_cli.files import locks as file_locks
from rlds_cli.files import safe as safe_files
from rlds_cli.home import Home
from rlds_cli.store import arrays
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

FORMAT = 2
MOST_BYTES = 8 << 30  # of one file
SHARE_OF_FREE = 10  # a file takes at most a tenth of what is free
PATIENCE = 600.0  # seconds to wait for the process that builds

BLOCK = 1 << 16  # bytes that are hashed at a time
MOST_CHECKED = 64 << 20  # bytes that are hashed when a file is first mapped

_MAGIC, _MAGIC_BEFORE = b"rldspak2", b"rldspack"
_END = struct.Struct("<QQ8s")  # bytes of the content, bytes of the key, magic
_HASH, _LONGEST_KEY = 32, 1 << 20
_THREADS = 4
_checked: set[tuple[int, ...]] = set()  # files that this process has looked at, as they were then

Parts = Callable[[], Iterable[Array]]


@dataclass(frozen=True, slots=True)
class PackedContent:
    """Where the content is: mapped from a file, in memory of this process, or nowhere.

    ``array`` is uint8 [nbytes], read-only. ``reason`` says why it is not in a file, or why the file that was there was
    not taken.
    """

    array: Array | None
    where: Literal["packed file", "private memory"] | None
    reason: str = ""
    path: Path | None = None

    @property
    def place(self) -> str:
        """Where the content is, for people."""
        where = str(self.path) if self.path else self.where
        return f"{where}: {self.reason}" if self.reason else str(where)


def open_or_build(
    dataset: Dataset, key: Mapping[str, Any], nbytes: int, parts: Parts, *, kind: str, budget: int
) -> PackedContent:
    """Map the file of this key, after building it if need be.

    One process builds, others wait for it. The file goes into the home in which the dataset lies, else into the user's
    own. It may take a tenth of what is free on the disk and 8 GiB.

    Parameters
    ----------
    dataset : Dataset
        Its whole store's fingerprint joins the key: a content that depends on the selection needs it in ``key``.
    key : mapping
        All else that the content depends on, as JSON.
    nbytes : int
        Bytes of the content.
    parts : callable
        Gives the content from start to end, in arrays of any size and dtype. What it raises is passed on.
    kind : str
        Ending of the file's name.
    budget : int
        Bytes of private memory that may be taken where no file can be written.
    """
    if nbytes == 0:
        return PackedContent(np.empty(0, np.uint8), "private memory")
    about = json.dumps({"format": FORMAT, "fingerprint": dataset.manifest.fingerprint, **key}, sort_keys=True).encode()
    name = f"{_short(dataset)}-{_hash(about)}.{kind}"
    files = [_File(home.packed(name), nbytes, about) for home in homes(dataset)]
    damaged = ""
    for file in files:
        try:
            found = file.map()
        except _Damaged:
            damaged = "built anew, for the file that was there was damaged"
            continue
        if found is not None:
            return PackedContent(found, "packed file", path=file.path)
    reasons = []
    for file in files:
        try:
            return PackedContent(_built(file, parts), "packed file", damaged, file.path)
        except _Refused as e:
            reasons.append(str(e))
    reason = "; ".join(dict.fromkeys(reasons))
    if nbytes <= budget:
        return PackedContent(_in_memory(nbytes, parts), "private memory", reason)
    return PackedContent(None, None, f"{reason}; {text.size_of(nbytes)} of memory are more than {text.size_of(budget)}")


def files(dataset: Dataset, home: Path) -> list[Path]:
    """The files in a home that are packed from a dataset, by their names."""
    return sorted(file for file in (home / "packed").glob(f"{_short(dataset)}-*") if file.is_file())


def is_older(fd: int) -> bool:
    """Whether a version wrote the file that kept no hashes; this one reads no such file."""
    return _end(fd)[2] == _MAGIC_BEFORE


def _end(fd: int) -> tuple[int, int, bytes]:
    end = os.pread(fd, _END.size, max(0, os.fstat(fd).st_size - _END.size))
    return _END.unpack(end) if len(end) == _END.size else (0, 0, b"")


def read(path: Path, fd: int) -> tuple[dict[str, Any], int, bytes] | None:
    """The key of a file, the bytes of its content and the hashes of their blocks; None where its tail is damaged."""
    nbytes, length, magic = _end(fd)
    size = nbytes + length + _HASH * (-(-nbytes // BLOCK) + 1) + _END.size
    if magic != _MAGIC or length > _LONGEST_KEY or size != os.fstat(fd).st_size:
        return None
    about = os.pread(fd, length, nbytes)
    hashes = _File(path, nbytes, about).hashes(fd)
    if hashes is None or path.stem.partition("-")[2] != _hash(about):
        return None
    key: dict[str, Any] = documents.loads(about)
    return key, nbytes, hashes


def _hash(about: bytes) -> str:
    return hashlib.sha256(about).hexdigest()[:16]


def _short(dataset: Dataset) -> str:
    """What the names of all files of a dataset begin with."""
    return dataset.manifest.fingerprint.partition(":")[2][:12]


def homes(dataset: Dataset) -> list[Home]:
    """The home that the dataset lies in, and the user's own."""
    own, parents = settings.read().home, dataset.path.absolute().parents
    roots = [parents[2], own] if len(parents) > 2 and parents[1].name == "datasets" else [own]
    return [Home(root) for root in dict.fromkeys(roots)]


class _Damaged(Exception):
    """The content of a file is not what it was when it was written."""


class _Refused(Exception):
    """No file can be written, and why."""


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except NoPermission as e:  # a link, or something else that is not ours
        raise _Refused(e.message.rstrip(".")) from e
    except OSError as e:
        code = e.errno
        if code in (errno.ENOSPC, errno.EDQUOT):
            raise _Refused(f"the disk of {path.parent} is full") from e
        if code in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise _Refused(f"{path.parent} may not be written") from e
        raise _Refused(f"{path.parent}: {e.strerror or e}") from e


@dataclass(frozen=True, slots=True)
class _File:
    """One file: ``nbytes`` of content, and a tail that says what it is."""

    path: Path
    nbytes: int
    about: bytes

    def map(self) -> Array | None:
        """The content [nbytes], mapped; None where there is no file, or one that is not what its name says.

        Raises
        ------
        _Damaged
            Some block that was looked at has another hash.
        """
        try:
            with safe_files.reading(self.path) as f:
                hashes = self.hashes(f.fileno())
                if hashes is None:
                    return None
                _check(f.fileno(), hashes, self.nbytes)
                buffer = mmap.mmap(f.fileno(), self.nbytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError, NoPermission):
            return None
        return np.frombuffer(buffer, np.uint8)

    def hashes(self, fd: int) -> bytes | None:
        """The hashes of the blocks, where the tail is that of this file."""
        size = _HASH * -(-self.nbytes // BLOCK)
        tail = os.pread(fd, len(self.about) + size + _HASH + _END.size + 1, self.nbytes)
        hashes = tail[len(self.about) : len(self.about) + size]
        return hashes if tail == self._tail(hashes) else None

    def _tail(self, hashes: bytes) -> bytes:
        """What stands behind the content."""
        named = self.about + hashes
        return named + hashlib.sha256(named).digest() + _END.pack(self.nbytes, len(self.about), _MAGIC)

    def write(self, parts: Parts) -> None:
        """Write it beside, whole and synced, and give it its name; the caller holds the lock.

        Raises
        ------
        _Refused
            The disk does not take it; nothing is left there.
        """
        with _refusals(self.path):
            self._sweep()
            beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.part")
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            hashes = self._fill(fd, parts)
            with _refusals(self.path):
                arrays.write_at(fd, self.nbytes, np.frombuffer(self._tail(hashes), np.uint8))
                os.fsync(fd)
                os.fchmod(fd, os.fstat(fd).st_mode & 0o444)
                beside.replace(self.path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _fill(self, fd: int, parts: Parts) -> bytes:
        """Write the content; the hashes of its blocks."""
        at, hashes = 0, _Hashes()
        with ThreadPoolExecutor(1) as beside:
            for part in parts():
                hashed = beside.submit(hashes.add, arrays.raw(part))
                with _refusals(self.path):
                    arrays.write_at(fd, at, part)
                hashed.result()  # the next part may be in the same memory
                at += part.nbytes
        assert at == self.nbytes, f"{at:,} bytes of {self.nbytes:,}"
        return hashes.all()

    def _sweep(self) -> None:
        """Remove what processes that were killed have left: nobody else writes while the lock is held."""
        for left in self.path.parent.glob(f".{self.path.name}.*.part"):
            left.unlink(missing_ok=True)


class _Hashes:
    """The sha256 of each block of what comes in parts of any size."""

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._open, self._size = hashlib.sha256(), 0

    def add(self, content: memoryview) -> None:
        while content:
            piece = content[: BLOCK - self._size]
            self._open.update(piece)
            self._size += len(piece)
            content = content[len(piece) :]
            if self._size == BLOCK:
                self._close()

    def _close(self) -> None:
        self._done.append(self._open.digest())
        self._open, self._size = hashlib.sha256(), 0

    def all(self) -> bytes:
        if self._size:
            self._close()
        return b"".join(self._done)


def _check(fd: int, hashes: bytes, nbytes: int) -> None:
    """Raise _Damaged where a block differs, of as many as are looked at, unless this process has looked at the file."""
    status = os.fstat(fd)
    which = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if which in _checked:
        return
    count = len(hashes) // _HASH
    every = -(-count * BLOCK // max(BLOCK, MOST_CHECKED))
    numbers = range(secrets.randbelow(every), count, every)
    if len(numbers) < 4 * _THREADS:
        sound = all(block_is_sound(fd, hashes, nbytes, k) for k in numbers)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            shares = [numbers[i::_THREADS] for i in range(_THREADS)]
            sound = all(pool.map(lambda some: all(block_is_sound(fd, hashes, nbytes, k) for k in some), shares))
    if not sound:
        raise _Damaged
    _checked.add(which)


def block_is_sound(fd: int, hashes: bytes, nbytes: int, k: int) -> bool:
    """Whether block ``k`` of a file has the hash that is kept of it."""
    content = os.pread(fd, min(BLOCK, nbytes - k * BLOCK), k * BLOCK)
    return hashlib.sha256(content).digest() == hashes[k * _HASH : (k + 1) * _HASH]


def _built(file: _File, parts: Parts) -> Array:
    """Build under the lock, unless another process was faster."""
    home = Home(file.path.parents[1])
    with _refusals(file.path):
        most = min(MOST_BYTES, disk.free(home.root) // SHARE_OF_FREE)
    if file.nbytes > most:
        raise _Refused(
            f"{text.size_of(file.nbytes)} are too large for a file in {home.root} (at most {text.size_of(most)})"
        )
    with _lock(home.packed_lock(file.path.name)):
        found = _sound(file)
        if found is None:
            with _refusals(file.path):
                safe_files.directory(file.path.parent, home.root)
            file.write(parts)
            found = _sound(file)
    if found is None:
        raise _Refused(f"{file.path} was removed or altered while it was written")
    return found


def _sound(file: _File) -> Array | None:
    """The content of a file, mapped; None also where it is damaged."""
    try:
        return file.map()
    except _Damaged:
        return None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with _refusals(path):
        safe_files.directory(path.parent, path.parents[1])
        lock = file_locks.FileLock(path)
        try:
            lock.acquire(timeout=PATIENCE)
        except file_locks.PackedContent:
            raise _Refused(f"another process has held {path} for {PATIENCE:.0f} s") from None
    try:
        yield
    finally:
        lock.release()


def _in_memory(nbytes: int, parts: Parts) -> Array:
    content, at = np.empty(nbytes, np.uint8), 0
    for part in parts():
        raw = np.frombuffer(arrays.raw(part), np.uint8)
        content[at : at + len(raw)] = raw
        at += len(raw)
    assert at == nbytes, f"{at:,} bytes of {nbytes:,}"
    content.flags.writeable = False
    return content
