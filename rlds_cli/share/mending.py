"""Prove objects at an address by reading them, and make again those that are missing or damaged.

An index says what an object holds, and whoever can write to the store can write that. Name and size alone let a wrong
object pass: nothing was sent, nobody could download the result, and the next push found the object there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.places import GROUP, Hasher, Index
from rlds_cli.places.remote.index import Object, Piece
from rlds_cli.places.sources.place import Chunk
from rlds_cli.share import packing
from rlds_cli.share.packing import Known, NewObject, Span, Told
from rlds_cli.share.snapshot import Snapshot
from rlds_cli.store import LocalFile

_AT_ONCE = 4  # objects that are read
_TIMES = 4  # the bytes of a snapshot that are read at most, whatever the indexes there claim
_Part = tuple[int, str, int, int]  # offset in an object; path of a file, place in it, and length


def without_damage(known: Sequence[Known]) -> list[Known]:
    """Read all objects of some indexes, and return the indexes without the objects that are damaged."""
    every = {o.sha256: (k, o) for k in known for o in k.index.objects if o.sha256 in k.there}

    def is_whole(one: tuple[Known, Object]) -> bool:
        k, o = one
        blocks = blocks_of_proved(k, o, k.index)
        return blocks is not None and is_list(k, o, blocks)

    with ThreadPoolExecutor(_AT_ONCE, "verify") as pool:
        whole = {sha256 for sha256, good in zip(every, pool.map(is_whole, every.values()), strict=True) if good}
    return [replace(k, there=k.there & whole) for k in known]


def missing(known: Sequence[Known]) -> dict[str, Object]:
    """Return the objects of some indexes that are missing or damaged, by sha256; not those that are parts of files."""
    return {o.sha256: o for k in known for o in k.index.objects if not o.path and o.sha256 not in k.there}


def made_again(known: Sequence[Known], snapshot: Snapshot, told: Told) -> tuple[NewObject, ...]:
    """Return those missing objects that the files of a snapshot hold: byte for byte, so that every version has them."""
    lost = missing(known)
    if not lost:
        return ()
    files = {f.path: f for f in snapshot.files}
    parts: dict[str, set[_Part]] = {sha256: set() for sha256 in lost}
    for k in known:
        for f in k.index.files:
            for p in f.pieces:
                sha256 = k.index.objects[p.object].sha256
                if sha256 in lost and f.path in files and p.at + p.length <= files[f.path].size:
                    parts[sha256].add((p.offset, f.path, p.at, p.length))
    made, left = list[NewObject](), _TIMES * snapshot.size
    for sha256, o in lost.items():
        spans = _spans(o, sorted(parts[sha256]), files) if o.size <= left else ()
        if not spans:
            continue
        left -= o.size
        with suppress(DamagedDataset):  # a file that ends early
            found = packing.hashed(spans, told)
            made += [found] if found.object.sha256 == sha256 else []
    return tuple(made)


def _spans(o: Object, parts: Sequence[_Part], files: Mapping[str, LocalFile]) -> tuple[Span, ...]:
    """Return the bytes of an object from its parts in order, with zeros between; nothing if one is missing."""
    spans, filled = list[Span](), 0
    for offset, path, at, length in parts:
        if offset - filled >= GROUP:  # more zeros than any push adds: a part that is missing here
            return ()
        if offset > filled:
            spans.append(packing.zeros(offset - filled))
        passed = max(0, filled - offset)
        if passed < length:
            spans.append(Span(files[path], at + passed, length - passed))
            filled = offset + length
    return tuple(spans) if filled == o.size else ()


def blocks_of_proved(known: Known, o: Object, index: Index) -> bytes | None:
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
