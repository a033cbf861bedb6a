"""Failures of requests, retryable or permanent; detection of stalled connections; budgets of requests."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping

import requests
import urllib3

from rlds_cli import text, visible
from rlds_cli.errors import RldsError

_LONGEST = 200  # characters of a server's words


class Permanent(Exception):
    """A failure that another attempt would not change.

    ``error`` is raised if no other source has the file either. ``late`` is True if the retries ended with waiting for
    a server, ``silent`` if the server did not begin an answer.
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


class Retryable(Exception):
    """A failure after which another attempt may succeed.

    ``wait`` is the delay in seconds that the server asked for. ``late`` is True if time was spent waiting for the
    server, ``silent`` if it did not begin an answer.
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
    """Return text from a server as one printable line."""
    return visible.quoted(visible.line(text[:_LONGEST].strip()))


def reason(exc: BaseException) -> str:
    """Return why a request failed, in a few words without URLs and headers."""
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
    """Return the innermost cause of an exception of the HTTP libraries."""
    root = exc
    for _ in range(10):
        causes = (getattr(root, "reason", None), *root.args, root.__cause__, root.__context__)
        inner = next((c for c in causes if isinstance(c, BaseException)), None)
        if inner is None:
            break
        root = inner
    return root


class StallDetector:
    """Detects that a connection brings fewer than ``least`` bytes in ``window`` seconds of waiting for it."""

    def __init__(self, least: int, window: float) -> None:
        self._least, self._window = least, window
        self._waited, self._came = 0.0, 0

    @property
    def left(self) -> float:
        """Seconds that the next wait may take."""
        return self._window - self._waited + (self._window if self._came >= self._least else 0.0)

    def add(self, size: int, waited: float) -> str | None:
        """Count ``size`` bytes that came after ``waited`` seconds; returns a reason if the connection has stalled."""
        self._waited, self._came = self._waited + waited, self._came + size
        if self._waited < self._window:
            return None
        came, self._waited, self._came = self._came, 0.0, 0
        return None if came >= self._least else self._said(came)

    def over(self) -> str:
        """Return the reason for a connection that was cut after too long a wait."""
        return self._said(self._came)

    def _said(self, came: int) -> str:
        return f"stalled: {text.size_of(came)} in {self._window:.3g} s" if came else "timed out"


class Budget:
    """Number of requests that a task may make: a constant, and one more for every MiB that was kept.

    Bytes that were kept, dropped and fetched again count once.
    """

    def __init__(self, requests: int, kept: Callable[[], int] = lambda: 0) -> None:
        self._requests, self._kept = requests, kept
        self._most = self._spent = 0
        self._lock = threading.Lock()

    def spend(self) -> bool:
        """Count a request and return whether it may be made."""
        with self._lock:
            self._most = max(self._most, self._kept())
            self._spent += 1
            return self._spent <= self.requests

    @property
    def requests(self) -> int:
        """Number of requests allowed so far."""
        return self._requests + (self._most >> 20)
