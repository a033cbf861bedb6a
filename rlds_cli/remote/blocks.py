"""Hashes of blocks: the sha256 of every 1 MiB of every object, by which a reader checks each range that arrives.

They lie end to end, 32 bytes each, in the order of the objects, in one object that is named by its own sha256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

BLOCK = 1 << 20
_BYTES = 32


def blocks_of(size: int) -> int:
    """Return the number of blocks of an object."""
    return -(-size // BLOCK)


class Hasher:
    """Hashes an object while it is read in order: all of it, and its blocks."""

    def __init__(self) -> None:
        self._whole, self._block = hashlib.sha256(), hashlib.sha256()
        self._blocks = bytearray()
        self._left = BLOCK

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        self._whole.update(data)
        rest = memoryview(data)
        while rest:
            part = rest[: self._left]
            self._block.update(part)
            self._left -= len(part)
            rest = rest[len(part) :]
            if not self._left:
                self._end()

    def _end(self) -> None:
        self._blocks += self._block.digest()
        self._block, self._left = hashlib.sha256(), BLOCK

    def result(self) -> tuple[str, bytes]:
        """Return the sha256 of the object, and the hashes of its blocks end to end."""
        if self._left < BLOCK:
            self._end()
        return self._whole.hexdigest(), bytes(self._blocks)


class BlockHashes:
    """The hashes of the blocks of some objects, given by their sizes in the order of ``hashes``."""

    def __init__(self, hashes: bytes, sizes: Iterable[int]) -> None:
        self._hashes = hashes
        self._sizes = [*sizes]
        self._first = [0]
        for size in self._sizes:
            self._first.append(self._first[-1] + blocks_of(size))

    def of(self, number: int) -> bytes:
        """Return the hashes of an object's blocks."""
        return self._hashes[self._first[number] * _BYTES : self._first[number + 1] * _BYTES]

    def is_right(self, number: int, block: int, data: bytes | memoryview) -> bool:
        """Return whether ``data`` is block ``block`` of an object."""
        at = (self._first[number] + block) * _BYTES
        return hashlib.sha256(data).digest() == self._hashes[at : at + _BYTES]

    def span(self, number: int, offset: int, length: int) -> tuple[int, int]:
        """Return first byte and number of bytes of the whole blocks that hold a range of an object."""
        start = offset // BLOCK * BLOCK
        return start, min(blocks_of(offset + length) * BLOCK, self._sizes[number]) - start


def joined(parts: Sequence[bytes]) -> tuple[bytes, str]:
    """Return the content of the object with all hashes, and its sha256."""
    data = b"".join(parts)
    return data, hashlib.sha256(data).hexdigest()
