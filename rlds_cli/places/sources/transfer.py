"""Bring bytes of a file from a place into a sink: ranges, retries, and a limit to what is taken.

A `Sink` says which bytes are missing, and takes those that come: blocks that are checked one by one (`Units`), bytes in
order (`Stream`), or a file of an archive (`places.files.arriving`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from rlds_cli.base import text
from rlds_cli.base.http.connections import Budget, Permanent, Retryable
from rlds_cli.base.http.ranges import NoRange, RangeRequest, Reply, Tag
from rlds_cli.places.sources.place import Chunk, Place

Span = tuple[int, int | None]  # first byte, and that behind the last; None: to the end

ATTEMPTS = 3  # to get bytes that are right: those that are wrong at their place stay so
_REQUESTS = 32  # of one attempt, with redirects; one more for each MiB that was taken


class Wrong(Exception):
    """Bytes that do not have the hash that they should have: ``size`` of them, from byte ``at`` of the file on."""

    def __init__(self, at: int, size: int) -> None:
        super().__init__(f"{size:,} bytes from {at:,} on")
        self.at, self.size = at, size


class Sink(ABC):
    """Where bytes of one file go.

    Attributes
    ----------
    size : int, optional
        Bytes of the file, if they are known: an answer that reaches its end must end there.
    most : float
        Bytes that are taken of a file whose size nobody knows.
    seen : Tag, optional
        The content that its bytes are of, where no hash covers them.
    whole : bool
        True after an answer that was not the range that was asked for: then the whole file is.
    """

    size: int | None = None
    most: float = math.inf
    seen: Tag | None = None
    whole: bool = False

    @property
    @abstractmethod
    def taken(self) -> int:
        """Bytes so far: the measure of progress."""

    @abstractmethod
    def missing(self) -> Span | None:
        """Return the next span to ask for; None once nothing is missing."""

    @abstractmethod
    def wants(self, at: int) -> bool:
        """Return whether bytes from ``at`` on are still of use, in an answer that holds more than was asked for."""

    def begin(self, reply: Reply) -> Iterator[Chunk]:
        """Look at an answer before its bytes are taken, and return these.

        Raises
        ------
        Retryable, Permanent
            It cannot be used.
        NoRange
            It is a range of another content.
        """
        size, span = reply.tag.size, self.missing()
        stop = None if span is None else span[1]
        if size is not None and not (stop or 0) <= size == (self.size or size):
            raise Permanent(f"offers {size:,} B; {self.size or stop:,} B expected")
        return reply.blocks

    @abstractmethod
    def put(self, at: int, data: memoryview) -> None:
        """Take the bytes of the file from ``at`` on, also those that are not missing; raises Wrong."""

    def finish(self, reply: Reply) -> None:
        """Note that an answer has ended; raises Retryable if more of it should have come."""
        if reply.stop is None and self.missing() is not None:
            raise Retryable("the connection closed early")

    def has_ended(self, size: int | None) -> bool:
        """Return whether nothing is missing, now that a range was asked for beyond the end of the file."""
        return False

    def exceed(self, reason: str) -> None:
        """Note that an answer has more bytes than it should; raises Permanent if it is refused for that."""
        return


def transfer(
    place: Place,
    name: str,
    sink: Sink,
    *,
    budget: Budget | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Bring what a sink misses of a file. What has been taken is not asked for again.

    A place that does not give a range is asked for the whole file.

    Parameters
    ----------
    budget : Budget, optional
        Counts all requests; by default each attempt has one of its own.
    say : callable, optional
        Receives reasons for long waits; by default ``policy.told`` does.

    Raises
    ------
    Permanent
        The place does not give it; caused by Wrong if it gave other bytes.
    """

    def attempt(left: float) -> None:
        counted, seconds = budget or Budget(_REQUESTS, lambda: sink.taken), left
        while (span := sink.missing()) is not None:
            start, stop = (0, None) if sink.whole else span
            request = RangeRequest(start=start, stop=stop, seen=sink.seen, budget=counted, seconds=seconds)
            try:
                ask(place, name, sink, request)
            except NoRange as exc:
                if exc.beyond and start and sink.has_ended(exc.size):
                    return
                if sink.whole:
                    raise Permanent(exc.reason) from None
                sink.whole = True
                raise Retryable(exc.reason) from None
            except Wrong as exc:
                raise Retryable("bytes without the expected sha256 came", attempts=ATTEMPTS) from exc
            seconds = math.inf

    place.client.persist(attempt, lambda: sink.taken, say)


def ask(place: Place, name: str, sink: Sink, request: RangeRequest) -> None:
    """Make one request, and give the bytes of its answer to a sink, but none that the file cannot have.

    Raises
    ------
    Retryable, Permanent, NoRange, Wrong
    """
    with place.open(name, request) as reply:
        blocks = sink.begin(reply)
        limit = min((b for b in (reply.stop, sink.size) if b is not None), default=math.inf)
        is_told = sink.size is not None or reply.tag.size is not None
        most = limit if is_told else min(limit, sink.most)
        at = reply.start
        for block in blocks:
            place.client.check()
            if len(block) > most - at:
                expected = f"sends more than the expected {most:,} B"
                unknown = f"announces no size, and sends more than {text.size_of(int(most))}"
                sink.put(at, memoryview(block)[: int(most) - at])
                return sink.exceed(expected if most == limit else unknown)
            sink.put(at, memoryview(block))
            at += len(block)
            if not sink.wants(at):
                return None
        if at < limit < math.inf:
            raise Retryable("the connection closed early")
        return sink.finish(reply)


class Units(Sink):
    """Bytes of a file in units with their places, in order, each checked before it is given on.

    Parameters
    ----------
    start, stop : int
        Places, at which units begin and end.
    unit : callable
        Returns the bytes of the unit at a place; the last one is cut at ``stop``.
    is_right : callable
        Returns whether some bytes are the unit at a place.
    take : callable
        Receives units with their places.
    base : int
        The byte of the file that is place 0.
    size : int, optional
        Bytes of the file.
    """

    def __init__(
        self,
        start: int,
        stop: int,
        *,
        unit: Callable[[int], int],
        is_right: Callable[[int, Chunk], bool],
        take: Callable[[int, Chunk], object],
        base: int = 0,
        size: int | None = None,
    ) -> None:
        self.size, self._base = size, base
        self._start, self._at, self._stop = start, start, stop
        self._unit, self._is_right, self._give = unit, is_right, take
        self._pending = Pending()

    @property
    def taken(self) -> int:
        """Bytes that were given on."""
        return self._at - self._start

    def missing(self) -> Span | None:
        """Return the rest of its bytes."""
        return (self._base + self._at, self._base + self._stop) if self._at < self._stop else None

    def wants(self, at: int) -> bool:
        """Return whether some are missing."""
        return self._at < self._stop

    def put(self, at: int, data: memoryview) -> None:
        """Give units on that are whole and right."""
        at -= self._base
        data, at = data[max(0, self._at - at) :], max(at, self._at)
        while data and self._at < self._stop:
            size = min(self._unit(self._at), self._stop - self._at)
            some, data = data[: self._at + size - at], data[self._at + size - at :]
            unit = self._pending.add(self._at, at, some, size)
            at += len(some)
            if unit is None:
                return
            if not self._is_right(self._at, unit):
                raise Wrong(self._base + self._at, size)
            self._give(self._at, unit)
            self._at += size


class Pending:
    """The unit of a file that is arriving."""

    def __init__(self) -> None:
        self._start, self._came = 0, bytearray()

    def add(self, start: int, at: int, data: memoryview, size: int) -> memoryview | None:
        """Add bytes from ``at`` on to the unit of ``size`` that begins at ``start``; return it once it is whole.

        A unit whose beginning did not come is left out.
        """
        if at == start:
            if len(data) == size:
                return data  # as it came, without a copy
            self._start, self._came = start, bytearray()
        elif (self._start, start + len(self._came)) != (start, at):
            return None
        self._came += data
        return memoryview(self._came) if len(self._came) == size else None


class Stream(Sink):
    """Bytes [start, stop) of a file, in order, as they come: whoever takes them has a hash of all of them."""

    def __init__(self, start: int, stop: int, take: Callable[[memoryview], object], *, size: int | None = None) -> None:
        self.size, self._give = size, take
        self._start, self._at, self._stop = start, start, stop

    @property
    def taken(self) -> int:
        """Bytes that were given on."""
        return self._at - self._start

    def missing(self) -> Span | None:
        """Return the rest of its bytes."""
        return (self._at, self._stop) if self._at < self._stop else None

    def wants(self, at: int) -> bool:
        """Return whether some are missing."""
        return self._at < self._stop

    def begin(self, reply: Reply) -> Iterator[Chunk]:
        """Refuse another content than that of the bytes so far."""
        if self.seen is not None and self.taken and self.seen.differs(reply.tag):
            raise Retryable("the file changed while it was read")
        self.seen = reply.tag
        return super().begin(reply)

    def put(self, at: int, data: memoryview) -> None:
        """Give the next bytes on."""
        some = data[max(0, self._at - at) : max(0, self._stop - at)]
        if some:
            self._give(some)
            self._at += len(some)
