"""URLs that archives are downloaded from: the table of URL schemes, and the kind of place that each names.

::

    http(s)://.../file                               or .../directory/, where the server shows pages of links
    hf://datasets/<owner>/<repo>[@<revision>][/<path>]    or ...[/<path>]@<revision>
    gs://<bucket>/<path>   s3://<bucket>/<path>
    signed-s3://[<region>@]<bucket>/<path>           a file of a private bucket; its request is signed when it is made
    file:<path>   <path>   package:samples/...

``<path>`` is a file, a directory, a pattern (`names.selected`) or, on the hub and in buckets, a prefix. A new scheme is
a line in `KINDS`; a new kind of place is a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlds_cli.base import visible
from rlds_cli.base.files import names
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.places.sources.buckets import BucketPlace, SignedPlace
from rlds_cli.places.sources.directory import DirectoryPlace
from rlds_cli.places.sources.hub import HubPlace
from rlds_cli.places.sources.place import Place
from rlds_cli.places.sources.web import WebPlace

KINDS: Mapping[str, type[Place]] = {
    "http": WebPlace,
    "https": WebPlace,
    "hf": HubPlace,
    "gs": BucketPlace,
    "s3": BucketPlace,
    "signed-gs": SignedPlace,
    "signed-s3": SignedPlace,
    "file": DirectoryPlace,
}


def lookup(url: str) -> type[Place] | None:
    """Return the kind of place of a URL or path; None if its scheme is not in the table."""
    scheme = url.partition(":")[0].lower()
    if "://" not in url and scheme != "file":  # a path, or package:samples/...
        return DirectoryPlace
    return KINDS.get(scheme)


def kind_of(url: str) -> type[Place]:
    """Return the kind of place of a URL or path; raises DownloadFailed if its scheme is not in the table."""
    found = lookup(url)
    if found is None:
        raise DownloadFailed(
            f"{visible.shown(url)}: {names.split(url).scheme}: addresses are not supported.",
            hint=", ".join(dict.fromkeys(k.usage for k in KINDS.values() if k.usage)),
        )
    return found


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
    return tuple(name for name, kind in KINDS.items() if kind.shareable)
