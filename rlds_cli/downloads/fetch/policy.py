"""Why a request did not bring what was asked for, and whether another one may.

How fast bytes come, and for how many requests: neither faster than allowed, nor slower than is worth waiting for.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping

import requests
import urllib3

from rlds_cli import text, visible
from rlds_cli.errors import RldsError

_LONGEST = 200  # characters of a server's words


class Refused(Exception):
    """An answer that asking again will not change.

    ``error`` is what to raise where no other source gives the file either; ``late`` says that patience ended with
    waiting for a server, ``silent`` that it did not even begin an answer.
    """

    def __init__(
        self,
        reason: str,
        status: int = 0,
        headers: Mapping[str, str] | None = None,
        *,
        error: RldsError | None = None,
        late: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.headers = headers or {}
        self.error = error
        self.late = late
        self.silent = silent


class Again(Exception):
    """A failure that may pass.

    ``wait`` is what the server asked for, in seconds; ``late`` says that time was spent waiting for it, and
    ``silent`` that no answer began meanwhile.
    """

    def __init__(self, reason: str, wait: float = 0.0, *, late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait
        self.late = late
        self.silent = False


class Stopped(Exception):
    """Another file failed, or the user interrupted."""


def quoted(text: str) -> str:
    """A server's words, fit for one line of a message."""
    return visible.quoted(visible.line(text[:_LONGEST].strip()))


def reason(exc: BaseException) -> str:
    """Why a request failed, in a few words that hold no URL and no header."""
    if isinstance(exc, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "timed out"
    if isinstance(exc, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(exc):
        why = re.search(r"certificate verify failed: ([^(\"']*)", str(exc))
        return f"its certificate is not trusted ({quoted(why[1]) if why else 'unknown reason'})"
    root = _root(exc)
    if isinstance(root, TimeoutError):
        return "timed out"
    if isinstance(root, OSError) and root.strerror:
        return quoted(str(root.strerror))
    known = {
        "IncompleteRead": "the connection closed early",
        "RemoteDisconnected": "the server closed the connection",
        "InvalidSchema": "leads to an address that is not HTTP",
        "InvalidURL": "the address cannot be read",
        "LocationParseError": "the address cannot be read",
        "UnicodeError": "the host has no valid name",
        "BadStatusLine": "the answer is not HTTP",
        "HeaderParsingError": "the answer has headers that cannot be read",
        "LineTooLong": "the answer has headers that are too long",
    }
    return known.get(type(root).__name__, f"the answer cannot be read ({type(root).__name__})")


def _root(exc: BaseException) -> BaseException:
    """What an exception of the HTTP libraries is about."""
    root = exc
    for _ in range(10):
        causes = (getattr(root, "reason", None), *root.args, root.__cause__, root.__context__)
        inner = next((c for c in causes if isinstance(c, BaseException)), None)
        if inner is None:
            break
        root = inner
    return root


class Limit:
    """At most so many bytes a second over everything that takes from it; ``None`` lets all pass."""

    def __init__(self, rate: int | None) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._paid = 0.0  # until when, on the monotonic clock, what was taken is paid for

    def block(self, most: int) -> int:
        """How many bytes to read at a time, at most ``most``: no more than come in a tenth of a second."""
        return most if self.rate is None else max(1, min(most, self.rate // 10))

    def take(self, size: int, stop: threading.Event) -> None:
        """Wait until ``size`` bytes more are allowed, or ``stop`` is set."""
        if self.rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._paid = max(self._paid, now) + size / self.rate
            wait = self._paid - now
        stop.wait(wait)


class Floor:
    """Watches one connection: ``least`` bytes in every ``window`` seconds that were spent waiting for it."""

    def __init__(self, least: int, window: float) -> None:
        self._least, self._window = least, window
        self._waited, self._came = 0.0, 0

    @property
    def left(self) -> float:
        """Seconds for which one more wait may go on."""
        return self._window - self._waited + (self._window if self._came >= self._least else 0.0)

    def add(self, size: int, waited: float) -> str | None:
        """Count ``size`` bytes that came after ``waited`` seconds; why the connection is too slow, if it is."""
        self._waited, self._came = self._waited + waited, self._came + size
        if self._waited < self._window:
            return None
        came, self._waited, self._came = self._came, 0.0, 0
        return None if came >= self._least else self._said(came)

    def over(self) -> str:
        """Why a connection was given up whose wait went on for too long."""
        return self._said(self._came)

    def _said(self, came: int) -> str:
        return f"stalled: {text.size_of(came)} in {self._window:.3g} s" if came else "timed out"


class Budget:
    """How many requests something may still cost: a number, and one more for every MiB that was kept.

    What was kept once and given up is counted once: to bring it again brings nothing new.
    """

    def __init__(self, requests: int, kept: Callable[[], int] = lambda: 0) -> None:
        self._requests, self._kept = requests, kept
        self._most = self._spent = 0
        self._lock = threading.Lock()

    def spend(self) -> bool:
        """Count one more request; whether it may be made."""
        with self._lock:
            self._most = max(self._most, self._kept())
            self._spent += 1
            return self._spent <= self.requests

    @property
    def requests(self) -> int:
        """How many are allowed by now."""
        return self._requests + (self._most >> 20)
