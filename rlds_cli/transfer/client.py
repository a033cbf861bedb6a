"""Asking over HTTP: which failures may pass, how long to wait, and who may see the token."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from rlds_cli import __version__, documents, sizes
from rlds_cli.settings import Settings
from rlds_cli.transfer.pace import Floor, Limit

T = TypeVar("T")

BLOCK = 1 << 20
LONGEST = 64 << 20  # bytes of an answer that is read into memory
_LONG = 2.0  # seconds
_PASSING = {408, 423, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529}
_FINAL = (
    requests.exceptions.SSLError,
    requests.exceptions.TooManyRedirects,
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidProxyURL,
)


class Refused(Exception):
    """An answer that asking again will not change."""

    def __init__(self, reason: str, status: int = 0, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.headers = headers or {}


class Again(Exception):
    """A failure that may pass; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait


class Stopped(Exception):
    """Another file failed, or the user interrupted."""


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


class _Bearer(AuthBase):
    """The hub's token; being an ``auth`` keeps requests from putting .netrc in its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


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
        self._stop = threading.Event()
        self._open: set[requests.Response] = set()
        self._session = requests.Session()
        self._session.headers.update({"Accept-Encoding": "identity", "User-Agent": f"rlds/{__version__}"})
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # nothing that threads would share
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=max(jobs, self.width.connections)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._session.close()

    def stop(self) -> None:
        """Make every thread that uses this client raise Stopped soon, also those that wait for bytes."""
        self._stop.set()
        shut(list(self._open))

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
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[requests.Response]:
        """One request; the response (200, 206 or 416) with its body still to be read.

        Raises
        ------
        Again, Refused
            For everything else.
        """
        self.check()
        with self._get(url, headers or {}) as response:
            self._open.add(response)
            try:
                if response.status_code not in (200, 206, 416):
                    raise self._failure(response)
                yield response
            finally:
                self._open.discard(response)

    def _get(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        timeout = (self.patience.connect, self.patience.read)
        try:
            return self._session.get(url, headers=headers, stream=True, timeout=timeout, auth=self._auth(url))
        except _FINAL as exc:
            raise Refused(reason(exc)) from None
        except requests.RequestException as exc:
            raise Again(reason(exc)) from None
        except OSError as exc:  # a file of certificates that is not there
            raise Refused(str(exc)) from None

    def _auth(self, url: str) -> AuthBase | None:
        token = self.where.hub_token
        if not token or not self.is_hub(url):
            return None
        if not (token.isascii() and token.isprintable()):
            raise Refused("HF_TOKEN holds characters that no token has")
        return _Bearer(token)

    def is_hub(self, url: str) -> bool:
        """Whether a URL is the hub's own: same scheme, host and port."""
        return urlsplit(url)[:2] == urlsplit(self.where.hub)[:2]

    def _failure(self, response: requests.Response) -> Exception:
        status = response.status_code
        text = f"HTTP {status} {response.reason or ''}".rstrip()
        if status in (401, 403) and self.is_hub(response.url):
            text += _refusal(response, bool(self.where.hub_token))
        if status not in _PASSING:
            return Refused(text, status, response.headers)
        wait = _retry_after(response.headers.get("Retry-After", ""))
        if wait > self.patience.asked:
            return Refused(f"{text}, and asks to wait for {wait:.0f} s", status)
        return Again(text, wait)

    def blocks(self, response: requests.Response) -> Iterator[bytes]:
        """The body as it arrives, undecoded; raises Again where the connection fails."""
        floor = Floor(self.patience.least, self.patience.read)
        while True:
            self.check()
            begun = time.monotonic()
            try:
                block = response.raw.read1(self.limit.block(BLOCK), decode_content=False)
            except (urllib3.exceptions.HTTPError, OSError) as exc:
                self.check()
                raise Again(reason(exc)) from None
            if not block:
                return
            slow = floor.add(len(block), time.monotonic() - begun)
            self.limit.take(len(block), self._stop)
            yield block
            if slow:
                raise Again(slow)

    def whole(self, response: requests.Response) -> bytes:
        """The body at once; raises Refused over more than 64 MiB, and as `blocks`."""
        parts, total = [], 0
        for block in self.blocks(response):
            parts.append(block)
            total += len(block)
            if total > LONGEST:
                raise Refused(f"the answer has more than {sizes.text(LONGEST)}")
        return b"".join(parts)

    def persist(
        self,
        act: Callable[[], T],
        reached: Callable[[], int] = lambda: 0,
        waiting: Callable[[str], None] = lambda why: None,
    ) -> T:
        """Call ``act`` until it does not raise Again; enough progress of ``reached`` renews the patience.

        ``waiting`` is told of waits that a person would wonder about.

        Raises
        ------
        Refused
            When patience ends.
        """
        failures, best = 0, reached()
        while True:
            try:
                return act()
            except Again as exc:
                progress = reached() - best >= self.patience.least
                failures, best = (0, reached()) if progress else (failures + 1, best)
                if failures >= self.patience.attempts:
                    raise Refused(f"{exc.reason} ({failures} times)") from None
                delay = max(exc.wait, self.patience.delay(failures))
                if delay >= _LONG:
                    waiting(f"{exc.reason}: trying again in {delay:.0f} s")
                if self._stop.wait(delay):
                    raise Stopped from None

    def json(self, url: str) -> Answer:
        """A JSON document, asked for with patience; raises Refused."""
        return self.persist(lambda: self._json(url))

    def _json(self, url: str) -> Answer:
        with self.open(url, {"Accept": "application/json"}) as response:
            if response.status_code != 200:
                raise Refused(f"HTTP {response.status_code}", response.status_code)
            body = self.whole(response)
            following = response.links.get("next", {}).get("url")
            try:
                value = documents.loads(body)
            except ValueError:
                raise Refused("the answer is not JSON", response.status_code) from None
            return Answer(value, response.headers.get("X-Repo-Commit"), urljoin(url, following) if following else None)


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON document of the hub: its value, the commit that it speaks of, and the URL of the next page."""

    value: Any
    commit: str | None
    following: str | None


def shut(responses: Iterable[requests.Response]) -> None:
    """Wake whoever waits for bytes of these."""
    for response in responses:
        try:
            response.raw.shutdown()
        except (ValueError, RuntimeError, OSError):  # finished meanwhile
            continue


def authorities() -> str | None:
    """The file of certificate authorities that the environment puts in place of the usual ones; requests reads it."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or None


def _refusal(response: requests.Response, told: bool) -> str:
    """What the hub says to who may not see something, and what is to be done."""
    said = "".join(c for c in response.headers.get("X-Error-Message", "") if c.isprintable())[:200].rstrip(". ")
    todo = (
        "the token was not accepted, or may not read this repository: HF_TOKEN, or hf auth login"
        if told
        else "private and gated repositories need a token: HF_TOKEN"
    )
    return f" ({said}; {todo})" if said else f" ({todo})"


def _retry_after(text: str) -> float:
    if text.strip().isdecimal():
        return float(text)
    try:
        then = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def reason(exc: BaseException) -> str:
    """Why a request failed, in a few words that hold no URL and no header."""
    if isinstance(exc, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "timed out"
    if isinstance(exc, requests.exceptions.TooManyRedirects):
        return "redirects without end"
    if isinstance(exc, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(exc):
        why = re.search(r"certificate verify failed: ([^(\"']*)", str(exc))
        return f"its certificate is not trusted ({why[1].strip() if why else 'unknown reason'})"
    root: BaseException = exc
    for _ in range(10):
        causes = (getattr(root, "reason", None), *root.args, root.__cause__, root.__context__)
        inner = next((c for c in causes if isinstance(c, BaseException)), None)
        if inner is None:
            break
        root = inner
    if isinstance(root, OSError) and root.strerror:
        return str(root.strerror)
    known = {
        "IncompleteRead": "the connection closed early",
        "RemoteDisconnected": "the server closed the connection",
        "InvalidSchema": "leads to an address that is not HTTP",
    }
    return known.get(type(root).__name__, type(root).__name__)
