"""Rows of npz members read forward, inflated side by side; what is damaged is named."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.archives.npz import Member, NpzFile

MAX_TRANSPOSED = 256 << 20
TRANSPOSED_RATIO = 4
READ_BYTES = 1 << 20
MAX_THREADS, THREADED_BYTES = 4, 1 << 20


class NpzRows:
    """Rows of several members of one npz, in order; the block read last may be asked for again in part."""

    def __init__(self, npz: NpzFile, members: Collection[Member]) -> None:
        self._npz = npz
        _check_transposed(npz, members)
        self._streams = {m.name: _Stream(npz, m) for m in members}
        self._row_bytes = sum(m.row_bytes for m in members)
        self._pool = ThreadPoolExecutor(max(1, min(len(self._streams), MAX_THREADS, os.cpu_count() or 1)))

    def __enter__(self) -> NpzRows:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for stream in self._streams.values():
            stream.close()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Rows ``start`` to ``stop`` of every member; what lies before is skipped, never read again.

        Raises
        ------
        CorruptArchive
            A member is damaged, or ends early.
        ValueError
            ``start`` lies before the block read last.
        """
        if len(self._streams) < 2 or self._row_bytes * (stop - start) < THREADED_BYTES:
            return {name: stream.read(start, stop) for name, stream in self._streams.items()}
        # zlib lets go of the interpreter, so members are inflated side by side.
        blocks = self._pool.map(lambda stream: stream.read(start, stop), self._streams.values())
        return dict(zip(self._streams, blocks, strict=True))


def _check_transposed(npz: NpzFile, members: Collection[Member]) -> None:
    """Refuse columns that stand in memory whole, side by side, where that is much more than the file has."""
    claimed = sum(m.nbytes for m in members if m.fortran)
    if claimed > MAX_TRANSPOSED + TRANSPOSED_RATIO * npz.size:
        raise UnsafeArchive(f"{npz.path.name}: its arrays in Fortran's order claim {claimed:,} bytes.")


class _Stream:
    """One member, inflated forward; keeps the block that it gave last."""

    def __init__(self, npz: NpzFile, member: Member) -> None:
        self._npz, self._member = npz, member
        self._file = None if member.fortran else npz.open_member(member)
        self._block = npz.array(member.name, most=MAX_TRANSPOSED) if member.fortran else self._none()
        self._start = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, start: int, stop: int) -> Array:
        stop = min(stop, self._member.shape[0])
        start = min(start, stop)
        if self._file is None:
            return self._block[start:stop]
        if start < self._start:
            raise ValueError(f"{self._member.name}: row {start} lies before row {self._start}, where reading is.")
        have = self._start + len(self._block)
        kept = self._block[min(start - self._start, len(self._block)) :]
        with reading(self._npz.path, self._member.name):
            if start > have:
                skip(self._file, (start - have) * self._member.row_bytes)
                have = start
            if stop > have:
                new = values_of(self._file, self._member, (stop - have, *self._member.shape[1:]))
                kept = np.concatenate([kept, new]) if len(kept) else new
                if stop == self._member.shape[0]:
                    finish(self._file)
        self._block, self._start = kept, start
        return kept[: stop - start]

    def _none(self) -> Array:
        return np.empty((0, *self._member.shape[1:]), self._member.dtype)


def values_of(f: IO[bytes], member: Member, shape: tuple[int, ...]) -> Array:
    """The next values, in the machine's byte order."""
    out = np.empty(shape[::-1] if member.fortran else shape, member.dtype)
    view, at = out.reshape(-1).view(np.uint8).data if out.nbytes else memoryview(b""), 0
    while at < out.nbytes:
        data = f.read(min(READ_BYTES, out.nbytes - at))
        if not data:
            raise EOFError("the data end early")
        view[at : at + len(data)] = data
        at += len(data)
    values = out.T if member.fortran else out
    return values.astype(member.dtype.newbyteorder("="), copy=False)


def skip(f: IO[bytes], size: int) -> None:
    """Skip ``size`` bytes."""
    while size:
        data = f.read(min(READ_BYTES, size))
        if not data:
            raise EOFError("the data end early")
        size -= len(data)


def finish(f: IO[bytes]) -> None:
    """Ask for one byte more than there is: only then is the checksum of a member looked at."""
    if f.read(1):
        raise EOFError("there are more data than its header says")


@contextmanager
def reading(path: Path, name: str) -> Iterator[None]:
    """Turn the errors of zip files and of zlib, while reading ``name``, into CorruptArchive."""
    try:
        yield
    except ArchiveError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, struct.error),
        *(ValueError, OverflowError),  # of offsets before the beginning
    ) as e:
        raise CorruptArchive(f"{path.name}: {name} cannot be read: {e}", hint=hint(path)) from e


def hint(path: Path) -> str:
    """What to do about a damaged file, or about one that is none at all."""
    if not _is_zip(path) and path.is_file():
        return f"rlds inspect {path} shows what it is; if it was an npz before, fetch or write it again"
    return f"fetch or write {path} again; what is there cannot be used"


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as f:
            return f.read(2) == b"PK"
    except OSError:
        return False
