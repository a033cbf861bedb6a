"""A directory of a web server as a source: ranges of its files, and the pages of links that some servers show.

Apache, nginx and Python's http.server show such pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from html import unescape
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import requests

from rlds_cli.places.http.client import Client
from rlds_cli.places.http.connections import Budget, Permanent, Retryable
from rlds_cli.places.http.ranges import range_of
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.limits import ListingLimits
from rlds_cli.places.sources.source import Chunk, Document, Meta, Source

_REQUESTS = 32  # for one range, with redirects
_DEEP = 16  # directories in directories
_TAG = re.compile(r"<(?:(?P<passed>!--|script\b|style\b)|a\s(?P<attributes>[^<>]{1,8192})>)", re.IGNORECASE)
_CLOSING = {"!--": "-->", "script": "</script", "style": "</style"}
_TARGET = re.compile(r"""(?:^|\s)href\s{0,8}=\s{0,8}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


class WebSource(Source):
    """The files below ``https://HOST/PATH/``. A server without ranges sends whole files, of which a part is taken."""

    def __init__(self, address: Address, client: Client, *, deep: int | None = None) -> None:
        super().__init__(address, client)
        self._ranges: bool | None = None
        self._deep = _DEEP if deep is None else deep  # directories below that of a listing, of which pages are read

    def url(self, name: str) -> str:
        """Return the URL that a file is requested at."""
        return self.address.url_of(name)

    def _open(self, name: str, asked: str) -> AbstractContextManager[requests.Response]:
        """Request a range. Retries are limited, but not the requests for a dataset of any size."""
        return self.client.open(self.url(name), {"Range": asked}, budget=Budget(_REQUESTS))

    def has_ranges(self, name: str) -> bool:
        """Ask the server for two bytes of a file, once."""
        if self._ranges is None:
            with self._open(name, "bytes=1-2") as response:
                self._ranges = response.status_code != 200
        return self._ranges

    def document(self, name: str, longest: int) -> Document | None:
        """Return a small file, with its ETag."""
        try:
            data, response = self.client.document(self.url(name))
        except Permanent as exc:
            if exc.status in (404, 410):
                return None
            raise
        if len(data) > longest:
            raise Permanent(f"it has more than {longest:,} bytes")
        return Document(data, response.headers.get("ETag", ""))

    def stat(self, name: str) -> Meta | None:
        """Ask for the first byte of a file: the answer tells the size."""
        try:
            with self._open(name, "bytes=0-0") as response:
                return Meta(name, _size(response))
        except Permanent as exc:
            if exc.status in (404, 410):
                return None
            raise

    def read(self, name: str, start: int, stop: int) -> Iterator[Chunk]:
        """Request a range of a file."""
        length = stop - start
        with self._open(name, f"bytes={start}-{stop - 1}") as response:
            skip = 0
            if response.status_code == 206:
                answered = range_of(response)
                if answered is None or answered[:2] != (start, stop - 1):
                    raise Retryable("it sent another range than it was asked for")
            elif response.status_code == 200:
                skip = start
            else:
                raise Permanent("HTTP 416: it is too short", response.status_code)
            for block in self.client.blocks(response):
                if skip >= len(block):
                    skip -= len(block)
                    continue
                chunk = memoryview(block)[skip : skip + length]
                skip = 0
                length -= len(chunk)
                yield chunk
                if not length:
                    return

    def list(self, prefix: str) -> Iterator[Meta]:
        """Read the pages of links of a directory and of those below it; sizes are not known."""
        return (Meta(name) for name in dict.fromkeys(self._below(prefix)))

    def _below(self, start: str) -> Iterator[str]:
        """Yield the paths of all files below a directory, relative to the address."""
        parts = urlsplit(self.address.url_of(""))
        root = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        query = f"?{parts.query}" if parts.query else ""  # often a token: sent with every page and file
        waiting, seen, limit = [start], {start}, ListingLimits()
        while waiting:
            here = waiting.pop()
            limit.ask(here)
            found = links(limit.read(self.client.document(root + quote(here) + query)[0]))
            if here == start and not found:
                raise Permanent("the answer is not a page of links")
            for name in _names(found, root, here):
                if not limit.take(name).endswith("/"):
                    yield name
                elif name not in seen and name.count("/") - start.count("/") <= self._deep:
                    seen.add(name)
                    waiting.append(name)

    def hint(self, exc: Permanent) -> str | None:
        """Say what opens a closed server."""
        refused = exc.status in (401, 403)
        return "a user in the address or in .netrc may be needed; a signed address expires" if refused else None


def _size(response: requests.Response) -> int | None:
    if response.status_code == 206 and (answered := range_of(response)):
        return answered[2]
    if response.status_code == 416:
        return 0
    said = response.headers.get("Content-Length", "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 20 else None


def links(page: bytes) -> list[str]:
    """Return the links of a page, without comments and scripts. Takes linear time for any input."""
    text, found, at = page.decode(errors="replace"), [], 0
    while tag := _TAG.search(text, at):
        at = tag.end()
        if closing := _CLOSING.get((tag["passed"] or "").lower()):
            end = _position(text, closing, at)
            at = len(text) if end < 0 else end
        elif tag["attributes"] and (target := _TARGET.search(tag["attributes"])):
            found.append(unescape(target[1] or target[2] or target[3] or ""))
    return [link for link in found if link]


def _position(text: str, what: str, at: int) -> int:
    match = re.compile(re.escape(what), re.IGNORECASE).search(text, at)
    return -1 if match is None else match.start()


def _names(links: Iterable[str], root: str, here: str) -> Iterator[str]:
    """Yield linked names directly below a directory; not other servers, the parent directory or sort orders."""
    for link in links:
        try:
            target = urljoin(root + quote(here), link)
            if urlsplit(link).query or not target.startswith(root):
                continue
        except ValueError:  # such as http://[
            continue
        name = unquote(urlsplit(target).path).removeprefix(unquote(urlsplit(root).path))
        below = name.removeprefix(here)
        if name.startswith(here) and below and "/" not in below[:-1]:
            yield name
