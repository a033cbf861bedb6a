"""Packed files, derived from a dataset: built once, mapped by every process, and safe to delete at any moment.

::

    <home>/packed/<hash of the source>-<hash of the key>.<kind>
                            content | key as JSON | end
    <home>/locks/packed-<hash of the source>.lock
                            held while one is built

The name is a hash of all that the content depends on, and a file gets it after it was synced, in one step: a file with
this name and size is the content. `check` compares it with the columns. A process that has mapped a file keeps it when
the name is removed. Where no file can be written, the content is built in this process's memory, within the caller's
budget.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlds_cli.base import settings, text
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import arrays, disk
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import LockHeld, file_lock
from rlds_cli.base.files.mapping import Addresses, fetch
from rlds_cli.errors import NoPermission

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

FORMAT = 2
_DIRECTORY = "packed"  # of a home
MOST_BYTES = 8 << 30  # of the files that are written at once
SHARE_OF_FREE = 10  # which take at most a tenth of what is free
PATIENCE = 600.0  # seconds to wait for the process that builds

PIECE = 2 << 20  # bytes written at once: file systems with large folios map them as huge pages, 29 to 22 us a gather
# Bytes of a file that is read whole when it is opened, in 0.7 ms a MiB from a disk: at random, its pages come one by
# one and stay small, and a gather takes 19 instead of 17 us.
WHOLE = 256 << 20

_MAGIC = b"rldspack"
_END = struct.Struct("<QQ8s")  # bytes of the content, bytes of the key, magic
_LONGEST_KEY = 1 << 20

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

    def file(self, home: Path, kind: str) -> _File:
        """Return the file in a home, which need not exist."""
        about = json.dumps({"format": FORMAT, **self.key}, sort_keys=True).encode()
        return _File(home / _DIRECTORY / f"{prefix(self.source)}-{_hash(about)}.{kind}", self.nbytes, about, self.place)

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

    ``array`` is uint8 [nbytes], read-only. ``reason`` says why there is no file.
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
    opened = [_existing(files) for files in wanted]
    missing, refused = [k for k, found in enumerate(opened) if found.array is None], ""
    size = sum(contents[k].nbytes for k in missing)
    for k in missing:
        opened[k] = _built_in_first(wanted[k], contents[k].parts, size)
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


def _existing(files: Sequence[_File]) -> PackedContent:
    """Map the first file that exists."""
    for file in files:
        array = file.map()
        if array is not None:
            return PackedContent(array, FILE, path=file.path)
    return PackedContent(None, None)


def _built_in_first(files: Sequence[_File], parts: Parts, missing: int) -> PackedContent:
    """Build the first file that can be written; else the reason says why there is none."""
    reasons = []
    for file in files:
        try:
            return PackedContent(_built(file, parts, missing), FILE, path=file.path)
        except _Refused as e:
            reasons.append(str(e))
    return PackedContent(None, None, "; ".join(dict.fromkeys(reasons)))


def version_of(dataset: Dataset) -> str:
    """Return the version of a dataset's store; with what was seen where that is a claim, see `Files.unproved`."""
    seen = dataset.store.files.unproved
    return f"{dataset.store.version_id}@{seen}" if seen else dataset.store.version_id


def files(home: Path, sources: Iterable[str]) -> list[Path]:
    """Return the files in a home that are made of any of these sources, sorted by name."""
    known = {prefix(source) for source in sources}
    return sorted(f for f in (home / _DIRECTORY).glob("*-*") if f.name.partition("-")[0] in known and f.is_file())


def _end(fd: int) -> tuple[int, int, bytes]:
    end = os.pread(fd, _END.size, max(0, os.fstat(fd).st_size - _END.size))
    return _END.unpack(end) if len(end) == _END.size else (0, 0, b"")


def read(path: Path, fd: int) -> tuple[dict[str, Any], int] | None:
    """Return a file's key and the size of its content; None where its tail is damaged."""
    nbytes, length, magic = _end(fd)
    if magic != _MAGIC or length > _LONGEST_KEY or nbytes + length + _END.size != os.fstat(fd).st_size:
        return None
    about = os.pread(fd, length, nbytes)
    if path.stem.partition("-")[2] != _hash(about):
        return None
    key: dict[str, Any] = documents.loads(about)
    return key, nbytes


def _hash(about: bytes) -> str:
    return hashlib.sha256(about).hexdigest()[:16]


def lock_of_packed(file: Path) -> Path:
    """Return the lock that is held while a file is built; all that is packed of a source shares it."""
    return file.parents[1] / "locks" / f"packed-{file.name.partition('-')[0]}.lock"


def prefix(source: str) -> str:
    """Return the prefix of the names of all files that are made of a source."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def homes(dataset: Dataset) -> list[Path]:
    """Return the dataset's home, and the user's own."""
    own, parents = settings.read().home, dataset.path.absolute().parents
    roots = [parents[2], own] if len(parents) > 2 and parents[1].name in ("datasets", "remote") else [own]
    return list(dict.fromkeys(roots))


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
    """One file: ``nbytes`` of content, and a tail with the key."""

    path: Path
    nbytes: int
    about: bytes
    place: tuple[Addresses, int] | None = None

    def map(self) -> Array | None:
        """Map the content [nbytes]; None where there is no file, or it has another size or key."""
        try:
            with safe_files.reading(self.path) as f:
                if os.pread(f.fileno(), len(self._tail) + 1, self.nbytes) != self._tail:
                    return None
                if self.place is None:
                    content: Array = np.frombuffer(
                        mmap.mmap(f.fileno(), self.nbytes, access=mmap.ACCESS_READ), np.uint8
                    )
                else:
                    addresses, first = self.place
                    addresses.map(first, self.nbytes, f.fileno())
                    content = np.frombuffer(addresses.view(), np.uint8)[first : first + self.nbytes]
                    content.flags.writeable = False
                if self.nbytes <= WHOLE:
                    fetch(content.ctypes.data, self.nbytes)
                return content
        except (OSError, ValueError, NoPermission):
            return None

    @property
    def _tail(self) -> bytes:
        """The bytes that follow the content."""
        return self.about + _END.pack(self.nbytes, len(self.about), _MAGIC)

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
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, safe_files.FILE)
        try:
            self._fill(fd, parts)
            with _refusals(self.path):
                arrays.write_at(fd, self.nbytes, np.frombuffer(self._tail, np.uint8))
                os.fsync(fd)
                os.fchmod(fd, os.fstat(fd).st_mode & 0o444)
                beside.replace(self.path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _fill(self, fd: int, parts: Parts) -> None:
        """Write the content."""
        at = 0
        for piece in _pieces(parts()):
            with _refusals(self.path):
                arrays.write_at(fd, at, piece)
            at += piece.nbytes
        assert at == self.nbytes, f"{at:,} bytes of {self.nbytes:,}"

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


def _built(file: _File, parts: Parts, missing: int) -> Array:
    """Build the file, one of several of ``missing`` bytes, under the lock, unless another process has."""
    home = file.path.parents[1]
    with _refusals(file.path):
        most = min(MOST_BYTES, disk.free(home) // SHARE_OF_FREE)
    if missing > most:
        raise _Refused(f"{text.size_of(missing)} are too large to be packed in {home} (at most {text.size_of(most)})")
    with _lock(lock_of_packed(file.path)):
        found = file.map()
        if found is None:
            with _refusals(file.path):
                safe_files.directory(file.path.parent, home)
            file.write(parts)
            found = file.map()
    if found is None:
        raise _Refused(f"{file.path} was removed or changed while it was written")
    return found


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
