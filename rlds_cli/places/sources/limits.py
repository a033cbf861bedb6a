"""Limits of a listing: a server cannot make one endless."""

from __future__ import annotations

import time

from rlds_cli.base.files.names import too_long
from rlds_cli.base.http.connections import Permanent

PAGES = 10_000
NAMES = 200_000  # three times as many as the largest archives have files
BYTES = 64 << 20  # of all names together
PAGE = 16 << 20  # bytes of a page; parsed it takes up to thirty times as much memory
ADDRESS = 8192  # characters of the address of a page
BARREN = 100  # consecutive pages without a new name
_SECONDS, _PACE = 60.0, 10  # a listing may take 60 s, and a second more for every 10 names


class ListingLimits:
    """Counts pages and names of one listing; every method raises Permanent beyond a limit."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._pages = self._bytes = self._barren = 0
        self._asked: set[str] = set()
        self._names: set[str] = set()

    def ask(self, page: str) -> bool:
        """Return whether to ask for a page, by its address or token; False the second time, so that loops end."""
        if len(page) > ADDRESS:
            raise Permanent(f"the address of its next page has {len(page):,} characters")
        if page in self._asked:
            return False
        self._asked.add(page)
        self._pages += 1
        self._barren += 1
        if self._pages > PAGES:
            raise Permanent(f"it has more than {PAGES:,} pages")
        if self._barren > BARREN:
            raise Permanent(f"{BARREN} consecutive pages list nothing new")
        if time.monotonic() - self._begun > _SECONDS + len(self._names) / _PACE:
            raise Permanent(f"it listed only {len(self._names):,} names in {time.monotonic() - self._begun:.0f} s")
        return True

    def read(self, body: bytes) -> bytes:
        """Return a page that is not too long."""
        if len(body) > PAGE:
            raise Permanent(f"a page of it has {len(body):,} B; at most {PAGE:,} are read")
        return body

    def take(self, name: str) -> str:
        """Return the name of a file or directory that a page lists, counted."""
        if why := too_long(name):
            raise Permanent(f"it lists a name that {why}")
        if name not in self._names:
            self._names.add(name)
            self._barren = 0
            self._bytes += len(name)
        if len(self._names) > NAMES:
            raise Permanent(f"it lists more than {NAMES:,} names")
        if self._bytes > BYTES:
            raise Permanent(f"its names have more than {BYTES:,} characters")
        return name
