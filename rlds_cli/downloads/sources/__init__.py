"""Places that files come from: a module for each kind, and the table of URL schemes.

A new scheme is a class in a file of its own, and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlds_cli.downloads import names
from rlds_cli.downloads.sources.buckets import BUCKETS, SIGNED
from rlds_cli.downloads.sources.hub import HUB
from rlds_cli.downloads.sources.local import LOCAL
from rlds_cli.downloads.sources.protocol import FileSource, RemoteFile
from rlds_cli.downloads.sources.web import WEB
from rlds_cli.errors import DownloadFailed
from rlds_cli.settings import Settings

SOURCES: Mapping[str, FileSource] = {
    "http": WEB,
    "https": WEB,
    "hf": HUB,
    "gs": BUCKETS,
    "s3": BUCKETS,
    "signed-gs": SIGNED,
    "signed-s3": SIGNED,
    "file": LOCAL,
}


def lookup(url: str) -> FileSource | None:
    """Return the source of a URL or path; None for a scheme that is not in the table."""
    scheme = url.partition(":")[0].lower()
    if "://" not in url and scheme != "file":  # a path, or package:samples/...
        return LOCAL
    return SOURCES.get(scheme)


def source_of(url: str) -> FileSource:
    """Return the source of a URL or path; raises DownloadFailed for a scheme that is not in the table."""
    found = lookup(url)
    if found is None:
        raise DownloadFailed(
            f"{names.shown(url)}: {names.split(url).scheme}: addresses are not supported.",
            hint=", ".join(dict.fromkeys(s.usage for s in SOURCES.values() if s.usage)),
        )
    return found


def single_file(url: str) -> RemoteFile | None:
    """Return the file that a remote URL names where its form alone says that it names one, else None."""
    found = lookup(url)
    return found.single_file(url) if found else None


def local_path(url: str) -> Path | None:
    """Return the path of a URL on this machine; None for a remote URL."""
    found = lookup(url)
    return found.local_path(url) if found else None


def request_url(url: str, where: Settings) -> str:
    """Return the HTTP address of a file. An unknown scheme is kept: the request then fails and says why."""
    found = lookup(url)
    return found.request_url(url, where) if found else url


def network_schemes() -> tuple[str, ...]:
    """Return the schemes of addresses that mean the same on every machine."""
    return tuple(scheme for scheme, source in SOURCES.items() if source.shareable)
