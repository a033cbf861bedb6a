"""Packed files, derived from a dataset: built once, mapped by every process, and safe to delete at any moment.

::

    <home>/packed/<hash of the source>-<hash of the key>.<kind>
                            content | key as JSON | sha256 per block | of both | end
    <home>/locks/packed-<hash of the source>.lock
                            held while one is built

A process that has mapped a file keeps it when the name is removed. Where no file can be written, the content is built
in this process's memory, within the caller's budget.

Before a process first maps a file it hashes blocks of it, up to `MOST_CHECKED` bytes: all of a smaller file, else every
nth from a random start. This finds any damage of n consecutive blocks, at a cost that does not grow with the
file. Files that are opened together share these bytes. A damaged file is built again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from rlds_cli.files import safe as safe_files
from rlds_cli.files.locks import LockHeld, file_lock
from rlds_cli.files.mapping import Addresses
from rlds_cli.home import Home
from rlds_cli.store import arrays
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

FORMAT = 1
MOST_BYTES = 8 << 30  # of the files that are written at once
SHARE_OF_FREE = 10  # which take at most a tenth of what is free
PATIENCE = 600.0  # seconds to wait for the process that builds

BLOCK = 1 << 16  # bytes that are hashed at a time
PIECE = 2 << 20  # bytes written at once: file systems with large folios map them as huge pages, 29 to 22 us a gather
MOST_CHECKED = 64 << 20  # bytes that are hashed when files are first mapped

_MAGIC = b"rldspack"
_END = struct.Struct("<QQ8s")  # bytes of the content, bytes of the key, magic
_HASH, _LONGEST_KEY = 32, 1 << 20
_THREADS = 4
_checked: set[tuple[int, ...]] = set()  # files that this process has checked, with size and times

Parts = Callable[[], Iterable[Array]]
Where = Literal["packed file", "private memory"]
FILE: Where = "packed file"
MEMORY: Where = "private memory"


@dataclass(frozen=True, slots=True)
class WantedContent:
    """A content that is wanted.

    Attributes
    ----------
    source : str
        What it is made of: the version of a dataset, or the identity of a file of rows.
    key : mapping
        All that it depends on, as JSON.
    nbytes : int
        Bytes of the content; positive.
    parts : callable
        Gives the content from start to end, in arrays of any size and dtype. Its exceptions are passed on.
    place : (Addresses, int), optional
        Addresses, and the byte among them where the content is to begin, a multiple of the page size; anywhere without
        it.
    """

    source: str
    key: Mapping[str, Any]
    nbytes: int
    parts: Parts
    place: tuple[Addresses, int] | None = None

    def file(self, home: Home, kind: str) -> _File:
        """Return the file in a home, which need not exist."""
        about = json.dumps({"format": FORMAT, **self.key}, sort_keys=True).encode()
        return _File(home.packed(f"{prefix(self.source)}-{_hash(about)}.{kind}"), self.nbytes, about, self.place)

    def in_memory(self) -> Array:
        """Build the content in the memory of this process."""
        content: Array = np.empty(self.nbytes, np.uint8)
        if self.place is not None:
            addresses, first = self.place
            content = np.frombuffer(addresses.memory(first, self.nbytes), np.uint8)
        at = 0
        for part in self.parts():
            raw = np.frombuffer(arrays.raw(part), np.uint8)
            content[at : at + len(raw)] = raw
            at += len(raw)
        assert at == self.nbytes, f"{at:,} bytes of {self.nbytes:,}"
        content.flags.writeable = False
        return content


@dataclass(frozen=True, slots=True)
class PackedContent:
    """The content of a packed file: mapped, in this process's memory, or absent.

    ``array`` is uint8 [nbytes], read-only. ``reason`` says why there is no file, or why an existing one was not used.
    """

    array: Array | None
    where: Where | None
    reason: str = ""
    path: Path | None = None

    @property
    def place(self) -> str:
        """The place of the content and the reason for it, for messages."""
        where = str(self.path) if self.path else self.where
        return f"{where}: {self.reason}" if self.reason else str(where)


def open_or_build(
    dataset: Dataset, key: Mapping[str, Any], nbytes: int, parts: Parts, *, kind: str, budget: int
) -> PackedContent:
    """Map the file of what is made of a whole dataset, after building it if need be; see `open_all`.

    Parameters
    ----------
    dataset : Dataset
        Its version is part of the key; a content that depends on the selection needs that in ``key``.
    key : mapping
        Everything else that the content depends on, as JSON.
    nbytes, parts
        See `WantedContent`.
    kind, budget
        See `open_all`.
    """
    if nbytes == 0:
        return PackedContent(np.empty(0, np.uint8), MEMORY)
    version = version_of(dataset)
    content = WantedContent(version, {"version": version, **key}, nbytes, parts)
    return open_all(dataset, [content], kind=kind, budget=budget)[0]


def open_all(
    dataset: Dataset, contents: Sequence[WantedContent], *, kind: str, budget: int | None
) -> list[PackedContent]:
    """Map the files of contents, after building those that are missing.

    One process builds a file, the others wait. Files are written to the dataset's home, else to the user's own. They
    may take a tenth of the free space, and 8 GiB. Once one cannot be written, no other one is tried.

    Parameters
    ----------
    dataset : Dataset
    contents : sequence of WantedContent
    kind : str
        Ending of the files' names.
    budget : int or None
        Bytes of private memory that may be taken for all contents without a file; None for none at all.
    """
    at = homes(dataset)
    wanted = [[c.file(home, kind) for home in at] for c in contents]
    opened = [_existing(files, MOST_CHECKED // len(contents)) for files in wanted]
    missing, refused = [k for k, found in enumerate(opened) if found.array is None], ""
    size = sum(contents[k].nbytes for k in missing)
    for k in missing:
        opened[k] = _built_in_first(wanted[k], contents[k].parts, opened[k].reason, size)
        if opened[k].array is None:
            refused = opened[k].reason
            break
    missing = [k for k in missing if opened[k].array is None]
    size = sum(contents[k].nbytes for k in missing)
    if budget is not None and size > budget:
        refused, budget = f"{refused}; {text.size_of(size)} of memory are more than {text.size_of(budget)}", None
    for k in missing:
        array, where = (None, None) if budget is None else (contents[k].in_memory(), MEMORY)
        opened[k] = PackedContent(array, where, refused)
    return opened


def _existing(files: Sequence[_File], checked: int) -> PackedContent:
    """Map the first file that exists; else the reason says whether one is damaged."""
    damaged = ""
    for file in files:
        try:
            array = file.map(checked)
        except _Damaged:
            damaged = "built again, since the old file was damaged"
            continue
        if array is not None:
            return PackedContent(array, FILE, path=file.path)
    return PackedContent(None, None, damaged)


def _built_in_first(files: Sequence[_File], parts: Parts, damaged: str, missing: int) -> PackedContent:
    """Build the first file that can be written; else the reason says why there is none."""
    reasons = []
    for file in files:
        try:
            return PackedContent(_built(file, parts, missing), FILE, damaged, file.path)
        except _Refused as e:
            reasons.append(str(e))
    return PackedContent(None, None, "; ".join(dict.fromkeys(reasons)))


def version_of(dataset: Dataset) -> str:
    """Return the version of a dataset's store; at an address, with what was seen there."""
    seen = dataset.store.unproved
    return f"{dataset.store.version_id}@{seen}" if seen else dataset.store.version_id


def files(home: Path, sources: Iterable[str]) -> list[Path]:
    """Return the files in a home that are made of any of these sources, sorted by name."""
    known = {prefix(source) for source in sources}
    return sorted(f for f in (home / "packed").glob("*-*") if f.name.partition("-")[0] in known and f.is_file())


def _end(fd: int) -> tuple[int, int, bytes]:
    end = os.pread(fd, _END.size, max(0, os.fstat(fd).st_size - _END.size))
    return _END.unpack(end) if len(end) == _END.size else (0, 0, b"")


def read(path: Path, fd: int) -> tuple[dict[str, Any], int, bytes] | None:
    """Return a file's key, the size of its content and the blocks' hashes; None where its tail is damaged."""
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


def prefix(source: str) -> str:
    """Return the prefix of the names of all files that are made of a source."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def homes(dataset: Dataset) -> list[Home]:
    """Return the dataset's home, and the user's own."""
    own, parents = settings.read().home, dataset.path.absolute().parents
    roots = [parents[2], own] if len(parents) > 2 and parents[1].name in ("datasets", "remote") else [own]
    return [Home(root) for root in dict.fromkeys(roots)]


class _Damaged(Exception):
    """The content of a file has changed since it was written."""


class _Refused(Exception):
    """No file can be written; the message says why."""


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except NoPermission as e:  # a link, or a file of somebody else
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
    """One file: ``nbytes`` of content, and a tail with the key and hashes."""

    path: Path
    nbytes: int
    about: bytes
    place: tuple[Addresses, int] | None = None

    def map(self, checked: int = MOST_CHECKED) -> Array | None:
        """Map the content [nbytes]; None where there is no file, or its key is not the one of its name.

        Up to ``checked`` bytes are hashed if this process has not checked the file yet.

        Raises
        ------
        _Damaged
            A block that was checked has another hash.
        """
        try:
            with safe_files.reading(self.path) as f:
                hashes = self.hashes(f.fileno())
                if hashes is None:
                    return None
                _check(f.fileno(), hashes, self.nbytes, checked)
                if self.place is None:
                    return np.frombuffer(mmap.mmap(f.fileno(), self.nbytes, access=mmap.ACCESS_READ), np.uint8)
                addresses, first = self.place
                addresses.map(first, self.nbytes, f.fileno())
                content: Array = np.frombuffer(addresses.view(), np.uint8)[first : first + self.nbytes]
                content.flags.writeable = False
                return content
        except (OSError, ValueError, NoPermission):
            return None

    def hashes(self, fd: int) -> bytes | None:
        """Return the hashes of the blocks; None where the tail is not of this key."""
        size = _HASH * -(-self.nbytes // BLOCK)
        tail = os.pread(fd, len(self.about) + size + _HASH + _END.size + 1, self.nbytes)
        hashes = tail[len(self.about) : len(self.about) + size]
        return hashes if tail == self._tail(hashes) else None

    def _tail(self, hashes: bytes) -> bytes:
        """Return the bytes that follow the content."""
        named = self.about + hashes
        return named + hashlib.sha256(named).digest() + _END.pack(self.nbytes, len(self.about), _MAGIC)

    def write(self, parts: Parts) -> None:
        """Write a temporary file, sync it, and rename it; the caller holds the lock.

        Raises
        ------
        _Refused
            The disk does not take the file; nothing is left behind.
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
            for piece in _pieces(parts()):
                hashed = beside.submit(hashes.add, arrays.raw(piece))
                with _refusals(self.path):
                    arrays.write_at(fd, at, piece)
                hashed.result()  # the next piece is in the same memory
                at += piece.nbytes
        assert at == self.nbytes, f"{at:,} bytes of {self.nbytes:,}"
        return hashes.all()

    def _sweep(self) -> None:
        """Remove temporary files of killed processes: nobody else writes while the lock is held."""
        for left in self.path.parent.glob(f".{self.path.name}.*.part"):
            left.unlink(missing_ok=True)


def _pieces(parts: Iterable[Array]) -> Iterator[Array]:
    """Yield the same bytes in pieces of `PIECE`, the last one smaller, in the same memory."""
    piece, filled = np.empty(PIECE, np.uint8), 0
    for part in parts:
        raw = np.frombuffer(arrays.raw(part), np.uint8)
        while len(raw):
            taken = raw[: PIECE - filled]
            piece[filled : filled + len(taken)] = taken
            filled, raw = filled + len(taken), raw[len(taken) :]
            if filled == PIECE:
                yield piece
                filled = 0
    if filled:
        yield piece[:filled]


class _Hashes:
    """Hashes each block of a content that comes in parts of any size."""

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


def _check(fd: int, hashes: bytes, nbytes: int, most: int) -> None:
    """Raise `_Damaged` where one of ``most`` bytes differs; a file is checked once by each process."""
    status = os.fstat(fd)
    which = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if which in _checked:
        return
    count = len(hashes) // _HASH
    every = -(-count * BLOCK // max(BLOCK, most))
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
    """Return whether block ``k`` of a file has its recorded hash."""
    content = os.pread(fd, min(BLOCK, nbytes - k * BLOCK), k * BLOCK)
    return hashlib.sha256(content).digest() == hashes[k * _HASH : (k + 1) * _HASH]


def _built(file: _File, parts: Parts, missing: int) -> Array:
    """Build the file, one of several of ``missing`` bytes, under the lock, unless another process has."""
    home = Home(file.path.parents[1])
    with _refusals(file.path):
        most = min(MOST_BYTES, disk.free(home.root) // SHARE_OF_FREE)
    if missing > most:
        raise _Refused(
            f"{text.size_of(missing)} are too large to be packed in {home.root} (at most {text.size_of(most)})"
        )
    with _lock(home.packed_lock(file.path.name)):
        found = _sound(file)
        if found is None:
            with _refusals(file.path):
                safe_files.directory(file.path.parent, home.root)
            file.write(parts)
            found = _sound(file)
    if found is None:
        raise _Refused(f"{file.path} was removed or changed while it was written")
    return found


def _sound(file: _File) -> Array | None:
    """Map the content of a file; None also where it is damaged."""
    try:
        return file.map()
    except _Damaged:
        return None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with _refusals(path):
        safe_files.directory(path.parent, path.parents[1])
        lock = file_lock(path)
        try:
            lock.acquire(timeout=PATIENCE)
        except LockHeld:
            raise _Refused(f"another process has held {path} for {PATIENCE:.0f} s") from None
    try:
        yield
    finally:
        lock.release()
