"""The protocol of a source: what it offers (`RemoteFile`), what it can do (`FileSource`), and the limits of a listing.

`rlds_cli.downloads.sources` has the table that says which source serves which URL scheme.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli.downloads import names
from rlds_cli.errors import DownloadFailed
from rlds_cli.http.connections import Permanent
from rlds_cli.settings import Settings

if TYPE_CHECKING:
    from rlds_cli.http.client import Client

KINDS = ("sha256", "git_sha1", "md5", "crc32c")  # of hashes, strongest first

# Limits of a listing: a server cannot make one endless.
PAGES = 10_000
NAMES = 200_000  # three times as many as the largest archives have files
BYTES = 64 << 20  # of all names together
PAGE = 16 << 20  # bytes of a page; parsed it takes up to thirty times as much memory
ADDRESS = 8192  # characters of the address of a page
BARREN = 100  # consecutive pages without a new name
_SECONDS, _PACE = 60.0, 10  # a listing may take 60 s, and a second more for every 10 names


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that a source offers, with its published size and hashes.

    Parameters
    ----------
    path : str
        Path below the destination: relative, POSIX, checked.
    urls : tuple of str
        Addresses to try, in order, of any scheme in `sources.SOURCES`.
    size : int, optional
        Bytes.
    sha256, git_sha1, md5, crc32c : str, optional
        Lower-case hexadecimal; ``git_sha1`` is the id of the blob in git.
    revision : str, optional
        Commit of the repository, else the revision that was requested; in a bucket the generation.
    key : str
        Full path at the source, host or repository first. Copies elsewhere are named by a tail of it.
    placed : bool
        Without a published hash, a file that is here counts only if it came from one of ``urls``.
    """

    path: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    revision: str | None = None
    key: str = ""
    md5: str | None = None
    crc32c: str | None = None
    placed: bool = False

    @property
    def promise(self) -> tuple[str, str] | None:
        """Kind and value of the strongest hash that the source publishes. It is the one that is checked."""
        return next(((kind, value) for kind in KINDS if (value := getattr(self, kind))), None)

    @property
    def hashed(self) -> bool:
        """True if the source publishes a hash."""
        return self.promise is not None


class Unanswered(DownloadFailed):
    """A listing failed because the service did not answer. Its other URLs are not tried."""


class FileSource(ABC):
    """A kind of place that files come from: web servers, the hub, buckets, this machine.

    All methods take URLs of the schemes that `sources.SOURCES` assigns to the source. A URL names a file, a directory,
    a pattern with ``*`` or a prefix.
    """

    usage = ""  # how a hint names the scheme; empty for schemes that users do not write
    shareable = True  # whether a lock file may hold its URLs
    lists_mirrors = True  # False: files of a mirror are requested by name, since the mirror may not list them
    has_api = False  # whether a mirror may offer the same listing calls, for `list_at`

    @abstractmethod
    def key(self, url: str) -> str:
        """Return the full path of a URL: host, bucket or repository first. Mirrors name files by a tail of it."""

    @abstractmethod
    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        """Ask the server which files a URL names, with the sizes and hashes that it tells."""

    def list_offline(self, url: str) -> tuple[RemoteFile, ...] | None:
        """Return the files that a URL names where no request is needed, else None.

        Raises
        ------
        DownloadFailed
            The URL is not valid.
        """
        return None

    def list_at(self, url: str, mirror: str, client: Client) -> tuple[RemoteFile, ...]:
        """List a URL with the calls of a mirror; only of sources with ``has_api``."""
        raise NotImplementedError

    def single_file(self, url: str) -> RemoteFile | None:
        """Return the file that a URL names where its form alone says that it names one."""
        return None

    def local_path(self, url: str) -> Path | None:
        """Return the path of a URL on this machine; None for remote sources."""
        return None

    def request_url(self, url: str, where: Settings) -> str:
        """Return the HTTP address of a file."""
        return url

    def root(self, url: str, where: Settings) -> str:
        """Return the HTTP address below which the files of a URL are requested."""
        return url

    def at_revision(self, url: str, revision: str) -> str:
        """Return the URL of the same place at another revision, where the source has revisions."""
        return url

    def service(self, url: str) -> str:
        """Name what answers for a URL: after `Unanswered`, other URLs of the same service are skipped."""
        return url

    def is_repository(self, url: str) -> bool:
        """Return whether a URL names a whole repository, a copy of which may have any name."""
        return False

    def answers(self, mirror: str, where: Settings) -> bool:
        """Return whether a mirror answers at all."""
        return True

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        """Yield the URLs at which a mirror may have a file, given the tails of its key, longest first."""
        yield from (names.join(mirror, tail) for tail in tails[:2])


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
        if why := names.too_long(name):
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
