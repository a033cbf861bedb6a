"""Read TFRecord files, plain or gzip: records one after the other, each framed by its length and two checksums.

::

    u64 length | u32 masked crc32c of the length | length bytes | u32 masked crc32c of them        little-endian

The checksum is crc32c, rotated right by 15 bits, plus a constant (``tensorflow/core/lib/hash/crc32c.h``), so that a
checksum of data that holds checksums is a good one.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import google_crc32c
import numpy as np

from rlds_cli.errors import CorruptArchive, NoPermission, UnsafeArchive

MAX_RECORD = 1 << 30  # bytes; protocol buffers end at 2 GiB, and an episode must fit in memory
MAX_PACKED_RECORD = 256 << 20  # of a record that is unpacked into memory
MAX_RATIO = 512  # unpacked to packed bytes of a whole file; deflate reaches 1,032
FREE_OUTPUT = 64 << 20  # bytes that gzip may give before its ratio counts
READ = 1 << 20

Content = bytes | memoryview

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's way to ask for a gzip header and 32 KiB of window


@dataclass(frozen=True, slots=True)
class TFRecord:
    """One record: its number in the file, the byte where its frame begins (in the unpacked stream), its content.

    ``data`` of a plain file is a read-only view of the mapped file: reading records of 2 MB into memory of their own
    takes four times as long, most of it for the kernel to clear pages.
    """

    number: int
    offset: int
    data: Content


class _Source(Protocol):
    def read(self, size: int) -> Content:
        """Read exactly ``size`` bytes, fewer at the end of the file only."""


def masked(crc: int) -> int:
    """Return a crc32c as TFRecord files store it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def is_tfrecord(path: Path) -> bool:
    """Return whether a file begins with the frame of a record whose length agrees with its checksum."""
    try:
        with path.open("rb") as file:
            head = file.read(READ >> 4)
        if head.startswith(_GZIP):
            head = zlib.decompressobj(_GZIP_WINDOW).decompress(head, _HEAD.size)
    except (OSError, zlib.error):
        return False
    return len(head) >= _HEAD.size and masked(google_crc32c.value(head[:8])) == _HEAD.unpack_from(head)[1]


def records(path: Path, *, limit: int = MAX_RECORD) -> Iterator[TFRecord]:
    """Yield the records of a file, checked, one at a time; the first bytes tell gzip.

    Parameters
    ----------
    path : Path
    limit : int
        Most bytes of one record.

    Raises
    ------
    CorruptArchive
        A checksum does not match, or the file ends inside a record; with the record's number and position.
    UnsafeArchive
        A record claims more than ``limit`` bytes, or gzip unpacks to more than ``MAX_RATIO`` times its size.
    NoPermission
        The file may not be read.
    """
    with _reading(path), path.open("rb") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        if packed:
            yield from _records(path, _Unpacked(file, path), None, min(limit, MAX_PACKED_RECORD))
        elif size:
            yield from _records(path, _Mapped(file, size), size, limit)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e
    except (OSError, zlib.error) as e:
        raise CorruptArchive(f"{path.name} cannot be read: {e}", hint=_again(path)) from e


def _records(path: Path, source: _Source, size: int | None, limit: int) -> Iterator[TFRecord]:
    number = offset = 0
    while head := source.read(_HEAD.size):
        where = f"{path.name}: record {number:,} at byte {offset:,}"
        if len(head) < _HEAD.size:
            raise _cut(path, where, f"{len(head)} of the {_HEAD.size} bytes of its frame are there")
        length, crc = _HEAD.unpack(head)
        if _checksum(head[:8]) != crc:
            raise CorruptArchive(f"{where}: the checksum of its length is wrong.", hint=_again(path))
        if length > limit:
            raise UnsafeArchive(f"{where}: claims {length:,} bytes; at most {limit:,} are read.")
        there = None if size is None else size - offset - _HEAD.size - _TAIL.size
        if there is not None and length > there:
            raise _cut(path, where, f"{max(there, 0):,} of its {length:,} bytes are there")
        data = source.read(length)
        tail = source.read(_TAIL.size)
        if len(data) < length or len(tail) < _TAIL.size:
            raise _cut(path, where, f"{len(data):,} of its {length:,} bytes are there")
        if _checksum(data) != _TAIL.unpack(tail)[0]:
            raise CorruptArchive(f"{where}: the checksum of its {length:,} bytes is wrong.", hint=_again(path))
        yield TFRecord(number, offset, data)
        number, offset = number + 1, offset + _HEAD.size + length + _TAIL.size


def _checksum(data: Content) -> int:
    return masked(google_crc32c.value(np.frombuffer(data, np.uint8)))


def _cut(path: Path, where: str, what: str) -> CorruptArchive:
    return CorruptArchive(f"{where}: the file ends inside it: {what}.", hint=_again(path))


def _again(path: Path) -> str:
    return f"delete {path} and fetch it again"


class _Mapped:
    """A plain file, mapped: views of it, which stay valid as long as they are kept."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        self._view, self._at = memoryview(mapped), 0

    def read(self, size: int) -> memoryview:
        """Read ``size`` bytes, fewer at the end only."""
        self._at += size
        return self._view[self._at - size : self._at]


class _Unpacked:
    """The content of a gzip file with one or more members, unpacked a block at a time as it is read."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._packed = self._block = b""
        self._at = self._fed = self._given = 0

    def read(self, size: int) -> bytes:
        """Read exactly ``size`` bytes, fewer at the end only. Memory grows with the content, not with ``size``."""
        pieces: list[bytes] = []
        while size:
            if self._at == len(self._block):
                self._block, self._at = self._next(), 0
                if not self._block:
                    break
            piece = self._block[self._at : self._at + size]
            self._at += len(piece)
            size -= len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next(self) -> bytes:
        """Return the next block of content; empty at the end."""
        while True:
            if self._member.eof:
                self._packed = self._member.unused_data or self._more()
                if not self._packed.strip(b"\0"):  # zeros may pad the end
                    return b""
                self._member = zlib.decompressobj(_GZIP_WINDOW)
            elif not self._packed:
                self._packed = self._more()
                if not self._packed:
                    raise CorruptArchive(
                        f"{self._path.name}: its gzip stream ends at byte {self._fed:,} of the file, "
                        f"{self._given:,} of its content.",
                        hint=_again(self._path),
                    )
            block = self._member.decompress(self._packed, READ)
            self._packed = self._member.unconsumed_tail
            self._given += len(block)
            if self._given > FREE_OUTPUT and self._given > MAX_RATIO * self._fed:
                raise UnsafeArchive(
                    f"{self._path.name}: {self._fed:,} bytes of gzip unpack to more than {self._given:,}; "
                    f"more than {MAX_RATIO} for each are refused."
                )
            if block:
                return block

    def _more(self) -> bytes:
        packed = self._file.read(READ >> 2)
        self._fed += len(packed)
        return packed
