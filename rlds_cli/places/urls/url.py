"""A URL of files, or a path: how its kind of place writes it, and which files it names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from rlds_cli.base import text, visible
from rlds_cli.base.files import names
from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent, Retryable, Stopped
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, RldsError
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.place import Meta

ELSEWHERE = "--from DIR|URL takes the files from another source"
_SHOWN = 5  # names in a hint

Offer = tuple[RemoteFile, ...]


class Unanswered(DownloadFailed):
    """A listing failed because the service did not answer. Its other URLs are not tried."""


class Url(ABC):
    """A URL or path of a file, a directory, a pattern or a prefix. Only `files` and `answers` make requests.

    What is wrong with a URL is a DownloadFailed of the method that needs to know it.

    Attributes
    ----------
    usage : str
        How a hint names URLs of its kind; empty for those that users do not write.
    shareable : bool
        True if a lock file may hold it.
    """

    usage: ClassVar[str] = ""
    shareable: ClassVar[bool] = True

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url

    # -- how it is written

    @abstractmethod
    def parse(self) -> tuple[Address, str]:
        """Return the place, and the path, pattern or prefix that is named there; raises DownloadFailed."""

    @property
    def key(self) -> str:
        """The full path: host, bucket or repository first. Mirrors name files by a tail of it."""
        address, path = self.parse()
        return f"{address.root}/{path}".rstrip("/")

    @property
    def service(self) -> str:
        """What answers for it: after `Unanswered`, other URLs of the same service are skipped."""
        return self.url

    @property
    def is_unlisted(self) -> bool:
        """True if its server may not list files: those of a copy are asked for by name."""
        return False

    @property
    def names_everything(self) -> bool:
        """True if it is a whole repository, a copy of which may have any name."""
        return False

    @property
    def local_path(self) -> Path | None:
        """Its path on this machine; None for a remote one."""
        return None

    def matching(self, name: str) -> str:
        """Return the URL of a file that the listing of this pattern names."""
        return f"{names.fixed_directory(self.url)}/{name}"

    def at_revision(self, revision: str) -> str:
        """Return the URL of the same files at another revision, where there are revisions."""
        return self.url

    def at_mirror(self, mirror: str) -> Url | None:
        """Return what lists the same files by calls of their source at a mirror; None if the source has no calls."""
        return None

    def mirrored(self, tails: Sequence[str]) -> Iterator[str]:
        """Yield the URLs at which this mirror may have a file, given the tails of its key, longest first."""
        yield from (names.join(self.url, tail) for tail in tails[:2])

    def request(self, where: Settings) -> str:
        """Return the address of a file: by HTTP, or one whose place `sources.opening.place_at` knows."""
        return self.url

    def request_root(self, where: Settings) -> str:
        """Return the HTTP address below which the files are requested, at any revision."""
        return self.request(where)

    # -- which files it names

    def single_file(self) -> RemoteFile | None:
        """Return the file that a remote URL names where its form alone says that it names one, else None."""
        return None

    def known_files(self) -> Offer | None:
        """Return the files where no request is needed, else None; raises DownloadFailed if the URL is wrong."""
        self.parse()
        return None

    def files(self, client: Client) -> Offer:
        """Ask the place which files are named, with the sizes and hashes that it tells.

        Raises
        ------
        DownloadFailed
        UnsafeArchive
            The place lists a name that leaves its directory.
        """
        with _answering(self.url):
            return self._files(client)

    def answers(self, where: Settings) -> bool:
        """Return whether a mirror answers at all; True of those that are not asked."""
        return True

    @abstractmethod
    def _files(self, client: Client) -> Offer:
        """List the files; raises any exception over an answer that cannot be read."""

    def _named(self) -> RemoteFile | None:
        """Return the file if the path ends as names of files do."""
        address, path = self.parse()
        if "*" in path or not names.has_suffix(path):
            return None
        return RemoteFile(path.rpartition("/")[2], (self.url,), revision=address.revision, key=self.key)

    def _chosen(self, listed: Mapping[str, Meta], url_of: Callable[[str], str], nothing: str) -> Offer:
        """Return those of the listed files that belong to the path; ``url_of`` gives the URL of each.

        Raises DownloadFailed with the message ``nothing`` and names of other files if there are none, and
        UnsafeArchive.
        """
        address, path = self.parse()
        chosen = names.selected(listed, path)
        if not chosen:
            raise DownloadFailed(nothing, hint=_others(listed, path))
        names.all_safe(chosen.values())
        return tuple(
            RemoteFile(
                path=relative,
                urls=(url_of(name),),
                size=(m := listed[name]).size,
                sha256=m.sha256,
                git_sha1=m.git_sha1,
                revision=m.revision,
                key=f"{address.root}/{name}",
                md5=m.md5,
                crc32c=m.crc32c,
            )
            for name, relative in chosen.items()
        )


def _others(found: Iterable[str], path: str) -> str | None:
    """Say which files are in the directory of a pattern that matches none."""
    there = names.selected(found, names.fixed_directory(path)) if "*" in path else {}
    some = ", ".join(list(there)[:_SHOWN])
    return (
        f"it has {text.plural(len(there), 'file')}: {some}{', ...' if len(there) > _SHOWN else ''}" if there else None
    )


@contextmanager
def _answering(url: str) -> Iterator[None]:
    """Turn any exception over a server's answer into DownloadFailed, so that other sources are tried."""
    try:
        yield
    except (RldsError, Stopped):
        raise
    except Exception as exc:
        unreadable = f"the answer cannot be read ({type(exc).__name__})"
        why = exc.reason if isinstance(exc, Permanent | Retryable) else unreadable
        raise DownloadFailed(
            f"{visible.shown(url)} does not list its files: {why}. Nothing was written.", hint=ELSEWHERE
        ) from exc
