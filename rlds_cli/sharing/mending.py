"""Mend an address: objects that are missing or damaged there are made again from the files of the dataset here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from rlds_cli.errors import DamagedDataset
from rlds_cli.remote.index import Object
from rlds_cli.sharing import copies, packing
from rlds_cli.sharing.packing import Known, NewObject, Span, Told
from rlds_cli.sharing.snapshot import Snapshot

_AT_ONCE = 4  # objects that are read


def without_damage(known: Sequence[Known]) -> list[Known]:
    """Read all objects of some indexes, and return the indexes without the objects that are damaged."""
    every = {o.sha256: (k, o) for k in known for o in k.index.objects if o.sha256 in k.there}

    def is_whole(one: tuple[Known, Object]) -> bool:
        k, o = one
        blocks = copies.check(k, o, k.index)
        return blocks is not None and copies.is_list(k, o, blocks)

    with ThreadPoolExecutor(_AT_ONCE, "verify") as pool:
        whole = {sha256 for sha256, good in zip(every, pool.map(is_whole, every.values()), strict=True) if good}
    return [replace(k, there=k.there & whole) for k in known]


def missing(known: Sequence[Known]) -> dict[str, Object]:
    """Return the objects of some indexes that are missing or damaged, by sha256; not those that are parts of files."""
    return {o.sha256: o for k in known for o in k.index.objects if not o.path and o.sha256 not in k.there}


def made_again(known: Sequence[Known], snapshot: Snapshot, told: Told) -> tuple[NewObject, ...]:
    """Return those missing objects that the files of a snapshot hold: byte for byte, so that every version has them."""
    made = (_made(o, known, snapshot, told) for o in missing(known).values())
    return tuple(one for one in made if one is not None)


def _made(o: Object, known: Sequence[Known], snapshot: Snapshot, told: Told) -> NewObject | None:
    """Return an object from the pieces that any index has of it, with zeros between; None if its sha256 differs."""
    files = {f.path: f for f in snapshot.files}
    pieces = {
        (p.offset, f.path, p.at, p.length)
        for k in known
        for number, other in enumerate(k.index.objects)
        if other.sha256 == o.sha256
        for f in k.index.files
        if f.path in files
        for p in f.pieces
        if p.object == number and p.at + p.length <= files[f.path].size
    }
    spans, filled = list[Span](), 0
    for offset, path, at, length in sorted(pieces):
        if offset > filled:
            spans.append(packing.zeros(offset - filled))
        passed = max(0, filled - offset)
        if passed < length:
            spans.append(Span(files[path], at + passed, length - passed))
            filled = offset + length
    if filled != o.size:  # the last bytes of an object are never zeros
        return None
    with suppress(DamagedDataset):  # a file that ends early
        found = packing.hashed(tuple(spans), told)
        return found if found.object.sha256 == o.sha256 else None
    return None
