"""Asking over HTTP: which failures may pass, how long to wait, and how many times to ask."""

from __future__ import annotations

import math
import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from http.cookiejar import DefaultCookiePolicy
from types import TracebackType
from typing import Any, Self, TypeVar

import requests
import urllib3

from rlds_cli import __version__, text
from rlds_cli.downloads.fetch import connections
from rlds_cli.downloads.fetch.connections import Adapter, Exchange, Watch, during
from rlds_cli.downloads.fetch.policy import Again, Budget, Floor, Limit, Refused, Stopped, quoted, reason
from rlds_cli.files import json as documents
from rlds_cli.settings import Settings

__all__ = ["Again", "Answer", "Client", "Patience", "Refused", "Stopped", "Width", "authorities"]

T = TypeVar("T")

BLOCK = 1 << 20
LONGEST = 64 << 20  # bytes of an answer that is read into memory
_LONG = 2.0  # seconds
_LATE = 10.0  # seconds after which a failure is one of waiting, whatever it says
_WORD = 20.0  # seconds after which something long is spoken of again
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


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to go on: attempts without progress, which is ``least`` bytes, and seconds.

    A connection that brings fewer than ``least`` bytes in ``read`` seconds has stalled.
    """

    attempts: int = 5
    first: float = 0.5
    longest: float = 30.0
    asked: float = 120.0  # a server that wants a longer wait has refused
    connect: float = 10.0
    read: float = 30.0
    least: int = 64 << 10
    idle: float = 50.0  # seconds without progress, or for one document, without those that the server asked for
    requests: int = 40  # of one file from one source, redirects included, and one more for each MiB that was kept
    documents: int = 20_000  # requests of one listing
    sources: int = 16  # of one file
    unsized: int = 32 << 30  # bytes of a file whose size nobody says
    told: Callable[[str], None] | None = None  # who hears of waits, where no file is fetched that has its own listener

    @property
    def answer(self) -> float:
        """Seconds from the first attempt to connect to the end of the headers, over all redirects."""
        return self.connect + self.read

    def delay(self, failures: int) -> float:
        """Seconds before the next attempt: none after progress, then doubling, with jitter to spread many clients."""
        return failures and min(self.longest, self.first * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Width:
    """How many connections there are at a time, and of one file; ``piece`` is what one asks for.

    A file goes over more than one where that has brought it for ``after`` seconds and would still for ``worth``.
    """

    connections: int = 8
    of_a_file: int = 4
    after: float = 1.0
    worth: float = 4.0
    fast: int = 100 << 20  # bytes a second at which a connection is not what holds it up
    smallest: int = 16 << 20

    def piece(self, size: int) -> int:
        """Bytes of a piece of a file of this size: the larger the file, the fewer requests for each of its bytes."""
        return min(max(self.smallest, size // 128), 8 * self.smallest)


class _Session(requests.Session):
    """A session that follows no redirect: requests would read all of its body first, and unpack it."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: `Client` follows them itself."""
        return


class Client:
    """One session for all files of a transfer; used by several threads."""

    def __init__(
        self, where: Settings, *, patience: Patience | None = None, width: Width | None = None, jobs: int = 1
    ) -> None:
        self.where = where
        self.patience = patience or Patience()
        self.width = width or Width()
        self.spare = threading.Semaphore(self.width.connections)  # those that nobody uses
        self.limit = Limit(where.limit_rate)
        self._budget = Budget(self.patience.documents)
        self._read, self._said = 0, time.monotonic()  # documents, and when that was last spoken of
        self._stop = threading.Event()
        self._watch = Watch()
        self._open: dict[requests.Response, Exchange] = {}
        self._session = _Session()
        self._session.headers.update({"Accept-Encoding": "identity", "User-Agent": f"rlds/{__version__}"})
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # nothing that threads would share
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, Adapter(pool_maxsize=max(jobs, self.width.connections)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._watch.close()
        self._session.close()

    def stop(self) -> None:
        """Make every thread that uses this client raise Stopped at once, also those that wait for a server."""
        self._stop.set()
        self._watch.cut()

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Use one connection, whether one is to spare or not."""
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
        """One request; the response (200, 206 or 416) with its body still to be read.

        Parameters
        ----------
        budget : Budget, optional
            What the request and its redirects are counted in; that of the client unless given.
        among : set of Exchange, optional
            Holds the exchange while it lasts, for who wants to cut it.
        seconds : float, optional
            Until the end of the headers; ``patience.answer`` unless given.

        Raises
        ------
        Again, Refused
            For everything else.
        """
        self.check()
        limit = self.patience.answer if seconds is None else min(seconds, self.patience.answer)
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
        """The answer to a request, after the redirects; their bodies are not kept."""
        here = url
        for _ in range(connections.MOST + 1):
            self.check()
            if not budget.spend():
                raise Refused(f"given up after {budget.requests:,} requests")
            try:
                response = self._get(here, url, headers, exchange)
            except Again as exc:
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
        raise Refused("redirects without end")

    def _get(self, url: str, asked: str, headers: Mapping[str, str], exchange: Exchange) -> requests.Response:
        timeout = (self.patience.connect, self.patience.read)
        with self._failing(exchange), during(exchange):
            credentials = connections.Credentials(asked, url, self.where)
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
        """The boundary to the HTTP libraries: whatever goes wrong there becomes Again or Refused."""
        try:
            yield
        except (Again, Refused, Stopped):
            raise
        except Exception as exc:
            self.check()
            if exchange.ended:
                raise self._late(exchange) from exc
            if isinstance(exc, _FINAL):
                raise Refused(reason(exc)) from exc
            if isinstance(exc, requests.RequestException | urllib3.exceptions.HTTPError | HTTPException):
                why = reason(exc)
                raise Again(why, late=why == "timed out") from exc
            if isinstance(exc, OSError):
                if exc.errno is None:  # a file of certificates that is not there
                    raise Refused(quoted(str(exc))) from exc
                raise Again(reason(exc)) from exc
            raise Refused(reason(exc)) from exc

    def _late(self, exchange: Exchange) -> Again:
        if exchange.late:
            return Again("timed out before the end of its headers", late=True)
        return Again("the connection was ended")

    def is_hub(self, url: str) -> bool:
        """Whether a URL is the hub's own: same scheme, host and port."""
        return connections.origin(url) == connections.origin(self.where.hub)

    def _failure(self, response: requests.Response) -> Exception:
        status = response.status_code
        text = f"HTTP {status} {quoted(response.reason or '')}".rstrip()
        if status in (401, 403) and self.is_hub(response.url):
            sent = bool(self.where.hub_token) and connections.is_private(response.url)
            text += _refusal(response, bool(self.where.hub_token), sent)
        if status not in _PASSING:
            return Refused(text, status, response.headers)
        wait = _retry_after(response.headers.get("Retry-After", ""))
        if wait > self.patience.asked:
            longer = f"{wait:.0f} s" if wait < _FAR else "ever"
            return Refused(f"{text}, and asks to wait for {longer}", status)
        return Again(text, wait)

    def blocks(self, response: requests.Response) -> Iterator[bytes]:
        """The body as it arrives, undecoded; raises Again where the connection fails or stalls."""
        floor, exchange = Floor(self.patience.least, self.patience.read), self._open[response]
        while True:
            self.check()
            exchange.allow(floor.left)
            begun = time.monotonic()
            try:
                with self._failing(exchange):
                    block = response.raw.read1(self.limit.block(BLOCK), decode_content=False)
            except Again as exc:
                raise (Again(floor.over(), late=True) if exchange.late else exc) from exc.__cause__
            exchange.rest()
            if not block:
                self.check()
                if exchange.ended:  # a body without a length ends with its connection
                    raise Again(floor.over(), late=True)
                return
            slow = floor.add(len(block), time.monotonic() - begun)
            self.limit.take(len(block), self._stop)
            yield block
            if slow:
                raise Again(slow, late=True)

    def whole(self, response: requests.Response, *, until: float = math.inf) -> bytes:
        """The body at once; raises Refused over more than 64 MiB, Again after ``until``, and as `blocks`."""
        parts, total = [], 0
        for block in self.blocks(response):
            parts.append(block)
            total += len(block)
            if total > LONGEST:
                raise Refused(f"the answer has more than {text.size_of(LONGEST)}")
            if time.monotonic() > until:
                raise Again(f"timed out after {text.size_of(total)}", late=True)
        return b"".join(parts)

    def persist(
        self,
        act: Callable[[float], T],
        reached: Callable[[], int] = lambda: 0,
        waiting: Callable[[str], None] | None = None,
    ) -> T:
        """Call ``act`` until it does not raise Again; enough progress of ``reached`` renews the patience.

        ``act`` is given the seconds that are left of ``patience.idle`` for an answer to begin.
        Progress is what goes beyond everything that was ever reached. ``waiting`` is told of waits that a person
        would wonder about; where nobody is told, waits that the server asked for count as time without progress.

        Raises
        ------
        Refused
            When patience ends.
        """
        failures, best, since = 0, reached(), time.monotonic()
        while True:
            begun = time.monotonic()
            try:
                return act(self.patience.idle - (time.monotonic() - since))
            except Again as exc:
                exc.late |= time.monotonic() - begun >= _LATE
                failures += 1
                if reached() - best >= self.patience.least:
                    failures, best, since = 0, reached(), time.monotonic()
                pause = self.patience.delay(failures)
                spent = time.monotonic() - since + (pause if waiting else max(pause, exc.wait))
                if failures >= self.patience.attempts or spent >= self.patience.idle:
                    if waiting and exc.late:
                        waiting(f"{exc.reason}: given up")
                    why = f"{exc.reason} ({failures} times)" if failures else exc.reason
                    raise Refused(why, late=exc.late, silent=exc.silent) from exc.__cause__
                since += exc.wait
                self._wait(max(exc.wait, pause), exc, waiting)

    def _wait(self, delay: float, why: Again, waiting: Callable[[str], None] | None) -> None:
        """Wait before the next attempt, and say so where that takes long; raises Stopped."""
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
        """A small document and the answer that brought it, asked for with patience; raises Refused."""

        def ask(left: float) -> tuple[bytes, requests.Response]:
            until = time.monotonic() + left
            with self.open(url, headers, seconds=left) as response:
                if response.status_code != 200:
                    raise Refused(f"HTTP {response.status_code}", response.status_code)
                return _plain(self.whole(response, until=until), response), response

        found = self.persist(ask, waiting=self.patience.told)
        self._read += 1
        if self.patience.told and time.monotonic() - self._said > _WORD:
            self._said = time.monotonic()
            self.patience.told(f"{self._read:,} pages of its listing have come so far")
        return found

    def json(self, url: str) -> Answer:
        """A JSON document, asked for with patience; raises Refused."""
        body, response = self.document(url, {"Accept": "application/json"})
        try:
            value = documents.loads(body)
        except ValueError as exc:
            raise Refused("the answer is not JSON", response.status_code) from exc
        following = response.links.get("next", {}).get("url")
        page = connections.following(response.url, following) if following else None
        return Answer(value, response.headers.get("X-Repo-Commit"), page)


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON document of the hub: its value, the commit that it speaks of, and the URL of the next page."""

    value: Any
    commit: str | None
    following: str | None


def _plain(body: bytes, response: requests.Response) -> bytes:
    """A document as it was before the server packed it, unasked; raises Refused over 64 MiB."""
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("gzip", "x-gzip", "deflate"):
        return body
    unpacking = zlib.decompressobj(wbits=47)  # gzip or zlib, as its head says
    try:
        found = unpacking.decompress(body, LONGEST + 1)
    except zlib.error as exc:
        raise Refused(f"the answer is not packed as {packed}, as it says") from exc
    if len(found) > LONGEST:
        raise Refused(f"the answer unpacks to more than {text.size_of(LONGEST)}")
    if not unpacking.eof:
        raise Again("the connection closed early")
    return found


def authorities() -> str | None:
    """The file of certificate authorities that the environment puts in place of the usual ones; requests reads it."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or None


def _refusal(response: requests.Response, told: bool, sent: bool) -> str:
    """What the hub says to who may not see something, and what is to be done."""
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
    """The seconds that a server wants to be left alone for; 0 where it says nothing that can be read."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text) if len(text) < 10 else _FAR
    try:
        then = parsedate_to_datetime(text)
        return max(0.0, (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
