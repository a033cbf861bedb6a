"""The protocol of a source. `table` says which source serves which URL scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli.downloads import names
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import DownloadFailed
from rlds_cli.settings import Settings

if TYPE_CHECKING:
    from rlds_cli.downloads.fetch.client import Client


class Unanswered(DownloadFailed):
    """A listing failed because the service did not answer. Its other URLs are not tried."""


class FileSource(ABC):
    """A kind of place that files come from: web servers, the hub, buckets, this machine.

    All methods take URLs of the schemes that `table` assigns to the source. A URL names a file, a directory, a pattern
    with ``*`` or a prefix.
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
