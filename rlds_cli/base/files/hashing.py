"""Hash the content of files, and shorten fingerprints for people."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Protocol

_BLOCK, _SMALL = 1 << 20, 1 << 12  # bytes
_TOGETHER = 2 << 20  # bytes of small files that are hashed in one call: they stay in the processor's caches


def short(fingerprint: str) -> str:
    """Shorten a fingerprint or a version for people: ``rlds1:7c1f-09ab-55e2``, ``7c1f-09ab-55e2``."""
    head, colon, digits = fingerprint.rpartition(":")
    return f"{head}{colon}{'-'.join(filter(None, (digits[:4], digits[4:8], digits[8:12])))}"


def sha256_of(file: Path, told: Callable[[int], None] | None = None) -> str:
    """Return the sha256 of a file; ``told`` is called with the number of bytes read so far."""
    digest = hashlib.sha256()
    _feed(digest, file, told)
    return digest.hexdigest()


def content_of(file: Path) -> tuple[int, str]:
    """Return the size of a file and its sha256."""
    digest = hashlib.sha256()
    return _feed(digest, file, None), digest.hexdigest()


class SmallFiles:
    """Hashes small files together, which takes half as long: `sha256.of_pieces` hashes several at a time."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_TOGETHER))
        self._ends = [0]  # of the files, in the buffer

    def take(self, file: Path) -> bool:
        """Read a file; return False for one that is large, is a directory, or changes meanwhile, and without room."""
        start = self._ends[-1]
        descriptor = os.open(file, os.O_RDONLY)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size >= len(self._buffer) - start:
                return False
            if os.readv(descriptor, [self._buffer[start : start + status.st_size + 1]]) != status.st_size:
                return False
        finally:
            os.close(descriptor)
        self._ends.append(start + status.st_size)
        return True

    def contents(self) -> Iterator[tuple[int, str]]:
        """Yield the sizes and the sha256 of the files that were taken since the last call."""
        from rlds_cli.base.files import sha256  # imports NumPy, which short commands start without

        ends, self._ends = self._ends, [0]
        sizes = [b - a for a, b in pairwise(ends)]
        for size, digest in zip(sizes, sha256.of_pieces(self._buffer, ends[:-1], sizes), strict=True):
            yield size, digest.tobytes().hex()


def hash_of(kind: str, file: Path) -> str:
    """Return the hash of a file, of a kind that sources publish: ``git_sha1``, ``md5`` or ``crc32c``."""
    found = digest(kind, file.stat().st_size)
    _feed(found, file, None)
    return found.hexdigest()


class Digest(Protocol):
    """A hash that content is added to."""

    def update(self, block: bytes | memoryview, /) -> None:
        """Add the next bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far."""


def digest(kind: str, size: int) -> Digest:
    """Start a hash of kind ``git_sha1``, ``md5`` or ``crc32c`` for content of ``size`` bytes."""
    if kind == "git_sha1":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return _Crc32c() if kind == "crc32c" else hashlib.md5(usedforsecurity=False)


class _Crc32c:
    def __init__(self) -> None:
        import google_crc32c  # seldom needed, and too slow to import at the start of every command

        self._extend = google_crc32c.extend
        self._value = 0

    def update(self, block: bytes | memoryview, /) -> None:
        self._value = self._extend(self._value, bytes(block))

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _feed(digest: Digest, file: Path, told: Callable[[int], None] | None) -> int:
    """Add the content of a file to a hash; return its bytes."""
    done = 0
    with open(file, "rb", buffering=0) as stream:  # noqa: PTH123  (thousands of small ones)
        size = os.fstat(stream.fileno()).st_size  # memory for more takes longer than most files do
        while block := stream.read(min(_BLOCK, max(_SMALL, size - done + 1))):
            digest.update(block)
            done += len(block)
            if told is not None:
                told(done)
    return done
