"""What one listing may take: pages, names, bytes and time. A server that never ends is told so, not listened to.

A small document of a source, read into memory.
"""

from __future__ import annotations

import time

from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.client import Client, Refused

PAGES = 10_000
NAMES = 200_000  # three times as many as the largest archives have files
BYTES = 64 << 20  # of all names together
PAGE = 16 << 20  # bytes of a page; parsed it takes up to thirty times as much memory
ADDRESS = 8192  # characters of the address of a page
BARREN = 100  # pages one after the other that bring no name
_SECONDS, _PACE = 60.0, 10  # a listing may take this long, and a second more for so many names


class Allowance:
    """Counts what a server lists; every method raises Refused where that is too much."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._pages = self._bytes = self._barren = 0
        self._asked: set[str] = set()
        self._names: set[str] = set()

    def ask(self, page: str) -> bool:
        """Whether to ask for a page, named by its address or token: not twice, so that circles end."""
        if len(page) > ADDRESS:
            raise Refused(f"the address of its next page has {len(page):,} characters")
        if page in self._asked:
            return False
        self._asked.add(page)
        self._pages += 1
        self._barren += 1
        if self._pages > PAGES:
            raise Refused(f"it has more than {PAGES:,} pages")
        if self._barren > BARREN:
            raise Refused(f"{BARREN} pages one after the other list nothing new")
        if time.monotonic() - self._begun > _SECONDS + len(self._names) / _PACE:
            raise Refused(f"it listed only {len(self._names):,} names in {time.monotonic() - self._begun:.0f} s")
        return True

    def read(self, body: bytes) -> bytes:
        """A page that came."""
        if len(body) > PAGE:
            raise Refused(f"a page of it has {len(body):,} B; at most {PAGE:,} are read")
        return body

    def take(self, name: str) -> str:
        """A name that a page lists, of a file or of a directory."""
        if why := names.too_long(name):
            raise Refused(f"it lists a name that {why}")
        if name not in self._names:
            self._names.add(name)
            self._barren = 0
            self._bytes += len(name)
        if len(self._names) > NAMES:
            raise Refused(f"it lists more than {NAMES:,} names")
        if self._bytes > BYTES:
            raise Refused(f"its names have more than {BYTES:,} characters")
        return name


def body(client: Client, url: str) -> bytes:
    """What a URL answers, asked for with patience; raises Refused, also over more than 64 MiB."""
    return client.document(url)[0]
