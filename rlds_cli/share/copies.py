"""Check an object of a dataset beside an address before the store copies it: all of it is read and hashed.

An index says what an object holds, and whoever can write to the store can write that. Name and size alone let a wrong
object pass: nothing was sent, nobody could download the result, and the next push found the object there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rlds_cli.errors import RldsError
from rlds_cli.places import Hasher, Index
from rlds_cli.places.remote.index import Object, Piece
from rlds_cli.places.sources.place import Chunk
from rlds_cli.share.packing import Known


def check(known: Known, o: Object, index: Index) -> bytes | None:
    """Return the list of the hashes of an object's blocks; None if it cannot be taken over.

    Parameters
    ----------
    known : Known
        The dataset that has the object.
    index : Index
        The index that will name it: the object must have the sha256 of its name, and each piece its own.
    """
    number = next(k for k, other in enumerate(known.index.objects) if other.sha256 == o.sha256)
    wanted = index.objects.index(o)
    pieces = _Pieces(p for f in index.files for p in f.pieces if p.object == wanted)
    hasher = Hasher()
    try:

        def take(chunk: Chunk) -> None:
            hasher.update(chunk)
            pieces.update(chunk)

        known.objects.stream(o.name, 0, o.size, take, size=o.file_size)
        expected = known.hashes.of(number)
    except RldsError:
        return None
    found = hasher.result()
    right = found.object.sha256 == o.sha256 and found.groups == expected and pieces.are_right()
    return found.blocks if right else None


def is_list(known: Known, o: Object, blocks: bytes) -> bool:
    """Return whether the list of an object's blocks beside the address is what it should be."""
    name, size = o.list
    with suppress(RldsError):
        found = known.objects.read(name, longest=size)
        return found is not None and found.data == blocks
    return False


class _Pieces:
    """Hashes pieces of an object while it is read in order."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._waiting = sorted({(p.offset, p.length, p.sha256) for p in pieces}, reverse=True)
        self._open: list[tuple[int, str, Any]] = []  # end, sha256, hash so far
        self._at, self._wrong = 0, False

    def update(self, chunk: Chunk) -> None:
        """Add the next bytes."""
        view, end = memoryview(chunk), self._at + len(chunk)
        left = []
        for stop, sha256, digest in self._open:
            digest.update(view[: stop - self._at])
            left.append((stop, sha256, digest))
        while self._waiting and self._waiting[-1][0] < end:
            offset, length, sha256 = self._waiting.pop()
            digest = hashlib.sha256(view[offset - self._at : offset - self._at + length])
            left.append((offset + length, sha256, digest))
        self._wrong |= any(stop <= end and digest.hexdigest() != sha256 for stop, sha256, digest in left)
        self._open, self._at = [one for one in left if one[0] > end], end

    def are_right(self) -> bool:
        """Return whether all of them have come, and have their sha256."""
        return not (self._wrong or self._open or self._waiting)
