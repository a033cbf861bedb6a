"""Hashes of blocks, by which a reader checks each range of an object that arrives.

::

    object          64 KiB 64 KiB ... 64 KiB | 64 KiB ...        blocks
    blocks/OBJECT   sha256 sha256 ... sha256 | sha256 ...        one for each block of one object
    groups/SHA256            sha256          |  sha256 ...       one for the list of each group: 16 blocks, 1 MiB

A reader gets the hashes of groups first. A whole group is proved by these alone. A block that comes without the rest of
its group is proved by the list of the group, which the hash of the group proves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from rlds_cli.base.files import sha256

BLOCK = 1 << 16
GROUP = 1 << 20
HASH = 32  # bytes
LIST = GROUP // BLOCK * HASH  # bytes of the list of a whole group


def blocks_of(size: int) -> int:
    """Return the number of blocks of an object."""
    return -(-size // BLOCK)


def groups_of(size: int) -> int:
    """Return the number of groups of an object."""
    return -(-size // GROUP)


def hashes_of_blocks(data: bytes | memoryview) -> bytes:
    """Return the hashes of the blocks of some bytes, end to end."""
    if len(data) <= BLOCK:
        return hashlib.sha256(data).digest()
    start = np.arange(0, len(data), BLOCK)
    return sha256.of_pieces(data, start, np.minimum(BLOCK, len(data) - start)).tobytes()


def hash_of_group(data: bytes | memoryview) -> bytes:
    """Return the hash of a group from its bytes."""
    return hashlib.sha256(hashes_of_blocks(data)).digest()


class GroupHashes:
    """The hashes of the groups of some objects.

    Parameters
    ----------
    hashes : bytes-like
        Of all objects, end to end.
    sizes : iterable of int
        Of the objects.
    """

    def __init__(self, hashes: memoryview, sizes: Iterable[int]) -> None:
        self._hashes, self._sizes = hashes, [*sizes]
        self._first = [0]
        for size in self._sizes:
            self._first.append(self._first[-1] + groups_of(size))

    def of(self, number: int) -> bytes:
        """Return the hashes of an object's groups."""
        return bytes(self._hashes[self._first[number] * HASH : self._first[number + 1] * HASH])

    def _at(self, number: int, group: int) -> bytes:
        at = (self._first[number] + group) * HASH
        return bytes(self._hashes[at : at + HASH])

    def is_group(self, number: int, group: int, data: bytes | memoryview) -> bool:
        """Return whether ``data`` is group ``group`` of an object."""
        return hash_of_group(data) == self._at(number, group)

    def is_list(self, number: int, group: int, blocks: bytes) -> bool:
        """Return whether ``blocks`` are the hashes of the blocks of a group of an object."""
        return hashlib.sha256(blocks).digest() == self._at(number, group)

    def list_of(self, number: int, group: int) -> tuple[int, int]:
        """Return first byte and number of bytes of a group's part of the list of its object."""
        start = group * LIST
        return start, min(LIST, HASH * blocks_of(self._sizes[number]) - start)

    def span(self, number: int, offset: int, length: int) -> tuple[int, int]:
        """Return first byte and number of bytes of the whole groups that hold a range of an object."""
        start = offset // GROUP * GROUP
        return start, min(groups_of(offset + length) * GROUP, self._sizes[number]) - start
