"""Mend an address: objects that are missing or damaged there are made again from the files of the dataset here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from rlds_cli.errors import DamagedDataset
from rlds_cli.places import GROUP
from rlds_cli.places.remote.index import Object
from rlds_cli.share import copies, packing
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
    lost, files = missing(known), {f.path: f for f in snapshot.files}
    parts: dict[str, set[_Part]] = {sha256: set() for sha256 in lost}
    for k in known if lost else ():
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
