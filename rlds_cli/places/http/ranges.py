"""Headers of answers to requests for ranges of a file."""

from __future__ import annotations

import re

import requests

_RANGE = re.compile(r"bytes\s+([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.ASCII)
_UNSATISFIED = re.compile(r"bytes\s+\*/([0-9]{1,18})", re.ASCII)


def range_of(response: requests.Response) -> tuple[int, int, int | None] | None:
    """Parse Content-Range of a 206: first byte, last byte and size of the file; None if it is not valid."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    if match is None or response.headers.get("Content-Type", "").lower().startswith("multipart/"):
        return None
    first, last, size = int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])
    return (first, last, size) if first <= last and (size is None or last < size) else None


def size_of(response: requests.Response) -> int | None:
    """Parse the size of the file from Content-Range of a 416."""
    match = _UNSATISFIED.fullmatch(response.headers.get("Content-Range", "").strip())
    return int(match[1]) if match else None


def is_chunked(response: requests.Response) -> bool:
    """Return whether a body has chunked encoding, which marks its own end."""
    return "chunked" in response.headers.get("Transfer-Encoding", "").lower()
