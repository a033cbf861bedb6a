"""Plan a push: which bytes are at the address already, and how the others are packed into objects.

1. A part of a file is known if an index has a piece with the same bytes: that of the address itself, or one beside it.
   Bytes are compared by sha256. Rows and records of a growing dataset do not change once they are committed, so
   the pieces of an earlier version are taken over as they are, if its log of versions is a beginning of ours.
2. Everything else is laid end to end, cut into objects of about equal size, and hashed. What opening a dataset takes
   comes first, and large files begin where their blocks are blocks of the object: a reader of single blocks then gets
   no more than it asked for. The bytes between, at most an eighth, are zeros.
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, BinaryIO, cast

from rlds_cli.base import settings
from rlds_cli.base.files.mapping import mapped
from rlds_cli.errors import DamagedDataset
from rlds_cli.places import BLOCK, GROUP, Body, Hasher, Index, IndexBuilder, PushedDataset
from rlds_cli.places.remote.blocks import GroupHashes
from rlds_cli.places.remote.index import IndexedFile, Object, Piece
from rlds_cli.places.sources.objects import Objects
from rlds_cli.share.snapshot import Snapshot
from rlds_cli.store import GrowingDataset, LocalFile

LEAST = 32 << 20  # bytes of an object
MOST_OBJECTS = 100
_SHARE = 72  # objects of equal size, of which each is at least three quarters full: 96
_WORTH = 4096  # bytes of a piece for which an object of another dataset is copied
_READ = 1 << 20
_LARGE = 8 * GROUP  # bytes of a file that begins with a group of an object, if few zeros come before it
_EPISODES = "episodes/"
_IN_PLACE = 1 << 30  # bytes of a file that stays where it is, of which one object is made
_ADDED = 32  # one such part of what is sent may be sent for a better order, or to leave objects behind
_LOOKS = 16  # groups of a changed file by which it is decided whether to compare all
_CANDIDATES = 8  # files of the same size that a file is compared with
Told = Callable[[int], None]
_Key = tuple[int, int]  # an object: numbers of its index and in it


@dataclass(frozen=True)
class Known:
    """An index, and where it is: at the address itself (``here``), or beside it. Only existing objects count."""

    objects: Objects
    index: Index
    here: bool
    there: frozenset[str]

    def has(self, piece: Piece, file: LocalFile) -> bool:
        """Return whether the object of a piece exists: one that is a part of a file, for that file alone."""
        o = self.index.objects[piece.object]
        return o.sha256 in self.there and o.path in ("", file.path)

    @cached_property
    def by_path(self) -> Mapping[str, IndexedFile]:
        """Its files by path."""
        return {f.path: f for f in self.index.files}

    @cached_property
    def _by_size(self) -> Mapping[int, list[IndexedFile]]:
        found: dict[int, list[IndexedFile]] = {}
        for f in self.index.files:
            found.setdefault(f.size, []).append(f)
        return found

    def like(self, file: LocalFile) -> Iterator[IndexedFile]:
        """Yield its file of the same path, and some of the same size."""
        same = self.by_path.get(file.path)
        if same is not None:
            yield same
        yield from (f for f in self._by_size.get(file.size, [])[:_CANDIDATES] if f is not same)

    @cached_property
    def hashes(self) -> GroupHashes:
        """Hashes of the groups of all its objects; raises DownloadFailed, DamagedDataset."""
        return PushedDataset(self.objects).groups(self.index)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file to be sent."""

    file: LocalFile
    at: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewObject:
    """An object to be sent: its spans end to end, and their sha256; hashes of its blocks and groups, end to end."""

    object: Object  # as the index names it
    blocks: bytes
    groups: bytes
    spans: tuple[Span, ...]
    sha256: tuple[str, ...]

    def body(self, told: Told) -> Body:
        """Return the content; ``told`` is called with the bytes of each part that was read."""
        return Body(
            self.object.size,
            lambda: cast(BinaryIO, io.BufferedReader(_SpanReader(self.spans, told), _READ)),
            lambda: _mapped(self.spans, told),
        )


@dataclass(frozen=True, slots=True)
class Match:
    """Bytes of a file that an object of a known index has."""

    at: int
    length: int
    known: int
    piece: Piece


@dataclass(frozen=True)
class PushPlan:
    """The plan of a push: the index that it writes, the objects that it sends, and those that the store copies.

    ``mended`` are objects of versions at the address that are sent again; ``damaged`` are the numbers of versions there
    that lack others.
    """

    index: Index
    new: tuple[NewObject, ...]
    copied: tuple[tuple[Known, Object], ...]
    kept: tuple[Object, ...]
    hashes: bytes = field(repr=False)
    mended: tuple[NewObject, ...] = ()
    damaged: tuple[int, ...] = ()

    @property
    def to_send(self) -> int:
        """Bytes of all new objects, but parts of files that stay where they are."""
        return sum(o.object.size for o in (*self.new, *self.mended) if not o.object.path)


def plan(
    snapshot: Snapshot,
    known: Sequence[Known],
    told: Told = lambda done: None,
    *,
    in_place: Collection[str] = (),
) -> PushPlan:
    """Plan the push of a snapshot beside ``known`` indexes; reads files. ``told`` gets the bytes that were hashed.

    Objects of files ``in_place`` are parts of these files, which are at the address already.
    """
    hasher = _Ranges(told)
    with ThreadPoolExecutor(max(1, min(8, settings.cores()))) as pool:
        found = partial(_matches, snapshot=snapshot, known=known, ranges=hasher)
        matches = list(pool.map(found, snapshot.files))
        matches = _worthwhile(matches, known, snapshot)
        spans = [s for f, found in zip(snapshot.files, matches, strict=True) for s in _rest(f, found)]
        stay, spans = [s for s in spans if s.file.path in in_place], [s for s in spans if s.file.path not in in_place]
        packed = _packed(sorted(spans, key=_order), snapshot.size)
        new = tuple(pool.map(partial(hashed, told=told), packed))
        parts = ((part,) for span in stay for part in _parts(span))
        new += tuple(pool.map(partial(hashed, told=told, in_place=True), parts))
    return _assembled(snapshot, known, matches, new)


# -- what is known


class _Ranges:
    """Hashes ranges of files, each once."""

    def __init__(self, told: Told) -> None:
        self._known: dict[tuple[str, int, int], str] = {}
        self._told = told

    def sha256(self, file: LocalFile, at: int, length: int) -> str:
        key = file.path, at, length
        if key not in self._known:
            h = hashlib.sha256()
            for chunk in _read(Span(file, at, length)):
                h.update(chunk)
            self._told(length)
            self._known[key] = h.hexdigest()
        return self._known[key]

    def group(self, file: LocalFile, at: int) -> bytes:
        """Return the bytes from ``at`` on that make a group of blocks."""
        data = b"".join(map(bytes, _read(Span(file, at, GROUP))))
        self._told(len(data))
        return data


def _matches(file: LocalFile, snapshot: Snapshot, known: Sequence[Known], ranges: _Ranges) -> list[Match]:
    """Return what the known indexes have of a file, in order and without overlaps."""
    found: list[Match] = []
    for number, k in enumerate(known):
        if k.here and file.file is not None and _is_earlier(snapshot, k, ranges):
            there = k.by_path.get(file.path)
            found = [
                Match(piece.at, piece.length, number, piece)
                for piece in (there.pieces if there else ())
                if k.has(piece, file) and _overlaps(file.extents, piece)
                if not k.index.objects[piece.object].path or _is_kept(piece, file, snapshot)
            ]
            if found:
                return found
    for number, k in enumerate(known):
        for other in k.like(file):
            for piece in other.pieces:
                if not k.has(piece, file) or not _may_come(file, piece):
                    continue
                if not _is_free(piece, found):
                    continue
                if ranges.sha256(file, piece.at, piece.length) == piece.sha256:
                    found.append(Match(piece.at, piece.length, number, piece))
                elif not k.index.objects[piece.object].path:
                    parts = _equal_groups(file, piece, k, ranges)
                    found += [Match(p.at, p.length, number, p) for p in parts]
    return sorted(found, key=lambda m: m.at)


def _is_kept(piece: Piece, file: LocalFile, snapshot: Snapshot) -> bool:
    """Return whether a piece that is in place has the bytes that it had: rows that leave are freed there."""
    return snapshot.store.table.keeps is None and _within(file.extents, piece)


def _equal_groups(file: LocalFile, piece: Piece, known: Known, ranges: _Ranges) -> Iterator[Piece]:
    """Yield the parts of a piece whose groups of blocks are the same in a file: that of rows before a change."""
    first, stop = -(-piece.offset // GROUP), (piece.offset + piece.length) // GROUP

    def is_equal(group: int) -> bool:
        data = ranges.group(file, piece.at + group * GROUP - piece.offset)
        return known.hashes.is_group(piece.object, group, data)

    looked = range(first, stop, max(1, (stop - first) // _LOOKS))
    if not any(map(is_equal, looked)):
        return
    begun = None
    for group in range(first, stop + 1):
        if group < stop and is_equal(group):
            begun = group if begun is None else begun
        elif begun is not None:
            at, length = piece.at + begun * GROUP - piece.offset, (group - begun) * GROUP
            sha256 = ranges.sha256(file, at, length)
            yield replace(piece, at=at, offset=begun * GROUP, length=length, sha256=sha256)
            begun = None


def _may_come(file: LocalFile, piece: Piece) -> bool:
    """Return whether a piece may be that of a file: with rows of no episode, but without what a writer may change."""
    if file.growing:
        return _within(file.extents, piece)
    return piece.at + piece.length <= file.size and _overlaps(file.extents, piece)


def _within(extents: Sequence[tuple[int, int]], piece: Piece) -> bool:
    """Return whether one of a file's extents, in order, holds a piece whole."""
    k = bisect_right(extents, piece.at, key=lambda e: e[0]) - 1
    return k >= 0 and piece.at + piece.length <= extents[k][1]


def _overlaps(extents: Sequence[tuple[int, int]], piece: Piece) -> bool:
    """Return whether one of a file's extents, in order, shares bytes with a piece."""
    k = bisect_right(extents, piece.at + piece.length - 1, key=lambda e: e[0]) - 1
    return k >= 0 and piece.at < extents[k][1]


def _is_free(piece: Piece, taken: Iterable[Match]) -> bool:
    return not any(m.at < piece.at + piece.length and piece.at < m.at + m.length for m in taken)


def _is_earlier(snapshot: Snapshot, known: Known, ranges: _Ranges) -> bool:
    """Return whether a known index is of an earlier version of the same dataset: its log begins ours."""
    there, ours = (
        known.by_path.get(GrowingDataset.LOG),
        next((f for f in snapshot.files if f.path == GrowingDataset.LOG), None),
    )
    return (
        there is not None
        and ours is not None
        and 0 < there.size <= ours.size
        and all(ranges.sha256(ours, p.at, p.length) == p.sha256 for p in there.pieces)
    )


def _worthwhile(matches: list[list[Match]], known: Sequence[Known], snapshot: Snapshot) -> list[list[Match]]:
    """Drop the objects whose use is not worth keeping or copying them whole; their content is packed anew.

    These are objects of other datasets of which only scraps are used; those of which less than half is used, as far as
    that adds a few per cent to what is sent anyway; and the least used of too many.
    """
    used: dict[_Key, int] = {}
    longest: dict[_Key, int] = {}
    for file, found in zip(snapshot.files, matches, strict=True):
        for m in found:
            key = m.known, m.piece.object
            needed = sum(max(0, min(stop, m.at + m.length) - max(at, m.at)) for at, stop in file.extents)
            used[key], longest[key] = used.get(key, 0) + needed, max(longest.get(key, 0), needed)
    in_place = {key for key in used if known[key[0]].index.objects[key[1]].path}
    worth = (key for key in used.keys() - in_place if known[key[0]].here or longest[key] >= _WORTH)
    kept = sorted(worth, key=lambda key: used[key])
    spare = (snapshot.size - sum(used[key] for key in kept)) // _ADDED
    for key in list(kept):
        if 2 * used[key] < known[key[0]].index.objects[key[1]].size and used[key] <= spare:
            spare -= used[key]
            kept.remove(key)
    while kept and len(kept) + _objects_for(snapshot, sum(used[key] for key in kept)) > MOST_OBJECTS:
        kept = kept[-(-len(kept) // 2) :]
    stay = {*kept, *in_place}
    return [[m for m in found if (m.known, m.piece.object) in stay] for found in matches]


def _objects_for(snapshot: Snapshot, known: int) -> int:
    """Return the greatest number of objects that hold all but ``known`` bytes."""
    rest = snapshot.size - known
    return 1 + 4 * rest // (3 * object_size(snapshot.size)) if rest > 0 else 0


def object_size(total: int) -> int:
    """Return the bytes of an object of a dataset."""
    size = max(LEAST, -(-total // _SHARE))
    return size if size < _LARGE else -(-size // GROUP) * GROUP


def _rest(file: LocalFile, matches: Sequence[Match]) -> Iterator[Span]:
    """Yield the parts of a file's extents that no match covers."""
    starts = [m.at for m in matches]
    for at, stop in file.extents:
        while at < stop:
            k = bisect_right(starts, at) - 1
            if k >= 0 and at < matches[k].at + matches[k].length:
                at = matches[k].at + matches[k].length
                continue
            end = min(stop, starts[k + 1]) if k + 1 < len(starts) else stop
            yield Span(file, at, end - at)
            at = end


def _parts(span: Span) -> Iterator[Span]:
    """Cut a span of a file that stays where it is."""
    for at in range(span.at, span.at + span.length, _IN_PLACE):
        yield Span(span.file, at, min(_IN_PLACE, span.at + span.length - at))


# -- objects


def _order(span: Span) -> tuple[bool, bool, int]:
    """Return what spans are sorted by: large ones first; of the others the manifest and the episode table."""
    small, path = span.length < _LARGE, span.file.path
    return span.file.growing, small, 0 if path == Index.MANIFEST or path.startswith(_EPISODES) else 1


def _packed(spans: Iterable[Span], total: int) -> list[tuple[Span, ...]]:
    """Lay spans end to end and cut them into objects; a file begins a new one if the last is three quarters full.

    Groups of large files are groups of their object, or at least blocks are blocks, as far as that adds few zeros: one
    part in `_ADDED`.
    """
    size = object_size(total + total // _ADDED)
    made: list[list[Span]] = [[]]
    filled = laid = added = 0
    for span in spans:
        laid += span.length
        for unit in (GROUP, BLOCK):
            between = (span.at - filled) % unit if span.length >= _LARGE else 0
            if 0 < between < size - filled and (added + between) * _ADDED <= laid:
                made[-1].append(zeros(between))
                filled, added = filled + between, added + between
        while span.length:
            room = size - filled
            if span.length > room and 4 * filled >= 3 * size:
                made.append([])
                filled = 0
                continue
            part = replace(span, length=min(span.length, room))
            made[-1].append(part)
            filled += part.length
            span = Span(span.file, span.at + part.length, span.length - part.length)
            if span.length:
                made.append([])
                filled = 0
    return [tuple(parts) for parts in made if parts]


def zeros(count: int) -> Span:
    """Return zeros that belong to no file of the dataset."""
    return Span(LocalFile("", count, ((0, count),), data=bytes(count)), 0, count)


def hashed(spans: tuple[Span, ...], told: Told = lambda done: None, *, in_place: bool = False) -> NewObject:
    """Read and hash the object that spans make, end to end, or that the only one is where it is (``in_place``)."""
    whole, each = Hasher(), list[str]()
    for span in spans:
        own = hashlib.sha256() if len(spans) > 1 else None
        for chunk in _read(span):
            whole.update(chunk)
            if own is not None:
                own.update(chunk)
        told(span.length)
        if own is not None:
            each.append(own.hexdigest())
    made = whole.result(spans[0].file.path, spans[0].at) if in_place else whole.result()
    return NewObject(
        object=made.object,
        blocks=made.blocks,
        groups=made.groups,
        spans=spans,
        sha256=tuple(each or [made.object.sha256]),
    )


def _read(span: Span) -> Iterator[memoryview]:
    """Read a span. What is yielded is overwritten by what follows: it stays in the processor's cache."""
    left, buffer = span.length, memoryview(bytearray(min(_READ, span.length)))
    with span.file.open() as file:
        file.seek(span.at)
        while left:
            size = file.readinto(buffer[:left])  # type: ignore[attr-defined]
            if not size:
                raise DamagedDataset(f"{span.file.path} ends early.", hint="rlds verify ID shows all damage")
            left -= size
            yield buffer[:size]


def _mapped(spans: Iterable[Span], told: Told) -> Iterator[memoryview]:
    """Map spans, piece by piece: what is sent is not copied before."""
    for span in spans:
        with span.file.open() as file:
            for at in range(span.at, span.at + span.length, Body.PIECE):
                piece = mapped(file, at, min(Body.PIECE, span.at + span.length - at))
                if piece is None:
                    raise DamagedDataset(f"{span.file.path} ends early.", hint="rlds verify ID shows all damage")
                yield piece
                told(len(piece))


class _SpanReader(io.RawIOBase):
    """Reads spans end to end."""

    def __init__(self, spans: Sequence[Span], told: Told) -> None:
        self._spans, self._told = spans, told
        self._starts = [0]
        for span in spans:
            self._starts.append(self._starts[-1] + span.length)
        self._at = 0
        self._open: tuple[int, BinaryIO] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._starts[-1]}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._starts[-1]:
            return 0
        number = bisect_right(self._starts, self._at) - 1
        span, within = self._spans[number], self._at - self._starts[number]
        if self._open is None or self._open[0] != number:
            self._shut()
            self._open = number, span.file.open()
        file = self._open[1]
        file.seek(span.at + within)
        chunk = file.read(min(len(buffer), span.length - within))
        if not chunk:
            raise OSError(f"{span.file.path} ends early")
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        self._told(len(chunk))
        return len(chunk)

    def _shut(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def close(self) -> None:
        self._shut()
        super().close()


def _assembled(
    snapshot: Snapshot, known: Sequence[Known], matches: Sequence[Sequence[Match]], new: tuple[NewObject, ...]
) -> PushPlan:
    """Return the plan: all objects numbered, and every file's pieces in order."""
    made = IndexBuilder()
    copied: list[tuple[Known, Object]] = []
    kept: list[Object] = []
    at_home = {o for k in known if k.here for o in k.index.objects if o.sha256 in k.there}
    for of, number in sorted({(m.known, m.piece.object) for found in matches for m in found}):  # as they were
        k, old = known[of], known[of].index.objects[number]
        if not made.add(old, k.hashes.of(number)):
            continue
        if old in at_home:
            kept.append(old)
        else:
            copied.append((k, old))
    for file, found in zip(snapshot.files, matches, strict=True):
        for m in found:
            old = known[m.known].index.objects[m.piece.object]
            made.lay(file.path, m.piece.at, m.piece.length, m.piece.sha256, of=old, offset=m.piece.offset)
    fresh = []
    for one in new:
        if made.add(one.object, one.groups):
            fresh.append(one)
        offset = 0
        for span, sha256 in zip(one.spans, one.sha256, strict=True):
            if span.file.path:
                made.lay(span.file.path, span.at, span.length, sha256, of=one.object, offset=offset)
            offset += span.length
    index, hashes = made.finish(
        {f.path: f.size for f in snapshot.files},
        id=snapshot.id,
        fingerprint=snapshot.fingerprint,
        version=snapshot.version,
        manifest=snapshot.manifest,
    )
    return PushPlan(index, tuple(fresh), tuple(copied), tuple(kept), hashes)
