"""Why a request did not bring what was asked for, and whether another one may."""

from __future__ import annotations

import re
from collections.abc import Mapping

import requests
import urllib3

from rlds_cli import addresses, visible
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
    return addresses.quoted(visible.line(text[:_LONGEST].strip()))


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
