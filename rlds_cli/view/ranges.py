"""Bytes with an ETag, whole or in ranges (RFC 9110), as players of videos ask for them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from starlette.responses import Response, StreamingResponse

_PIECE = 1 << 18  # bytes that are read at a time
_MOST_RANGES = 16
_RANGE = re.compile(r"(\d{0,18})-(\d{0,18})")
KEPT = "private, no-cache"  # a browser may keep it, and asks whether it is still the same
NOT_KEPT = "no-store"

Read = Callable[[int, int], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """Bytes that a request may ask for.

    Attributes
    ----------
    size : int
    read : callable
        Returns the bytes from one place to another.
    etag : str
        Names the bytes: others have another one.
    media_type : str
    cache : str
        ``Cache-Control``: whether a browser may keep it.
    at_once : int or None
        Bytes that answer a range without an end. A player asks for such a range, and reads it as slowly as it plays; a
        browser has six connections to a host, and seven videos would need more.
    """

    size: int
    read: Read
    etag: str
    media_type: str
    cache: str = KEPT
    at_once: int | None = None


def answer(content: Content, headers: Mapping[str, str], *, method: str = "GET") -> Response:
    """Answer a request with these headers: 200 or 206 with bytes, 304, or 416."""
    tag = f'"{content.etag}"'
    common = {"etag": tag, "cache-control": content.cache, "accept-ranges": "bytes"}
    if is_known(tag, headers):
        return Response(status_code=304, headers=common)
    asked = headers.get("range") if headers.get("if-range", tag) == tag else None
    ranges = None if asked is None else parsed(asked, content.size)
    if ranges is None:
        return _body(content, [(0, content.size)], 200, common, method)
    if not ranges:
        return Response(status_code=416, headers=common | {"content-range": f"bytes */{content.size}"})
    if len(ranges) == 1:
        first, stop = ranges[0]
        if content.at_once is not None and asked is not None and asked.rstrip().endswith("-"):
            stop = min(stop, first + content.at_once)
        common["content-range"] = f"bytes {first}-{stop - 1}/{content.size}"
        return _body(content, [(first, stop)], 206, common, method)
    return _several(content, ranges, common, method)


def is_known(tag: str, headers: Mapping[str, str]) -> bool:
    """Return whether who asks has the bytes already: one of the tags of ``If-None-Match`` is ``tag``."""
    known = [part.strip().removeprefix("W/") for part in headers.get("if-none-match", "").split(",")]
    return tag in known or "*" in known


def parsed(asked: str, size: int) -> list[tuple[int, int]] | None:
    """Return the ranges (first, stop) that a header asks for of ``size`` bytes; none if there are none of them.

    None stands for a header that does not list ranges of bytes, or asks for too many: it is passed over.
    """
    unit, _, parts = asked.partition("=")
    found = list[tuple[int, int]]()
    words = [part.strip() for part in parts.split(",")]
    if unit.strip().lower() != "bytes" or len(words) > _MOST_RANGES:
        return None
    for word in words:
        match = _RANGE.fullmatch(word)
        if match is None or word == "-":
            return None
        first, last = match.groups()
        if not first:  # the last bytes
            begin, stop = max(0, size - int(last)), size
        else:
            begin, stop = int(first), min(size, int(last) + 1) if last else size
            if last and int(last) < begin:
                return None
        if begin < stop:
            found.append((begin, stop))
    return found


def _pieces(content: Content, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
    for first, stop in ranges:
        for begin in range(first, stop, _PIECE):
            yield content.read(begin, min(stop, begin + _PIECE))


def _body(
    content: Content, ranges: list[tuple[int, int]], status: int, headers: dict[str, str], method: str
) -> Response:
    length = sum(stop - first for first, stop in ranges)
    headers = headers | {"content-length": str(length)}
    if method == "HEAD" or not length:
        return Response(status_code=status, headers=headers, media_type=content.media_type)
    return StreamingResponse(_pieces(content, ranges), status, headers, content.media_type)


def _several(content: Content, ranges: list[tuple[int, int]], headers: dict[str, str], method: str) -> Response:
    """Answer with several ranges, each behind a head of its own."""
    boundary = secrets.token_hex(12)
    heads = [
        f"--{boundary}\r\nContent-Type: {content.media_type}\r\n"
        f"Content-Range: bytes {first}-{stop - 1}/{content.size}\r\n\r\n".encode()
        for first, stop in ranges
    ]
    end = f"--{boundary}--\r\n".encode()
    length = len(end) + sum(len(h) + 2 for h in heads) + sum(stop - first for first, stop in ranges)
    headers = headers | {"content-length": str(length)}
    kind = f"multipart/byteranges; boundary={boundary}"

    def parts() -> Iterator[bytes]:
        for head, of in zip(heads, ranges, strict=True):
            yield head
            yield from _pieces(content, [of])
            yield b"\r\n"
        yield end

    if method == "HEAD":
        return Response(status_code=206, headers=headers, media_type=kind)
    return StreamingResponse(parts(), 206, headers, kind)
