"""HTTP client: requests with deadlines, retries, redirects and limits on size."""

from __future__ import annotations

import math
import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from http.cookiejar import DefaultCookiePolicy
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import requests
import urllib3

from rlds_cli import __version__
from rlds_cli.base import text
from rlds_cli.base.files import json as documents
from rlds_cli.base.http import connections
from rlds_cli.base.http.connections import (
    BLOCK,
    Adapter,
    Budget,
    DeadlineWatch,
    Exchange,
    Permanent,
    Retryable,
    StallDetector,
    Stopped,
    during,
    quoted,
    reason,
)
from rlds_cli.base.settings import Settings

S = TypeVar("S")
T = TypeVar("T")

LONGEST = 64 << 20  # bytes of an answer that is read into memory
_LONG = 2.0  # seconds
_LATE = 10.0  # seconds after which any failure counts as waiting
_WORD = 20.0  # seconds between two notes about a long wait
_PASSING = {408, 423, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529}
_FINAL = (
    requests.exceptions.SSLError,
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidProxyURL,
    urllib3.exceptions.HeaderParsingError,
)
_FAR = 1e9  # seconds: longer than anybody waits

_JITTER = random.Random()  # not the random numbers of the program that calls: a thread that waits would move them


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries: attempts and seconds without progress.

    Progress is ``least`` bytes. A connection that brings fewer in ``read`` seconds has stalled.
    """

    attempts: int = 5
    first: float = 0.5
    longest: float = 30.0
    asked: float = 120.0  # a server that asks for a longer wait is not retried
    connect: float = 10.0
    read: float = 30.0
    least: int = 64 << 10
    idle: float = 50.0  # seconds without progress, or for one document, besides waits that the server asked for
    requests: int = 40  # per file and source, with redirects; one more for each MiB that was kept
    documents: int = 20_000  # requests per listing
    sources: int = 16  # per file
    unsized: int = 32 << 30  # bytes of a file of unknown size
    told: Callable[[str], None] | None = None  # receives notes about waits

    @property
    def answer(self) -> float:
        """Seconds from the first attempt to connect to the end of the headers, over all redirects."""
        return self.connect + self.read

    def delay(self, failures: int) -> float:
        """Seconds before the next attempt: none after progress, then doubling, with jitter to spread many clients."""
        return failures and min(self.longest, self.first * 2.0 ** min(failures - 1, 64)) * _JITTER.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Number of connections, in total and per file.

    A file is split over several after one has fetched it for ``after`` seconds and would need ``worth`` more.
    """

    connections: int = 8
    of_a_file: int = 4
    after: float = 1.0
    worth: float = 4.0
    fast: int = 100 << 20  # bytes a second at which one connection is no bottleneck
    smallest: int = 16 << 20

    def piece(self, size: int) -> int:
        """Return the bytes of a range request for a file of ``size``: larger files are split into larger ranges."""
        return min(max(self.smallest, size // 128), 8 * self.smallest)


class _Session(requests.Session):
    """A session that follows no redirects: requests would read and decompress their bodies first."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: `Client` follows them itself."""
        return


class Client:
    """One session for all files of a download; shared by several threads."""

    def __init__(
        self, where: Settings, *, policy: RetryPolicy | None = None, width: Parallelism | None = None, jobs: int = 1
    ) -> None:
        self.where = where
        self.policy = policy or RetryPolicy()
        self.width = width or Parallelism()
        self.spare = threading.Semaphore(self.width.connections)  # connections that are free
        self._budget = Budget(self.policy.documents)
        self._read, self._said = 0, time.monotonic()  # documents, and the time of the last note about them
        self._notes: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._watch = DeadlineWatch()
        self._open: dict[requests.Response, Exchange] = {}
        self._session = _Session()
        self._session.headers.update({"Accept-Encoding": "identity", "User-Agent": f"rlds/{__version__}"})
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # no state shared by threads
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, Adapter(pool_maxsize=max(jobs, self.width.connections)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._watch.close()
        self._session.close()

    def stop(self) -> None:
        """Make all threads that use this client raise Stopped at once, even while they wait for a server."""
        self._stop.set()
        self._watch.cut()

    def is_new(self, note: str) -> bool:
        """Return whether nobody has asked for this note before: some are given for the first file only."""
        with self._lock:
            new = note not in self._notes
            self._notes.add(note)
            return new

    def each(self, act: Callable[[S], T], items: Sequence[S], jobs: int) -> tuple[T, ...]:
        """Call a function for items, several at a time; the first failure stops the others, and is raised."""
        if jobs == 1:
            return tuple(map(act, items))
        with ThreadPoolExecutor(jobs, thread_name_prefix="rlds-fetch") as pool:
            futures = [pool.submit(act, item) for item in items]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                unfinished = [f for f in futures if not f.cancel() and not f.done()]
                if unfinished:
                    self.stop()
        failed = [e for f in futures if not f.cancelled() and (e := f.exception()) and not isinstance(e, Stopped)]
        if failed:
            raise failed[0]
        return tuple(f.result() for f in futures)

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Count one connection as used, even if none is free."""
        spare = self.spare.acquire(blocking=False)
        try:
            yield
        finally:
            if spare:
                self.spare.release()

    def check(self) -> None:
        """Raise Stopped after ``stop``."""
        if self._stop.is_set():
            raise Stopped

    @contextmanager
    def open(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        budget: Budget | None = None,
        among: set[Exchange] | None = None,
        seconds: float | None = None,
    ) -> Iterator[requests.Response]:
        """Make a request; yields the response (200, 206 or 416) before its body is read.

        Parameters
        ----------
        budget : Budget, optional
            Counts the request and its redirects; by default that of the client.
        among : set of Exchange, optional
            Holds the exchange while it lasts, so that others can cut it.
        seconds : float, optional
            Time to the end of the headers; by default ``policy.answer``.

        Raises
        ------
        Retryable, Permanent
            For any other response or failure.
        """
        self.check()
        limit = self.policy.answer if seconds is None else min(seconds, self.policy.answer)
        group = set() if among is None else among
        with self._watch.exchange(limit) as exchange:
            group.add(exchange)
            try:
                self.check()
                with closing(self._follow(url, headers or {}, exchange, budget or self._budget)) as response:
                    exchange.rest()
                    if response.status_code not in (200, 206, 416):
                        raise self._failure(response)
                    self._open[response] = exchange
                    try:
                        yield response
                    finally:
                        del self._open[response]
            finally:
                group.discard(exchange)

    def _follow(self, url: str, headers: Mapping[str, str], exchange: Exchange, budget: Budget) -> requests.Response:
        """Return the response after all redirects."""
        here = url
        for _ in range(connections.MOST + 1):
            self.check()
            if not budget.spend():
                raise Permanent(f"given up after {budget.requests:,} requests")
            try:
                response = self._get(here, url, headers, exchange)
            except Retryable as exc:
                exc.silent = exc.late
                raise
            try:
                if not response.is_redirect:
                    return response
                here = connections.following(here, response.headers["Location"])
            except BaseException:
                response.close()
                raise
            with self._failing(exchange):
                connections.leave(response)
        raise Permanent("redirects without end")

    def _get(self, url: str, asked: str, headers: Mapping[str, str], exchange: Exchange) -> requests.Response:
        timeout = (self.policy.connect, self.policy.read)
        with self._failing(exchange), during(exchange):
            credentials = connections.ServerCredentials(asked, url, self.where)
            response = self._session.get(
                url, headers=dict(headers), stream=True, timeout=timeout, auth=credentials, allow_redirects=False
            )
        if exchange.ended:  # headers that were cut look like headers that ended
            response.close()
            self.check()
            raise self._late(exchange)
        return response

    @contextmanager
    def _failing(self, exchange: Exchange) -> Iterator[None]:
        """Turn any exception of the HTTP libraries into Retryable or Permanent."""
        try:
            yield
        except (Retryable, Permanent, Stopped):
            raise
        except Exception as exc:
            self.check()
            if exchange.ended:
                raise self._late(exchange) from exc
            if isinstance(exc, _FINAL):
                raise Permanent(reason(exc)) from exc
            if isinstance(exc, requests.RequestException | urllib3.exceptions.HTTPError | HTTPException):
                why = reason(exc)
                raise Retryable(why, late=why == "timed out") from exc
            if isinstance(exc, OSError):
                if exc.errno is None:  # a file of certificates that is not there
                    raise Permanent(quoted(str(exc))) from exc
                raise Retryable(reason(exc)) from exc
            raise Permanent(reason(exc)) from exc

    def send(
        self,
        method: str,
        url: str,
        body: bytes | BinaryIO = b"",
        headers: Mapping[str, str] | None = None,
        *,
        size: int | None = None,
        told: Callable[[int], None] = lambda sent: None,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Send a body, once, and return the body and the headers of the answer.

        The only credentials that are sent are the hub's token, to the hub. Redirects are not followed. While the server
        takes bytes, the request may last.

        Parameters
        ----------
        method : str
            ``POST`` or ``PUT``.
        body : bytes or binary stream
            A stream is read from its position on.
        size : int, optional
            Bytes of a stream.
        told : callable, optional
            Receives the number of bytes of a stream whenever some are sent.

        Raises
        ------
        Retryable, Permanent
            For any answer that is not a success, and any failure.
        """
        self.check()
        with self._watch.exchange(self.policy.answer) as exchange:
            self.check()
            seconds = self.policy.answer
            stream: Any = body if isinstance(body, bytes) else _Outgoing(body, size or 0, exchange, seconds, told)
            timeout = (self.policy.connect, self.policy.read)
            with self._failing(exchange), during(exchange):
                response = self._session.request(
                    method, url, data=stream if len(stream) else b"", headers=dict(headers or {}), stream=True,
                    timeout=timeout, auth=connections.HubToken(url, self.where), allow_redirects=False,
                )  # fmt: skip
            with closing(response):
                if exchange.ended:
                    self.check()
                    raise self._late(exchange)
                if response.status_code not in (200, 201, 202, 204):
                    raise self._failure(response)
                self._open[response] = exchange
                try:
                    return self.whole(response), response.headers
                finally:
                    del self._open[response]

    def _late(self, exchange: Exchange) -> Retryable:
        if exchange.late:
            return Retryable("timed out before the end of its headers", late=True)
        return Retryable("the connection was ended")

    def is_hub(self, url: str) -> bool:
        """Return whether a URL has the scheme, host and port of the hub."""
        return connections.origin(url) == connections.origin(self.where.hub)

    def _failure(self, response: requests.Response) -> Exception:
        status = response.status_code
        text = f"HTTP {status} {quoted(response.reason or '')}".rstrip()
        if status in (401, 403) and self.is_hub(response.url):
            sent = bool(self.where.hub_token) and connections.is_private(response.url)
            text += _refusal(response, bool(self.where.hub_token), sent)
        if status not in _PASSING:
            return Permanent(text, status, response.headers)
        wait = _retry_after(response.headers.get("Retry-After", ""))
        if wait > self.policy.asked:
            longer = f"{wait:.0f} s" if wait < _FAR else "ever"
            return Permanent(f"{text}, and asks to wait for {longer}", status)
        return Retryable(text, wait)

    def blocks(self, response: requests.Response) -> Iterator[bytes | memoryview]:
        """Yield the body as it arrives, not decoded; raises Retryable if the connection fails or stalls.

        A block stays as it is until `connections.AHEAD` further ones were taken.
        """
        detector, exchange = StallDetector(self.policy.least, self.policy.read), self._open[response]
        while True:
            self.check()
            exchange.allow(detector.left)
            begun = time.monotonic()
            try:
                with self._failing(exchange):
                    block = response.raw.read1(BLOCK, decode_content=False)
            except Retryable as exc:
                raise (Retryable(detector.over(), late=True) if exchange.late else exc) from exc.__cause__
            exchange.rest()
            if not block:
                self.check()
                if exchange.ended:  # a body without a length ends with its connection
                    raise Retryable(detector.over(), late=True)
                return
            slow = detector.add(len(block), time.monotonic() - begun)
            yield block
            if slow:
                raise Retryable(slow, late=True)

    def whole(self, response: requests.Response, *, until: float = math.inf) -> bytes:
        """Return the whole body; raises Permanent over 64 MiB, Retryable after ``until``, and as `blocks`."""
        parts, total = [], 0
        for block in self.blocks(response):
            parts.append(bytes(block))
            total += len(block)
            if total > LONGEST:
                raise Permanent(f"the answer has more than {text.size_of(LONGEST)}")
            if time.monotonic() > until:
                raise Retryable(f"timed out after {text.size_of(total)}", late=True)
        return b"".join(parts)

    def persist(
        self,
        act: Callable[[float], T],
        reached: Callable[[], int] = lambda: 0,
        waiting: Callable[[str], None] | None = None,
    ) -> T:
        """Call ``act`` until it does not raise Retryable. Enough progress in ``reached`` resets the limits.

        ``act`` receives the seconds left of ``policy.idle`` for an answer to begin. Bytes count as progress once they
        exceed the largest value of ``reached`` so far. ``waiting``, by default ``policy.told``, receives notes about
        long waits; without either, waits that the server asked for count as time without progress.

        Raises
        ------
        Permanent
            The limits of the policy are reached.
        """
        waiting = waiting or self.policy.told
        failures, best, since = 0, reached(), time.monotonic()
        while True:
            begun = time.monotonic()
            try:
                return act(self.policy.idle - (time.monotonic() - since))
            except Retryable as exc:
                exc.late |= time.monotonic() - begun >= _LATE
                failures += 1
                if reached() - best >= self.policy.least:
                    failures, best, since = 0, reached(), time.monotonic()
                pause = self.policy.delay(failures)
                spent = time.monotonic() - since + (pause if waiting else max(pause, exc.wait))
                if failures >= (exc.attempts or self.policy.attempts) or spent >= self.policy.idle:
                    if waiting and exc.late:
                        waiting(f"{exc.reason}: given up")
                    why = f"{exc.reason} ({failures} times)" if failures else exc.reason
                    raise Permanent(why, error=exc.error, late=exc.late, silent=exc.silent) from exc.__cause__
                since += exc.wait
                self._wait(max(exc.wait, pause), exc, waiting)

    def _wait(self, delay: float, why: Retryable, waiting: Callable[[str], None] | None) -> None:
        """Wait before the next attempt, with a note if that takes long; raises Stopped."""
        end = time.monotonic() + delay
        while True:
            left = max(0.0, end - time.monotonic())
            if waiting and (delay >= _LONG or why.late):
                waiting(f"{why.reason}: trying again" + (f" in {left:.0f} s" if delay >= _LONG else ""))
            if self._stop.wait(min(left, _WORD)):
                raise Stopped from None
            if left <= _WORD:
                return

    def document(self, url: str, headers: Mapping[str, str] | None = None) -> tuple[bytes, requests.Response]:
        """Fetch a small document with retries; returns it with its response. Raises Permanent."""

        def ask(left: float) -> tuple[bytes, requests.Response]:
            until = time.monotonic() + left
            with self.open(url, headers, seconds=left) as response:
                if response.status_code != 200:
                    raise Permanent(f"HTTP {response.status_code}", response.status_code)
                return _plain(self.whole(response, until=until), response), response

        found = self.persist(ask)
        self._read += 1
        if self.policy.told and time.monotonic() - self._said > _WORD:
            self._said = time.monotonic()
            self.policy.told(f"{self._read:,} pages of its listing read so far")
        return found

    def json(self, url: str) -> JsonPage:
        """Fetch a JSON document with retries; raises Permanent."""
        body, response = self.document(url, {"Accept": "application/json"})
        try:
            value = documents.loads(body)
        except ValueError as exc:
            raise Permanent("the answer is not JSON", response.status_code) from exc
        following = response.links.get("next", {}).get("url")
        page = connections.following(response.url, following) if following else None
        return JsonPage(value, response.headers.get("X-Repo-Commit"), page)


class _Outgoing:
    """The body of a request as it is sent. Each read says that the server has taken what was read before."""

    def __init__(
        self, stream: BinaryIO, size: int, exchange: Exchange, seconds: float, told: Callable[[int], None]
    ) -> None:
        self._stream, self._size, self._left = stream, size, size
        self._exchange, self._seconds, self._told = exchange, seconds, told

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read(BLOCK):
            yield chunk

    def read(self, size: int = -1) -> bytes:
        self._exchange.allow(self._seconds)
        chunk = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(chunk)
        self._told(len(chunk))
        return chunk


@dataclass(frozen=True, slots=True)
class JsonPage:
    """A JSON document of the hub: its value, its commit, and the URL of the next page."""

    value: Any
    commit: str | None
    following: str | None


def _plain(body: bytes, response: requests.Response) -> bytes:
    """Decompress a document that a server compressed without being asked; raises Permanent over 64 MiB."""
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("gzip", "x-gzip", "deflate"):
        return body
    unpacking = zlib.decompressobj(wbits=47)  # gzip or zlib, as its head says
    try:
        found = unpacking.decompress(body, LONGEST + 1)
    except zlib.error as exc:
        raise Permanent(f"the answer is not packed as {packed}, as it says") from exc
    if len(found) > LONGEST:
        raise Permanent(f"the answer unpacks to more than {text.size_of(LONGEST)}")
    if not unpacking.eof:
        raise Retryable("the connection closed early")
    return found


def authorities() -> str | None:
    """Return the file of certificate authorities that the environment sets; requests reads it."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or None


def _refusal(response: requests.Response, told: bool, sent: bool) -> str:
    """Return the hub's reason for refusing access, and what to do about it."""
    said = quoted(response.headers.get("X-Error-Message", "")).rstrip(". ")
    todo = (
        "the token was not accepted, or may not read this repository: HF_TOKEN, or hf auth login"
        if sent
        else "HF_ENDPOINT is plain HTTP, over which no token is sent"
        if told
        else "private and gated repositories need a token: HF_TOKEN"
    )
    return f" ({said}; {todo})" if said else f" ({todo})"


def _retry_after(text: str) -> float:
    """Parse Retry-After: seconds to wait, 0 if it cannot be parsed."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text) if len(text) < 10 else _FAR
    try:
        then = parsedate_to_datetime(text)
        return max(0.0, (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
