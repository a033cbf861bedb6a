"""A directory of a web server as a source: ranges of its files, and the pages of links that some servers show.

Apache, nginx and Python's http.server show such pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from html import unescape
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import requests

from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Budget, Permanent
from rlds_cli.base.http.ranges import RangeRequest, Reply, range_of, reply_of
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.limits import ListingLimits
from rlds_cli.places.sources.place import Document, Meta, Place

_REQUESTS = 32  # with redirects
_DEEP = 16  # directories in directories
_TAG = re.compile(r"<(?:(?P<passed>!--|script\b|style\b)|a\s(?P<attributes>[^<>]{1,8192})>)", re.IGNORECASE)
_CLOSING = {"!--": "-->", "script": "</script", "style": "</style"}
_TARGET = re.compile(r"""(?:^|\s)href\s{0,8}=\s{0,8}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


class WebPlace(Place):
    """The files below ``https://HOST/PATH/``. A server without ranges sends whole files, of which a part is taken."""

    def __init__(self, address: Address, client: Client, *, deep: int | None = None) -> None:
        super().__init__(address, client)
        self._deep = _DEEP if deep is None else deep  # directories below that of a listing, of which pages are read

    def url(self, name: str) -> str:
        """Return the URL that a file is requested at."""
        return self.address.url_of(name)

    def _ask(self, name: str, request: RangeRequest) -> AbstractContextManager[requests.Response]:
        return self._open(self.url(name), request)

    def _open(self, url: str, request: RangeRequest) -> AbstractContextManager[requests.Response]:
        budget = request.budget or Budget(_REQUESTS)
        return self.client.open(url, request.headers, budget=budget, among=request.among, seconds=request.seconds)

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
            with self._ask(name, RangeRequest(start=0, stop=1)) as response:
                return Meta(name, _size(response))
        except Permanent as exc:
            if exc.status in (404, 410):
                return None
            raise

    @contextmanager
    def open(self, name: str, request: RangeRequest) -> Iterator[Reply]:
        """Request a range of a file."""
        with self._ask(name, request) as response:
            yield reply_of(self.client, response, name, request)

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


class WebFile(WebPlace):
    """One file at a URL as it is, whatever its name."""

    def __init__(self, url: str, client: Client) -> None:
        parts = urlsplit(url)
        super().__init__(Address(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, url=url), client)

    def url(self, name: str) -> str:
        """Return the URL."""
        return self.address.url


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
