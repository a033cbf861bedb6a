"""Download one file of an archive from one URL: resuming, side by side, and what is refused as no archive.

The first connection fetches a file from the beginning. Further connections fetch ranges ahead of it, and write them at
their place. They only save time: if one fails, the first connection fetches that range itself, and decides about
errors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from threading import Condition, Event, Thread

from rlds_cli.base import text, visible
from rlds_cli.base.files import disk
from rlds_cli.base.http.client import Client, authorities
from rlds_cli.base.http.connections import Budget, Exchange, Permanent, Retryable, Stopped, quoted
from rlds_cli.base.http.ranges import NoRange, RangeRequest, Reply, Tag
from rlds_cli.errors import InvalidId, NoSpace
from rlds_cli.places.files.parts import PartFile, PartOrigin
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.opening import place_at
from rlds_cli.places.sources.place import Chunk, Place
from rlds_cli.places.sources.transfer import Sink, Span, ask, transfer
from rlds_cli.places.sources.web import WebFile

PLAIN = "comes over plain HTTP, and no hash of it is published: an alteration on the way would not be noticed"
UNFRAMED = "comes without a length, a size or a hash: a missing end would not be noticed"
UNSIZED = "its size is not known"
AUTHORITIES = "the server's certificate was verified with the authorities"
_HEAD = 512  # bytes that tell a web page
_WATCH = 64 << 20  # bytes between two checks of the free space
_ROUND = 0.1  # seconds between two checks of the other connections
_PATIENCE = 1.0  # seconds to wait for a thread to end


def pull(
    client: Client,
    url: str,
    file: RemoteFile,
    part: PartFile,
    *,
    budget: Budget,
    told: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Complete ``part`` from ``url``, resumed where that is safe.

    Parameters
    ----------
    budget : Budget
        Counts all requests.
    told : callable
        Called after each block that was written.
    say : callable
        Receives notes: reasons for long waits, and warnings about bytes that cannot be checked.

    Raises
    ------
    Permanent
        This URL does not give the file; another may.
    NoSpace
        The disk is full. The part is kept.
    """
    source, name = _source(url, client, file.path)
    with closing(SideBySide(source, name, part, budget, told)) as others:
        transfer(source, name, _Arriving(client, url, file, part, others, told, say), budget=budget, say=say)


def _source(url: str, client: Client, name: str) -> tuple[Place, str]:
    """Return the place that a URL is asked at, and the name of its file there."""
    if url.startswith(("http://", "https://")):
        return WebFile(url, client), name
    directory, _, last = url.rpartition("/")
    try:
        return place_at(Address.parse(directory), client), last
    except InvalidId:
        return WebFile(url, client), name  # which refuses it


class _Arriving(Sink):
    """A file of an archive, from its beginning on."""

    def __init__(
        self,
        client: Client,
        url: str,
        file: RemoteFile,
        part: PartFile,
        others: SideBySide,
        told: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._client, self._shown, self._file, self._part = client, visible.shown(url), file, part
        self._others, self._told, self._say = others, told, say
        self.size = file.size
        self.seen = part.origin.tag if part.origin is not None and part.origin.url == self._shown else None
        self._answered: Tag | None = None  # by this source before
        self._watched: int | None = None  # bytes at the last look at the free space
        self._ended = False

    @property
    def taken(self) -> int:
        """Bytes on the disk."""
        return self._part.there

    def missing(self) -> Span | None:
        """Return the span up to the next piece of another connection; all of the file if resuming is not safe."""
        self._others.join()
        if self._ended or self._is_complete():
            return None
        return (self._part.front, self._part.next_piece) if self._can_resume() else (0, None)

    def _is_complete(self) -> bool:
        """Return whether all bytes have arrived, if that is known without a request."""
        known = self._part.origin
        if self._file.placed and not self._file.hashed and known and known.url != self._shown:
            return False  # these bytes came from another URL, and no hash says that they are the same file
        size = known.tag.size if known and known.tag.size is not None else self._file.size
        return self._part.front > 0 and self._part.front == size

    def _can_resume(self) -> bool:
        """Return whether bytes of this source can be added to the part."""
        part, known, size = self._part, self._part.origin, self._file.size
        if not part.front or known is None or (size is not None and part.front > size):
            return False
        if self._file.sha256:
            return True
        # Only a hash can tell whether the bytes of two mirrors are of the same file.
        return known.url == self._shown and bool(known.tag.validator or known.tag.etag)

    def wants(self, at: int) -> bool:
        """Return whether no other connection has the bytes from ``at`` on."""
        stop = self._part.next_piece
        return stop is None or at < stop

    def begin(self, reply: Reply) -> Iterator[Chunk]:
        """Compare an answer with what is known of the file; a whole file replaces the part."""
        if disagree(self._file.size, reply.tag.size):
            raise Permanent(f"offers {reply.tag.size:,} B; {self._file.size:,} B expected")
        tag = self._check_range(reply.tag) if reply.start else self._check_whole(reply.tag)
        self.size = self._file.size if tag.size is None else tag.size
        self._check_room(reply.stop if self.size is None else self.size)
        blocks = reply.blocks
        if not reply.start:
            blocks = _checked(blocks, reply, self._file)  # before the part is dropped
            if self._part.there:
                self._restart()
        self._answered = self.seen = tag
        self.most = min((disk.free(self._part.path.parent) + self._part.front) // 2, self._client.policy.unsized)
        self._warn_of_unchecked_bytes(reply)
        self._part.begin(PartOrigin(self._shown, tag))
        self._watched = None
        safe = bool(tag.validator or self._file.sha256) and not self.whole
        self._others.began(tag, self.size if reply.has_ranges and safe else None)
        return blocks

    def _check_range(self, tag: Tag) -> Tag:
        """Return the tag of a range that continues the part; raises NoRange if it is of another content."""
        known, part = self._part.origin, self._part
        assert known is not None
        if known.url == self._shown and known.tag.differs(tag):
            self._answered = None
            raise NoRange("the file changed during the download")
        if disagree(known.tag.size, tag.size, self._file.size):
            raise NoRange("the sizes of the two parts disagree")
        part.resumed = part.resumed or part.front
        return replace(tag, size=known.tag.size) if tag.size is None else tag

    def _check_whole(self, tag: Tag) -> Tag:
        """Return the tag of the whole file, with the size that earlier answers gave for the same content."""
        seen = self._answered
        if seen is None:
            return tag
        if seen.differs(tag):  # one change is allowed: the file was replaced
            if self.whole:
                raise Permanent("the file keeps changing during the download")
            self.whole = True
            return tag
        if disagree(seen.size, tag.size):
            raise Permanent(f"now says {tag.size:,} B, and said {seen.size:,} B before")
        return replace(tag, size=seen.size) if tag.size is None else tag

    def _check_room(self, total: int | None) -> None:
        """Refuse a source that announces more bytes than are free; another may announce fewer."""
        if total is not None and self._file.size is None:
            try:
                disk.check_space(total - self._part.there, self._part.path.parent, kept=self._kept())
            except NoSpace as exc:
                raise Permanent(f"announces {total:,} B, more than are free", error=exc) from exc

    def _warn_of_unchecked_bytes(self, reply: Reply) -> None:
        if not self._file.hashed and reply.url.startswith("http://"):
            self._say_once(PLAIN)
        if reply.url.startswith("https://") and (bundle := authorities()):
            self._say_once(f"{AUTHORITIES} of {bundle} (REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE)")

    def _say_once(self, note: str) -> None:
        """Give a note for the first file of a client that it is about."""
        if self._client.is_new(note):
            self._say(note)

    def put(self, at: int, data: memoryview) -> None:
        """Add a block to the part, up to the next piece of another connection."""
        part, stop = self._part, self._part.next_piece
        self._watch(len(data))
        part.append(data if stop is None else data[: max(0, stop - at)])
        self._told()
        self._others.consider()

    def _watch(self, size: int) -> None:
        """Check the free space now and then."""
        part, total = self._part, self.size
        if self._watched is not None and part.front - self._watched < _WATCH:
            return
        if total is None and self._watched is not None:
            self._say(f"{UNSIZED}: at most {text.size_of(int(self.most))} are downloaded")
        self._watched = part.front
        needed = total - part.there if total is not None else size + _WATCH
        disk.check_space(needed, part.path.parent, kept=self._kept())

    def finish(self, reply: Reply) -> None:
        """Note the end of the file, where the answer tells it."""
        if self.size is not None or reply.stop is not None:
            self._ended = self._part.front == self.size  # else the next answer tells whether it was the last range
            return
        if not reply.is_framed:
            if not self._part.front:
                raise Retryable("the connection closed before the first byte")
            if not self._file.hashed:
                self._say_once(UNFRAMED)
        self._ended = True

    def has_ended(self, size: int | None) -> bool:
        """Return whether the part is the file, which ends where a range was asked for."""
        size = self._file.size if size is None else size
        known = self._part.origin.tag.size if self._part.origin else None
        told = self._answered.size if self._answered else None
        self._ended = self._part.front == size and not disagree(size, self._file.size, known, told)
        return self._ended

    def exceed(self, reason: str) -> None:
        """Drop the bytes of a source that sends more than the file has; another may send it as it is."""
        self._restart()
        raise Permanent(reason)

    def _restart(self) -> None:
        self._others.close()
        self._part.restart()
        self.seen = None

    def _kept(self) -> str:
        if not self._part.there:
            return "Nothing was written."
        return f"{text.size_of(self._part.there)} of {self._part.target.name} are kept; the next run resumes there."


def _checked(blocks: Iterator[Chunk], reply: Reply, file: RemoteFile) -> Iterator[Chunk]:
    """Return the blocks of a file; raises Permanent if they are a web page."""
    if file.path.lower().endswith((".html", ".htm")):
        return blocks
    head = b""
    while len(head) < _HEAD and (block := next(blocks, b"")):
        head += block
    typed = reply.content_type.startswith(("text/html", "application/xhtml"))
    begins = head[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if begins.startswith((b"<!doctype html", b"<html")) or (typed and b"\0" not in head[:_HEAD]):
        title = re.search(rb"<title[^>]*>([^<]{1,80})", head, re.IGNORECASE)
        words = f': "{quoted(title[1].decode(errors="replace"))}"' if title else ""
        raise Permanent(f"answered a web page instead of the file{words}")
    return chain([head] if head else [], blocks)


def disagree(*sizes: int | None) -> bool:
    """Return whether sizes stated for one file contradict each other."""
    return len({size for size in sizes if size is not None}) > 1


class SideBySide:
    """The further connections of one file from one URL; used and closed by the thread of the first one."""

    def __init__(self, source: Place, name: str, part: PartFile, budget: Budget, told: Callable[[], None]) -> None:
        self._source, self._client, self._name, self._part = source, source.client, name, part
        self._budget, self._told = budget, told
        self._width = source.client.width
        self._condition = Condition()
        self._threads: list[Thread] = []
        self._open: set[Exchange] = set()
        self._working: set[int] = set()  # first bytes of the pieces in progress
        self._next = 0
        self._size = 0
        self._piece = 0
        self._tag = Tag()
        self._stop = Event()
        self._after = self._width.after
        self._refused = False
        self._began, self._front = 0.0, 0

    # -- for the thread of the first connection

    def began(self, tag: Tag, size: int | None) -> None:
        """Start to measure the speed of the first connection. ``size`` of the file if ranges of it are safe."""
        self._began, self._front = time.monotonic(), self._part.front
        self._size, self._tag = size or 0, tag

    def consider(self) -> None:
        """Start further connections if the rest would take long and connections are free."""
        if not self._size or self._refused or self._width.of_a_file < 2 or any(t.is_alive() for t in self._threads):
            return
        seconds = time.monotonic() - self._began
        if seconds < self._after:
            return
        rate = (self._part.front - self._front) / seconds
        rest = self._size - self._part.there
        least = max(rate * self._width.worth, 2 * self._width.piece(self._size))
        if rest < least or rate > self._width.fast:
            return
        self._start()

    def join(self) -> None:
        """Take the pieces that the beginning has reached into it, once no thread works on them."""
        while (start := self._reached()) is not None:
            with self._condition:
                while start in self._working:
                    self._client.check()
                    self._condition.wait(_ROUND)
                    self._told()
            if start in self._part.ahead:
                self._part.join(start)
            self._told()
            with self._condition:
                self._condition.notify_all()

    def _reached(self) -> int | None:
        """Return a piece that the beginning has reached, complete or in progress."""
        with self._condition:
            starts = [*self._part.ahead, *self._working]
        return min((s for s in starts if s <= self._part.front), default=None)

    def close(self) -> None:
        """End the further connections; their bytes stay."""
        with self._condition:
            self._stop.set()  # from here on a thread that is left writes nothing
            self._condition.notify_all()
        for exchange in list(self._open):
            exchange.cut()
        end = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._threads, self._stop = [], Event()
        self._working.clear()

    def _start(self) -> None:
        self._piece = self._part.divide(self._width.piece(self._size), self._size)
        self._after *= 2  # after all of them gave up, the first works alone for longer
        self._next = (self._part.front // self._piece + 1) * self._piece
        for number in range(self._width.of_a_file):  # the first connection ends where the first of these began
            if not self._client.spare.acquire(blocking=False):
                break
            thread = Thread(target=self._work, args=(self._stop,), name=f"rlds-range-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    # -- for the threads of the further ones

    def _work(self, stop: Event) -> None:
        try:
            while (start := self._take(stop)) is not None:
                try:
                    self._fetch(_Piece(self._part, start, self._end(start), self._tag, self._condition, stop))
                finally:
                    with self._condition:
                        if not stop.is_set():  # else another thread may have it by now
                            self._working.discard(start)
                        self._condition.notify_all()
        except (Permanent, NoRange):
            self._refused = True
        except Exception:
            return  # the first connection will fetch the range, and report the error
        finally:
            self._client.spare.release()

    def _take(self, stop: Event) -> int | None:
        """Return the next piece to fetch once the beginning is near enough; None if none is left."""
        with self._condition:
            while not stop.is_set() and self._next < self._size:
                start = self._next
                if start - self._part.front > 2 * self._width.of_a_file * self._piece:
                    self._client.check()
                    self._condition.wait(_ROUND)
                    continue
                self._next += self._piece
                if start > self._part.front and self._part.ahead.get(start, 0) < self._end(start) - start:
                    self._working.add(start)
                    return start
        return None

    def _end(self, start: int) -> int:
        return min(self._size, start + self._piece)

    def _fetch(self, piece: _Piece) -> None:
        """Fetch a piece, by several requests as long as each of them brings something; the first connection retries."""
        while (span := piece.missing()) is not None:
            before = piece.taken
            disk.check_space(span[1] - span[0], self._part.path.parent)
            request = RangeRequest(start=span[0], stop=span[1], seen=self._tag, budget=self._budget, among=self._open)
            try:
                ask(self._source, self._name, piece, request)
            except _Overtaken:
                return
            except Retryable as exc:
                if exc.wait or piece.taken - before < self._client.policy.least:
                    raise


class _Overtaken(Exception):
    """The first connection has fetched a piece."""


class _Piece(Sink):
    """A piece of a file ahead of its beginning; ``lock`` is held while it is written, and ``stop`` ends that."""

    def __init__(self, part: PartFile, start: int, end: int, tag: Tag, lock: Condition, stop: Event) -> None:
        self.size = tag.size
        self._part, self._start, self._end, self._tag = part, start, end, tag
        self._lock, self._stop = lock, stop

    @property
    def taken(self) -> int:
        """Bytes of it that have arrived."""
        return self._part.ahead.get(self._start, 0)

    def missing(self) -> tuple[int, int] | None:
        """Return its rest."""
        first = self._start + self.taken
        return (first, self._end) if first < self._end else None

    def wants(self, at: int) -> bool:
        """Return whether the bytes are its own."""
        return at < self._end

    def begin(self, reply: Reply) -> Iterator[Chunk]:
        """Refuse another range and another content, also where they are those of the whole file."""
        if reply.start != self._start + self.taken:
            raise Permanent("not the range that was requested")
        if self._tag.differs(reply.tag) or disagree(self._tag.size, reply.tag.size):
            raise Permanent("the file changed during the download")
        with self._lock:
            self._check()
            if self._start not in self._part.ahead:
                if self._start < self._part.front:
                    raise _Overtaken
                self._part.ahead[self._start] = 0
        return reply.blocks

    def put(self, at: int, data: memoryview) -> None:
        """Write bytes at their place."""
        with self._lock:
            self._check()
            self._part.add(self._start, data[: self._end - at])

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped
