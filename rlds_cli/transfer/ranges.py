"""Ranges of a large file over further connections, while the first one goes on from the beginning.

They only hasten: whatever goes wrong with one of them, the first connection comes to its range itself, and has the say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Condition, Event, Thread

import requests

from rlds_cli import safe_files, space
from rlds_cli.transfer.client import Client
from rlds_cli.transfer.connections import Exchange
from rlds_cli.transfer.failures import Again, Refused, Stopped
from rlds_cli.transfer.origin import Origin, changed, check_plain, disagree, range_of
from rlds_cli.transfer.pace import Budget
from rlds_cli.transfer.part import Part

_ROUND = 0.1  # seconds between two looks at what the others do
_PATIENCE = 1.0  # seconds until a connection that is to end is left to itself


class Ranges:
    """The further connections of one file from one URL; used by the thread of the first one, and closed by it."""

    def __init__(self, client: Client, url: str, part: Part, budget: Budget, told: Callable[[], None]) -> None:
        self._client, self._url, self._part, self._budget, self._told = client, url, part, budget, told
        self._width = client.width
        self._condition = Condition()
        self._threads: list[Thread] = []
        self._open: set[Exchange] = set()
        self._working: set[int] = set()  # first bytes of the pieces that somebody is at
        self._next = 0
        self._size = 0
        self._piece = 0
        self._origin: Origin | None = None
        self._stop = Event()
        self._after = client.width.after
        self._refused = False
        self._began, self._offset = 0.0, 0

    # -- for the thread of the first connection

    def began(self, response: requests.Response, size: int | None, *, safe: bool) -> None:
        """Say what the first connection gets: from now on its speed counts."""
        self._began, self._offset = time.monotonic(), self._part.offset
        able = response.status_code == 206 or "bytes" in response.headers.get("Accept-Ranges", "").lower()
        self._size = size if size is not None and able and safe else 0
        self._origin = self._part.origin

    def consider(self) -> None:
        """Take further connections where the rest would take long and there are some to spare."""
        if not self._size or self._refused or self._width.of_a_file < 2 or any(t.is_alive() for t in self._threads):
            return
        seconds = time.monotonic() - self._began
        if seconds < self._after:
            return
        rate = (self._part.offset - self._offset) / seconds
        rest = self._size - self._part.there
        limit = self._client.limit.rate
        least = max(rate * self._width.worth, 2 * self._width.piece(self._size))
        if rest < least or rate > self._width.fast or (limit and rate > limit / 2):
            return
        self._start()

    def stop_at(self) -> int | None:
        """Where the first connection ends: at the first piece that is there, or that somebody is at."""
        return self._part.ahead.first()

    def join(self) -> None:
        """Append the pieces that the beginning has reached, when they are finished or nobody is at them any more."""
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
        """A piece that is there, or that somebody is at, and that the beginning has reached."""
        with self._condition:
            starts = [*self._part.ahead.sizes, *self._working]
        return min((s for s in starts if s <= self._part.offset), default=None)

    def restart(self) -> None:
        """Forget everything that came, of all connections."""
        self.close()
        self._part.restart()

    def close(self) -> None:
        """End the further connections; what they brought stays."""
        with self._condition:
            self._stop.set()
            self._condition.notify_all()
        for exchange in list(self._open):
            exchange.cut()
        end = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))  # who is left writes nothing when an answer comes
        self._threads, self._stop = [], Event()
        self._working.clear()

    def _start(self) -> None:
        self._piece = self._width.piece(self._size)
        self._after *= 2  # where all of them gave up, the first goes on alone for longer
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
                    self._bring(start, stop)
                finally:
                    with self._condition:
                        if not stop.is_set():  # else it may be somebody else's by now
                            self._working.discard(start)
                        self._condition.notify_all()
        except Refused:
            self._refused = True
        except Exception:
            return  # the first connection comes to it, and finds out what is wrong
        finally:
            self._client.spare.release()

    def _take(self, stop: Event) -> int | None:
        """The next piece to bring, when the beginning is near enough; None when there is nothing left to do."""
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

    def _bring(self, start: int, stop: Event) -> None:
        """Bring a piece, patiently, but not where the server wants to be left alone."""
        patience, failures = self._client.patience, 0
        while True:
            before = self._part.ahead.sizes.get(start, 0)
            try:
                return self._request(start, stop)
            except Again as exc:
                failures = 0 if self._part.ahead.sizes.get(start, 0) - before >= patience.least else failures + 1
                if exc.late and failures:
                    raise Refused(exc.reason) from exc  # the first connection may be waiting for this piece
                if exc.wait or failures >= patience.attempts or stop.wait(patience.delay(failures)):
                    raise

    def _request(self, start: int, stop: Event) -> None:
        """Bring the rest of one piece."""
        sizes, end = self._part.ahead.sizes, self._end(start)
        first = start + sizes.get(start, 0)
        if first >= end:
            return
        space.check_space(end - first, self._part.path.parent)
        assert self._origin is not None
        headers = {"Range": f"bytes={first}-{end - 1}"}
        if self._origin.validator:
            headers["If-Range"] = self._origin.validator
        with self._client.open(self._url, headers, budget=self._budget, among=self._open) as response:
            self._check(response, first, end)
            if stop.is_set():
                raise Stopped
            if start not in sizes and start < self._part.offset:
                return  # the first connection was here before
            self._part.ahead.add(start)
            self._write(response, start, end, stop)
        if start + sizes[start] < end:
            raise Again("the connection closed early")

    def _check(self, response: requests.Response, first: int, end: int) -> None:
        assert self._origin is not None
        check_plain(response, self._part.target.name)
        answered, now = range_of(response), Origin.of(response, self._url)
        if response.status_code != 206 or answered is None or answered[0] != first or answered[1] >= end:
            raise Refused("not the range that was asked for", response.status_code)
        if changed(self._origin, now) or disagree(self._origin.size, now.size):
            raise Refused("the file changed meanwhile")

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
