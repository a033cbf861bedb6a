"""Files of rows whose digests cover more than a part: units, which are fetched and checked as a whole the first time.

::

    <home>/remote/<name>/learned     for each unit that was checked, the sha256 of each of its parts
    <home>/remote/<name>/learning    locks of units that a process fetches; its first bytes change while bytes arrive

A plain copy of a dataset has the dataset's own digests: of 65,536 rows, of a video, of an episode or of a file. When a
byte of such a unit is needed first, all of it is fetched, hashed as it comes, and written in place. If it is right, the
sha256 of its parts is noted. A part is used only if it has that hash, and from then on it can be fetched by itself, so
that memory stays bounded, and a part that has left the cache does not bring its unit again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from rlds_cli.errors import DownloadFailed, RldsError
from rlds_cli.remote.cache import BlockFiles, Stats, Take
from rlds_cli.remote.content import Content
from rlds_cli.remote.objects import Chunk
from rlds_cli.remote.presence import BLOCK, Descriptor, Ground, Room, RowFile, lock_bytes, unlock_bytes
from rlds_cli.remote.reading import ATTEMPTS

LEARNED, LEARNING = "learned", "learning"
PART = BLOCK  # bytes that are checked together once their unit was
_TOGETHER = max(1, (2 << 20) // PART)  # parts of one request
_HEAD = struct.Struct("<8sQ32s")  # of a record: mark, number of hashes, key
_MARK = b"rldsunit"
_HASH = 32
_MOST = 1 << 32  # hashes of a unit
_POLL, _LONGEST_POLL = 0.001, 0.05  # seconds between two looks at what another process fetches

Sink = Callable[[int, Chunk], object]
"""``sink(k, data)`` takes the next bytes of span ``k`` of a unit."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file of rows."""

    path: str
    start: int
    stop: int


class Units(ABC):
    """The units of one or several files of rows, and how each is checked."""

    @abstractmethod
    def find(self, path: str, at: int) -> tuple[int | None, int]:
        """Return the unit that has byte ``at`` of a file, or None for bytes of no unit; and where that ends."""

    @abstractmethod
    def spans(self, number: int) -> tuple[Span, ...]:
        """Return the bytes of a unit."""

    @abstractmethod
    def bring(self, number: int, sink: Sink) -> bool:
        """Give all bytes of a unit to ``sink``, and return whether they are right; raises RldsError."""

    @abstractmethod
    def read(self, number: int, path: str, start: int, stop: int, take: Take) -> None:
        """Give bytes of one span to ``take``, unchecked; raises RldsError."""

    @abstractmethod
    def wrong(self, number: int) -> RldsError:
        """Return the error for a unit that is not what the dataset's digests say."""


@dataclass(frozen=True, slots=True)
class Covered:
    """A file of rows: the units that cover its first ``size`` bytes, and what is behind them."""

    units: Units
    size: int
    tail: Callable[[], bytes]


def stream(of: Content, path: str, start: int, stop: int, take: Callable[[Chunk], object]) -> None:
    """Give bytes of a file at the address of a content to ``take``, unchecked; raises DownloadFailed, Offline."""

    def arrive(chunk: Chunk) -> None:
        of.stats.add(fetched=len(chunk))
        take(chunk)

    if stop > start:
        of.stats.add(requests=1)
        of.connection().fetch(path, start, stop - start, arrive)


class UnitFiles:
    """The files of rows of a plain copy, in this process: what its blocks come from."""

    def __init__(self, ground: Ground, covered: Mapping[str, Covered]) -> None:
        self._covered, self._ground = covered, ground
        self._blocks: Callable[[], BlockFiles | None] = lambda: None
        self._begin()

    def open(
        self, room: Room, name: str, sizes: Mapping[str, int], where: str, timeout: float, stats: Stats
    ) -> BlockFiles:
        """Return the blocks of the files, which have these sizes."""
        files = [RowFile(path, sizes[path]) for path in self._covered]
        blocks = BlockFiles(
            room,
            name,
            files,
            lambda file, start, length, take: self.read(files[file].path, start, length, take),
            check=lambda file, start, data: self.is_right(files[file].path, start, data),
            heartbeat=self._heartbeat,
            timeout=timeout,
            where=where,
            stats=stats,
            counts=False,
        )
        self._blocks = weakref.ref(blocks)  # it refers to this object, and ends when nobody reads any more
        return blocks

    @property
    def blocks(self) -> BlockFiles:
        """The blocks, which call this object."""
        found = self._blocks()
        assert found is not None
        return found

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[bytes, threading.Lock] = {}
        self._log = _Log(self._ground)
        self._learning = Descriptor(self._ground.open(LEARNING, 8))

    def after_fork(self) -> None:
        """Let go of the parent's locks, in a process that was forked."""
        self._begin()

    def read(self, path: str, start: int, length: int, take: Take) -> None:
        """Give bytes [start, start + length) of a file to ``take``, in order, checked; raises RldsError."""
        of = self._covered[path]
        at, end = start, start + length
        while at < min(end, of.size):
            number, stop = of.units.find(path, at)
            stop = min(stop, end)
            if number is None:
                _zeros(stop - at, take)
            else:
                self._give(of.units, number, path, at, stop, take)
            at = stop
        if at < end:
            take(of.tail()[at - of.size : end - of.size])

    def is_right(self, path: str, start: int, data: memoryview) -> bool:
        """Return whether data is a part of a file, as far as that is known without asking for more."""
        of = self._covered[path]
        at, end = start, start + len(data)
        with suppress(RldsError):
            while at < min(end, of.size):
                number, stop = of.units.find(path, at)
                stop = min(stop, end)
                if number is None:
                    right = not any(data[at - start : stop - start])
                else:
                    right = self._has(of.units, number, path, at, data[at - start : stop - start])
                if not right:
                    return False
                at = stop
            return data[at - start :] == of.tail()[at - of.size : end - of.size] if at < end else True
        return False

    def _has(self, units: Units, number: int, path: str, at: int, data: memoryview) -> bool:
        spans = units.spans(number)
        hashes = self._log.find(_key(units, spans))
        if hashes is None:
            return False
        parts = _parts(spans, hashes, path, at, at + len(data))
        whole = parts[0].start == at and parts[-1].stop == at + len(data)
        return whole and all(p.is_right(data[p.start - at : p.stop - at]) for p in parts)

    def _give(self, units: Units, number: int, path: str, at: int, end: int, take: Take) -> None:
        """Give bytes of one span of a unit to ``take``: what is on the disk and right, else what is fetched."""
        spans = units.spans(number)
        parts = _parts(spans, self._learned(units, number, spans), path, at, end)
        descriptor = self.blocks.map.open_rows(self.blocks.number(path))
        try:
            for here, run in groupby(parts, lambda p: p.is_right(os.pread(descriptor, p.stop - p.start, p.start))):
                some = list(run)
                for k in range(0, len(some), _TOGETHER):
                    part = some[k : k + _TOGETHER]
                    first, stop = part[0].start, part[-1].stop
                    if here:
                        data = os.pread(descriptor, stop - first, first)
                    else:
                        data = self._fetched(units, number, path, part)
                    take(memoryview(data)[max(at, first) - first : min(end, stop) - first])
        finally:
            os.close(descriptor)

    def _fetched(self, units: Units, number: int, path: str, parts: Sequence[_Part]) -> bytes:
        first, stop = parts[0].start, parts[-1].stop
        for _ in range(ATTEMPTS):
            data = bytearray()
            units.read(number, path, first, stop, data.extend)
            if all(p.is_right(memoryview(data)[p.start - first : p.stop - first]) for p in parts):
                return bytes(data)
        raise units.wrong(number)

    # -- units

    def _learned(self, units: Units, number: int, spans: Sequence[Span]) -> bytes:
        """Return the hashes of the parts of a unit, which is fetched and checked unless a process did so before."""
        key = _key(units, spans)
        found = self._log.find(key)
        if found is None:
            with self._lock:
                busy = self._busy.setdefault(key, threading.Lock())
            with busy, self._alone(key, units, number):
                found = self._log.find(key)
                if found is None:
                    found = self._bring(units, number, spans)
                    self._log.add(key, found)
        return found

    @contextmanager
    def _alone(self, key: bytes, units: Units, number: int) -> Iterator[None]:
        """Have the lock of a unit, once no other process has it."""
        at = 8 + int.from_bytes(key[:6], "little")
        lock = self._learning
        pause, last, until = _POLL, self._heartbeat(), time.monotonic() + self.blocks.timeout
        while not lock_bytes(lock.number, at, 1):
            if (beat := self._heartbeat()) != last:
                last, until = beat, time.monotonic() + self.blocks.timeout
            elif time.monotonic() > until:
                raise DownloadFailed(
                    f"{units.spans(number)[0].path} of {self.blocks.where} did not arrive within "
                    f"{self.blocks.timeout:g} s: another process fetches it.",
                    hint="a larger timeout=, or end that process",
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)
        try:
            yield
        finally:
            unlock_bytes(lock.number, at, 1)

    def _bring(self, units: Units, number: int, spans: Sequence[Span]) -> bytes:
        """Fetch a unit, check it, and return the hashes of its parts."""
        for _ in range(ATTEMPTS):
            with _Passing(self.blocks, spans) as passing:

                def sink(span: int, data: Chunk, passing: _Passing = passing) -> None:
                    passing.take(span, data)
                    os.pwrite(self._learning.number, time.monotonic_ns().to_bytes(8, "little"), 0)

                if units.bring(number, sink):
                    return passing.hashes()
        raise units.wrong(number)

    def _heartbeat(self) -> bytes:
        """Return what changes while a process fetches a unit."""
        return os.pread(self._learning.number, 8, 0)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes [start, stop) of a file, and their sha256."""

    start: int
    stop: int
    sha256: bytes

    def is_right(self, data: bytes | memoryview) -> bool:
        return len(data) == self.stop - self.start and hashlib.sha256(data).digest() == self.sha256


def _parts(spans: Sequence[Span], hashes: bytes, path: str, at: int, end: int) -> list[_Part]:
    """Return the parts of the span of a file that hold bytes [at, end)."""
    before = 0
    for s in spans:
        if s.path == path and s.start <= at < s.stop:
            first = s.start // PART
            numbers = range(at // PART, -(-end // PART))
            return [
                _Part(max(s.start, p * PART), min(s.stop, (p + 1) * PART), hashes[k * _HASH : (k + 1) * _HASH])
                for p in numbers
                for k in (before + p - first,)
            ]
        before += _count(s)
    raise ValueError(f"byte {at:,} of {path} is not in this unit")


def _count(s: Span) -> int:
    """Return the number of parts of a span."""
    return -(-s.stop // PART) - s.start // PART if s.stop > s.start else 0


def _key(units: Units, spans: Sequence[Span]) -> bytes:
    said = f"{type(units).__name__} {PART} {[(s.path, s.start, s.stop) for s in spans]}"
    return hashlib.sha256(said.encode()).digest()


class _Passing:
    """What becomes of the bytes of a unit that arrive: they are hashed by parts, and written in place.

    They are not used before a part of them is compared with its hash, so nothing is noted here. Of a unit that is
    larger than the cache, nothing is kept.
    """

    def __init__(self, blocks: BlockFiles, spans: Sequence[Span]) -> None:
        self._blocks, self._spans = blocks, spans
        self._at = [s.start for s in spans]
        self._hash = [hashlib.sha256() for _ in spans]
        self._done = [bytearray() for _ in spans]
        self._open: dict[str, int] = {}
        self._pinned: list[np.ndarray] = []
        limit = blocks.room.limit
        self._keeps = not blocks.map.gone and (limit is None or sum(s.stop - s.start for s in spans) <= limit)

    def __enter__(self) -> _Passing:
        if self._keeps:
            numbers = np.unique(np.concatenate([self._numbers(s) for s in self._spans]))
            self._blocks.keep(numbers)
            self._pinned.append(numbers)
        return self

    def __exit__(self, *exc: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        for numbers in self._pinned:
            self._blocks.let_go(numbers)

    def _numbers(self, s: Span) -> np.ndarray:
        first = int(self._blocks.map.first[self._blocks.number(s.path)])
        return np.arange(first + s.start // BLOCK, first + (-(-s.stop // BLOCK) if s.stop > s.start else 0))

    def take(self, span: int, data: Chunk) -> None:
        """Take the next bytes of a span."""
        left = memoryview(data).cast("B")
        while left:
            at = self._at[span]
            part = left[: PART - at % PART]
            self._hash[span].update(part)
            self._write(self._spans[span].path, at, part)
            self._at[span], left = at + len(part), left[len(part) :]
            if self._at[span] % PART == 0:
                self._end(span)

    def _end(self, span: int) -> None:
        self._done[span] += self._hash[span].digest()
        self._hash[span] = hashlib.sha256()

    def hashes(self) -> bytes:
        """Return the hashes of all parts, end to end."""
        for k, s in enumerate(self._spans):
            if self._at[k] != s.stop:
                raise DownloadFailed(f"{self._at[k] - s.start:,} of {s.stop - s.start:,} bytes of {s.path} came.")
            if len(self._done[k]) < _count(s) * _HASH:
                self._end(k)
        return b"".join(self._done)

    def _write(self, path: str, at: int, data: memoryview) -> None:
        """Write bytes within one block in place, unless the block is here, or the disk is full."""
        if not self._keeps:
            return
        file = self._blocks.number(path)
        if self._blocks.map.state[int(self._blocks.map.first[file]) + at // BLOCK]:
            return
        try:
            if path not in self._open:
                self._open[path] = self._blocks.map.open_rows(file)
            os.pwrite(self._open[path], data, at)
        except OSError:
            self._keeps = False


class _Log:
    """The hashes of units that were checked: records that only get more, shared by all processes."""

    def __init__(self, ground: Ground) -> None:
        self._file = Descriptor(ground.open(LEARNED))
        self._places: dict[bytes, tuple[int, int]] = {}  # of the hashes: first byte, number
        self._end = 0
        self._lock = threading.Lock()

    def find(self, key: bytes) -> bytes | None:
        """Return the hashes of a unit; None if it was not checked yet."""
        with self._lock:
            if key not in self._places:
                self._go_on()
            at, count = self._places.get(key, (0, -1))
        return None if count < 0 else os.pread(self._file.number, count * _HASH, at)

    def add(self, key: bytes, hashes: bytes) -> None:
        """Add a record."""
        record = _HEAD.pack(_MARK, len(hashes) // _HASH, key) + hashes
        with self._lock:
            fcntl.flock(self._file.number, fcntl.LOCK_EX)
            try:
                self._go_on()
                with suppress(OSError):  # a full disk: it is learned again
                    os.pwrite(self._file.number, record + hashlib.sha256(record).digest(), self._end)
            finally:
                fcntl.flock(self._file.number, fcntl.LOCK_UN)

    def _go_on(self) -> None:
        """Read the records that others have added. One that a killed process has left in part is written over."""
        while len(head := os.pread(self._file.number, _HEAD.size, self._end)) == _HEAD.size:
            mark, count, key = _HEAD.unpack(head)
            if mark != _MARK or count > _MOST:
                return
            rest = os.pread(self._file.number, (count + 1) * _HASH, self._end + _HEAD.size)
            if hashlib.sha256(head + rest[:-_HASH]).digest() != rest[-_HASH:]:
                return
            self._places[key] = self._end + _HEAD.size, count
            self._end += _HEAD.size + len(rest)


def _zeros(count: int, take: Take) -> None:
    while count > 0:
        part = min(count, BLOCK)
        take(bytes(part))
        count -= part
