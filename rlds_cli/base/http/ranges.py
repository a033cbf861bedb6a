"""Requests for bytes of a file, and their answers: which content, which range of it, and the bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import requests

from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Budget, Exchange, Permanent, quoted

_RANGE = re.compile(r"bytes\s+([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.ASCII)
_UNSATISFIED = re.compile(r"bytes\s+\*/([0-9]{1,18})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}")
_VALIDATOR = re.compile(r"[\x20-\x7e]{1,1000}")  # what may be sent back in a header
_PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".z")


class NoRange(Exception):
    """An answer that is not the range that was asked for; the file as a whole may come.

    ``beyond`` is True if the file is said to end before it, ``size`` that of the file, where the answer tells it.
    """

    def __init__(self, reason: str, *, beyond: bool = False, size: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.beyond = beyond
        self.size = size


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """What a place says of one content of a file: its ETag, its date, its bytes."""

    etag: str | None = None
    modified: str | None = None
    size: int | None = None

    @property
    def validator(self) -> str | None:
        """Value for ``If-Range``: a strong ETag, else the date."""
        weak = self.etag is None or self.etag.startswith("W/")
        return self.modified if weak else self.etag

    def differs(self, other: Tag) -> bool:
        """Return whether two answers from one place are of different content."""
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.modified and other.modified and self.modified != other.modified)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRequest:
    """One request for bytes [start, stop) of a file; without ``stop``, for those to its end.

    Parameters
    ----------
    seen : Tag, optional
        The content that is wanted: a place that has another one may send all of that.
    budget : Budget, optional
        Counts the request and its redirects.
    seconds : float, optional
        Time to the beginning of the answer.
    among : set of Exchange, optional
        Holds the exchange while it lasts, so that others can cut it.
    """

    start: int
    stop: int | None = None
    seen: Tag | None = None
    budget: Budget | None = None
    seconds: float | None = None
    among: set[Exchange] | None = None

    @property
    def is_range(self) -> bool:
        """Whether less than the whole file is asked for."""
        return self.start > 0 or self.stop is not None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a request by HTTP."""
        if not self.is_range:
            return {}
        headers = {"Range": f"bytes={self.start}-{'' if self.stop is None else self.stop - 1}"}
        if self.seen is not None and self.seen.validator:
            headers["If-Range"] = self.seen.validator
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one request brought: bytes from ``start`` on, and at most up to ``stop``; None where that is not told.

    Attributes
    ----------
    blocks : iterator of bytes
        A block stays as it is until `connections.AHEAD` further ones were taken.
    url : str
        Address of the server that answered, if it was asked by HTTP.
    content_type : str
    has_ranges : bool
        True if ranges of the file can be asked for.
    is_framed : bool
        True if the body marks its end, so that a missing end is noticed.
    """

    tag: Tag
    start: int
    stop: int | None
    blocks: Iterator[bytes | memoryview]
    url: str = ""
    content_type: str = ""
    has_ranges: bool = True
    is_framed: bool = True


def reply_of(client: Client, response: requests.Response, name: str, asked: RangeRequest) -> Reply:
    """Return the answer to a request for bytes of the file ``name``.

    Raises
    ------
    NoRange
        It is another range.
    Permanent
        It cannot be used.
    """
    if response.status_code == 416:
        raise NoRange("HTTP 416", beyond=True, size=size_of(response))
    check_plain(response, name)
    tag, start, stop, has_ranges = tag_of(response), 0, None, True
    if response.status_code == 200:
        stop, has_ranges = tag.size, "bytes" in response.headers.get("Accept-Ranges", "").lower()
    else:
        answered = range_of(response)
        if answered is None or not _is_part(answered, asked):
            said = quoted(response.headers.get("Content-Range", "none"))
            raise NoRange(f"the answer is a range that was not requested ({said})", size=tag.size)
        start, stop = answered[0], answered[1] + 1
    return Reply(
        tag=tag,
        start=start,
        stop=stop,
        blocks=client.blocks(response),
        url=response.url,
        content_type=response.headers.get("Content-Type", "").lower(),
        has_ranges=has_ranges,
        is_framed=stop is not None or is_chunked(response),
    )


def _is_part(answered: tuple[int, int, int | None], asked: RangeRequest) -> bool:
    """Return whether a range begins at the requested byte, and does not end behind the requested range."""
    return asked.is_range and answered[0] == asked.start and (asked.stop is None or answered[1] < asked.stop)


def tag_of(response: requests.Response) -> Tag:
    """Parse the headers of a 200 or 206; raises Permanent if its lengths are not valid."""
    headers = response.headers
    size: int | None = None
    if response.status_code == 206:
        answered = range_of(response)
        size = answered[2] if answered else None
    elif not is_chunked(response) and (said := headers.get("Content-Length")) is not None:
        lengths = {length.strip() for length in said.split(",")}  # the same header twice
        if len(lengths) != 1 or not _NUMBER.fullmatch(length := lengths.pop()):
            raise Permanent("has a length that is not a number")
        size = int(length)
    etag, modified = (sendable(headers.get(k)) for k in ("ETag", "Last-Modified"))
    return Tag(etag=etag, modified=modified, size=size)


def check_plain(response: requests.Response, name: str) -> None:
    """Refuse a compressed answer, except for files that are compressed themselves: servers label those so too."""
    if response.headers.get("Transfer-Encoding", "chunked").strip().lower() not in ("chunked", "identity"):
        raise Permanent("answered in a transfer encoding that was not requested")
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("", "identity") and not name.lower().endswith(_PACKED):
        raise Permanent(f"answered {quoted(packed)} where plain bytes were requested")


def sendable(value: object) -> str | None:
    """Return an ETag or a date that may be sent back in a header, else None."""
    return value if isinstance(value, str) and _VALIDATOR.fullmatch(value) else None


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
