"""Download one file from one URL: ranges, validators, short bodies, web pages in place of the file.

The first connection fetches a file from the beginning. Further connections fetch ranges ahead of it. They only save
time: if one fails, the first connection fetches that range itself, and decides about errors.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain
from threading import Condition, Event, Thread
from typing import NoReturn

import requests

from rlds_cli.base import text
from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import NoSpace
from rlds_cli.make.downloads.fetch.parts import PartFile, PartOrigin
from rlds_cli.make.downloads.remote_file import RemoteFile
from rlds_cli.places.http.client import Client, authorities
from rlds_cli.places.http.connections import Budget, Exchange, Permanent, Retryable, Stopped, quoted
from rlds_cli.places.http.ranges import check_plain, is_chunked, range_of, size_of, tag_of
from rlds_cli.places.sources import names

PLAIN = "comes over plain HTTP, and no hash of it is published: an alteration on the way would not be noticed"
UNFRAMED = "comes without a length, a size or a hash: a missing end would not be noticed"
UNSIZED = "its size is not known"
AUTHORITIES = "the server's certificate was verified with the authorities"
ONCE = (PLAIN, UNFRAMED, AUTHORITIES)  # notes that are given for the first file only
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
    with closing(RangeConnections(client, url, part, budget, told)) as ranges:
        pulling = _Download(client, url, file, part, ranges, budget, told, say)
        client.persist(pulling.pull, lambda: part.there, say)


class _Download:
    """The first connection, which fetches a file from the beginning."""

    def __init__(
        self,
        client: Client,
        url: str,
        file: RemoteFile,
        part: PartFile,
        ranges: RangeConnections,
        budget: Budget,
        told: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._client, self._url, self._file, self._part = client, url, file, part
        self._ranges, self._budget, self._told, self._say = ranges, budget, told, say
        self._seen: PartOrigin | None = None  # from earlier answers of this source
        self._whole = False  # True after a range that did not fit: then only the whole file is requested

    def pull(self, left: float) -> None:
        """Download until the file is complete; raises Retryable if another request may complete it.

        ``left`` is the time in seconds for the first answer to begin.
        """
        seconds: float | None = left
        while True:
            self._ranges.join()
            if self._complete():
                return None
            headers = self._headers()
            with self._client.open(self._url, headers, budget=self._budget, seconds=seconds) as response:
                seconds = None
                if response.status_code == 416:
                    return self._nothing_left(response, asked="Range" in headers)
                if not self._stream(response, headers):
                    return None

    def _complete(self) -> bool:
        """Return whether all bytes are downloaded, if that is known without a request."""
        known = self._part.origin
        if self._file.placed and not self._file.hashed and known and known.url != names.shown(self._url):
            return False  # these bytes came from another URL, and no hash says that they are the same file
        size = known.size if known and known.size is not None else self._file.size
        return self._part.offset > 0 and self._part.offset == size

    def _headers(self) -> dict[str, str]:
        """Return headers for the missing range, up to the next downloaded piece; none if resuming is not safe."""
        part, known, size = self._part, self._part.origin, self._file.size
        if self._whole or not part.offset or known is None or (size is not None and part.offset > size):
            return {}
        stop = self._ranges.stop_at()
        headers = {"Range": f"bytes={part.offset}-{'' if stop is None else stop - 1}"}
        if known.url != names.shown(
            self._url
        ):  # another mirror: only a hash can tell whether both parts are of the same file
            return headers if self._file.sha256 else {}
        if known.validator:
            return headers | {"If-Range": known.validator}
        return headers if known.etag or self._file.sha256 else {}

    def _nothing_left(self, response: requests.Response, *, asked: bool) -> None:
        """Handle status 416: the file is complete, or it has changed."""
        part, said = self._part, size_of(response)
        size = self._file.size if said is None else said
        known = part.origin.size if part.origin else None
        told = self._seen.size if self._seen else None
        if asked and part.offset == size and not disagree(size, self._file.size, known, told):
            return
        self._start_over("HTTP 416: the part on disk does not belong to it")

    def _start_over(self, why: str) -> NoReturn:
        """Drop the part and request the whole file; the second time, the source is given up."""
        self._ranges.restart()
        if self._whole:
            raise Permanent(why)
        self._whole = True
        raise Retryable(why)

    def _stream(self, response: requests.Response, headers: Mapping[str, str]) -> bool:
        """Append the body; returns True if it ended before the end of the file and more must be requested."""
        file, part = self._file, self._part
        check_plain(response, file.path)
        origin = self._origin(response)
        total = file.size if origin.size is None else origin.size
        if response.status_code == 206:
            claimed = self._check_range(response, origin, headers)
            limit: int | None = claimed if total is None else min(claimed, total)
            self._check_room(claimed if total is None else total)
            blocks = self._client.blocks(response)
        else:
            limit = total
            self._check_room(total)
            blocks = _checked(self._client.blocks(response), response, file)  # checked before the part is dropped
            if part.there:
                self._ranges.restart()
        self._seen = origin
        self._warn_of_unchecked_bytes(response)
        part.begin(origin)
        safe = bool(origin.validator or file.sha256) and not self._whole
        self._ranges.began(response, total, safe=safe)
        if self._write(blocks, total, limit):
            return True
        if total is not None and part.offset != total:
            raise Retryable(f"the connection closed after {part.offset:,} of {total:,} B")
        if total is None and limit is not None:
            return True  # a range of a file of unknown size: the next answer tells whether it was the last
        if total is None and not is_chunked(response):
            self._check_unframed()
        return False

    def _origin(self, response: requests.Response) -> PartOrigin:
        """Parse an answer, with the size that earlier answers gave for the same content."""
        file, seen, now = self._file, self._seen, origin_of(response, self._url)
        if disagree(file.size, now.size):
            raise Permanent(f"offers {now.size:,} B; {file.size:,} B expected")
        if response.status_code == 206:
            known = self._part.origin
            return replace(now, size=known.size) if known and now.size is None else now
        if seen is None:
            return now
        if changed(seen, now):  # one change is allowed: the file was replaced
            if self._whole:
                raise Permanent("the file keeps changing during the download")
            self._whole = True
            return now
        if disagree(seen.size, now.size):
            raise Permanent(f"now says {now.size:,} B, and said {seen.size:,} B before")
        return replace(now, size=seen.size)

    def _check_range(self, response: requests.Response, origin: PartOrigin, headers: Mapping[str, str]) -> int:
        """Return the end of a 206 that continues the part; drops the part if the range does not fit."""
        answered, known, part = range_of(response), self._part.origin, self._part
        if answered is None or known is None or not _is_asked(answered, headers.get("Range", ""), part.offset):
            said = quoted(response.headers.get("Content-Range", "none"))
            self._start_over(f"the answer is a range that was not requested ({said})")
        if known.url == origin.url and changed(known, origin):
            self._seen = None
            self._start_over("the file changed during the download")
        if disagree(known.size, origin.size, self._file.size):
            self._start_over("the sizes of the two parts disagree")
        part.resumed = part.resumed or part.offset
        return answered[1] + 1

    def _check_room(self, total: int | None) -> None:
        """Refuse a source that announces more bytes than are free; another may announce fewer."""
        if total is not None and self._file.size is None:
            try:
                disk.check_space(total - self._part.there, self._part.path.parent, kept=self._kept())
            except NoSpace as exc:
                raise Permanent(f"announces {total:,} B, more than are free", error=exc) from exc

    def _check_unframed(self) -> None:
        """Warn that a body without a length may have been cut short."""
        if not self._part.offset:
            raise Retryable("the connection closed before the first byte")
        if not self._file.hashed:
            self._say(UNFRAMED)

    def _warn_of_unchecked_bytes(self, response: requests.Response) -> None:
        if not self._file.hashed and response.url.startswith("http://"):
            self._say(PLAIN)
        if response.url.startswith("https://") and (bundle := authorities()):
            self._say(f"{AUTHORITIES} of {bundle} (REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE)")

    def _write(self, blocks: Iterator[bytes | memoryview], total: int | None, limit: int | None) -> bool:
        """Append blocks up to ``limit``; returns True if they ended at a piece of another connection."""
        part, watched = self._part, None
        most = limit if total is not None and limit is not None else self._most(limit)
        for block in blocks:
            if watched is None or part.offset - watched >= _WATCH:
                if total is None and watched is not None:
                    self._say(f"{UNSIZED}: at most {text.size_of(most)} are downloaded")
                watched = part.offset
                needed = total - part.there if total is not None else len(block) + _WATCH
                disk.check_space(needed, part.path.parent, kept=self._kept())
            if len(block) > most - part.offset:
                self._ranges.restart()
                raise Permanent(
                    f"sends more than the expected {most:,} B"
                    if most == limit
                    else f"announces no size, and sends more than {text.size_of(most)}"
                )
            part.append(block)
            self._told()
            self._ranges.consider()
            stop = self._ranges.stop_at()
            if stop is not None and stop <= part.offset:
                return True
        return self._ranges.stop_at() == part.offset

    def _kept(self) -> str:
        if not self._part.there:
            return "Nothing was written."
        return f"{text.size_of(self._part.there)} of {self._part.target.name} are kept; the next run resumes there."

    def _most(self, limit: int | None) -> int:
        """Return the limit for a file of unknown size: half of the free space, and at most ``policy.unsized``."""
        free = disk.free(self._part.path.parent) + self._part.offset
        most = min(free // 2, self._client.policy.unsized)
        return most if limit is None else min(most, limit)


def _is_asked(answered: tuple[int, int, int | None], asked: str, offset: int) -> bool:
    """Return whether a range starts at the requested byte and does not end behind the requested range."""
    end = asked.rpartition("-")[2]
    return asked != "" and answered[0] == offset and (not end or answered[1] <= int(end))


def _checked(
    blocks: Iterator[bytes | memoryview], response: requests.Response, file: RemoteFile
) -> Iterator[bytes | memoryview]:
    """Return the blocks of a file; raises Permanent if they are a web page."""
    if file.path.lower().endswith((".html", ".htm")):
        return blocks
    head = b""
    while len(head) < _HEAD and (block := next(blocks, b"")):
        head += block
    typed = response.headers.get("Content-Type", "").lower().startswith(("text/html", "application/xhtml"))
    begins = head[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if begins.startswith((b"<!doctype html", b"<html")) or (typed and b"\0" not in head[:_HEAD]):
        title = re.search(rb"<title[^>]*>([^<]{1,80})", head, re.IGNORECASE)
        words = f': "{quoted(title[1].decode(errors="replace"))}"' if title else ""
        raise Permanent(f"answered a web page instead of the file{words}")
    return chain([head] if head else [], blocks)


class RangeConnections:
    """The further connections of one file from one URL; used and closed by the thread of the first one."""

    def __init__(self, client: Client, url: str, part: PartFile, budget: Budget, told: Callable[[], None]) -> None:
        self._client, self._url, self._part, self._budget, self._told = client, url, part, budget, told
        self._width = client.width
        self._condition = Condition()
        self._threads: list[Thread] = []
        self._open: set[Exchange] = set()
        self._working: set[int] = set()  # first bytes of the pieces in progress
        self._next = 0
        self._size = 0
        self._piece = 0
        self._origin: PartOrigin | None = None
        self._stop = Event()
        self._after = client.width.after
        self._refused = False
        self._began, self._offset = 0.0, 0

    # -- for the thread of the first connection

    def began(self, response: requests.Response, size: int | None, *, safe: bool) -> None:
        """Start to measure the speed of the first connection."""
        self._began, self._offset = time.monotonic(), self._part.offset
        able = response.status_code == 206 or "bytes" in response.headers.get("Accept-Ranges", "").lower()
        self._size = size if size is not None and able and safe else 0
        self._origin = self._part.origin

    def consider(self) -> None:
        """Start further connections if the rest would take long and connections are free."""
        if not self._size or self._refused or self._width.of_a_file < 2 or any(t.is_alive() for t in self._threads):
            return
        seconds = time.monotonic() - self._began
        if seconds < self._after:
            return
        rate = (self._part.offset - self._offset) / seconds
        rest = self._size - self._part.there
        least = max(rate * self._width.worth, 2 * self._width.piece(self._size))
        if rest < least or rate > self._width.fast:
            return
        self._start()

    def stop_at(self) -> int | None:
        """Return where the first connection ends: at the next piece that is downloaded or in progress."""
        return self._part.ahead.first()

    def join(self) -> None:
        """Append the pieces that the beginning has reached, once no thread works on them."""
        while (start := self._reached()) is not None:
            with self._condition:
                while start in self._working:
                    self._client.check()
                    self._condition.wait(_ROUND)
                    self._told()
            self._part.join(start)
            self._told()
            with self._condition:
                self._condition.notify_all()

    def _reached(self) -> int | None:
        """Return a piece that the beginning has reached, there or in progress."""
        with self._condition:
            starts = [*self._part.ahead.sizes, *self._working]
        return min((s for s in starts if s <= self._part.offset), default=None)

    def restart(self) -> None:
        """Drop the bytes of all connections."""
        self.close()
        self._part.restart()

    def close(self) -> None:
        """End the further connections; their bytes stay."""
        with self._condition:
            self._stop.set()
            self._condition.notify_all()
        for exchange in list(self._open):
            exchange.cut()
        end = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))  # a thread that is left writes nothing
        self._threads, self._stop = [], Event()
        self._working.clear()

    def _start(self) -> None:
        self._piece = self._width.piece(self._size)
        self._after *= 2  # after all of them gave up, the first works alone for longer
        self._next = (self._part.offset // self._piece + 1) * self._piece
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
                    self._fetch(start, stop)
                finally:
                    with self._condition:
                        if not stop.is_set():  # else another thread may have it by now
                            self._working.discard(start)
                        self._condition.notify_all()
        except Permanent:
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
                if start - self._part.offset > 2 * self._width.of_a_file * self._piece:
                    self._client.check()
                    self._condition.wait(_ROUND)
                    continue
                self._next += self._piece
                if start > self._part.offset and self._part.ahead.sizes.get(start, 0) < self._end(start) - start:
                    self._working.add(start)
                    return start
        return None

    def _end(self, start: int) -> int:
        return min(self._size, start + self._piece)

    def _fetch(self, start: int, stop: Event) -> None:
        """Fetch a piece, by several requests as long as each of them brings something; the first connection retries."""
        while True:
            before = self._part.ahead.sizes.get(start, 0)
            try:
                return self._request(start, stop)
            except Retryable as exc:
                if exc.wait or self._part.ahead.sizes.get(start, 0) - before < self._client.policy.least:
                    raise

    def _request(self, start: int, stop: Event) -> None:
        """Fetch the rest of one piece."""
        sizes, end = self._part.ahead.sizes, self._end(start)
        first = start + sizes.get(start, 0)
        if first >= end:
            return
        disk.check_space(end - first, self._part.path.parent)
        assert self._origin is not None
        headers = {"Range": f"bytes={first}-{end - 1}"}
        if self._origin.validator:
            headers["If-Range"] = self._origin.validator
        with self._client.open(self._url, headers, budget=self._budget, among=self._open) as response:
            self._check(response, first, end)
            if stop.is_set():
                raise Stopped
            if start not in sizes and start < self._part.offset:
                return  # the first connection has fetched it
            self._part.ahead.add(start)
            self._write(response, start, end, stop)
        if start + sizes[start] < end:
            raise Retryable("the connection closed early")

    def _check(self, response: requests.Response, first: int, end: int) -> None:
        assert self._origin is not None
        check_plain(response, self._part.target.name)
        answered, now = range_of(response), origin_of(response, self._url)
        if response.status_code != 206 or answered is None or answered[0] != first or answered[1] >= end:
            raise Permanent("not the range that was requested", response.status_code)
        if changed(self._origin, now) or disagree(self._origin.size, now.size):
            raise Permanent("the file changed during the download")

    def _write(self, response: requests.Response, start: int, end: int, stop: Event) -> None:
        sizes = self._part.ahead.sizes
        descriptor = safe_files.open_own(self._part.ahead.path(start), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab", buffering=0) as piece:
            for block in self._client.blocks(response):
                rest = memoryview(block)[: end - start - sizes[start]]
                while rest and not stop.is_set():
                    written = piece.write(rest)
                    sizes[start] += written
                    rest = rest[written:]
                if stop.is_set():
                    raise Stopped
                if start + sizes[start] >= end:
                    return


# -- headers of an answer


def origin_of(response: requests.Response, url: str) -> PartOrigin:
    """Parse the headers of an answer; raises Permanent if its lengths are not valid."""
    tag = tag_of(response)
    return PartOrigin(names.shown(url), tag.etag, tag.modified, tag.size)


def changed(known: PartOrigin, now: PartOrigin) -> bool:
    """Return whether the ETags or dates of two answers from one URL differ."""
    if known.etag and now.etag:
        return known.etag.removeprefix("W/") != now.etag.removeprefix("W/")
    return bool(known.last_modified and now.last_modified and known.last_modified != now.last_modified)


def disagree(*sizes: int | None) -> bool:
    """Return whether sizes stated for one file contradict each other."""
    return len({size for size in sizes if size is not None}) > 1
