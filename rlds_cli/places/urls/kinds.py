"""The table of URL schemes: the kind of URL that each is.

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

from rlds_cli.base import visible
from rlds_cli.base.files import names
from rlds_cli.base.http.client import Client
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.urls.buckets import BucketUrl, SignedUrl
from rlds_cli.places.urls.directory import DirectoryUrl
from rlds_cli.places.urls.hub import HubUrl
from rlds_cli.places.urls.url import Offer, Url
from rlds_cli.places.urls.web import WebUrl

KINDS: Mapping[str, type[Url]] = {
    "http": WebUrl,
    "https": WebUrl,
    "hf": HubUrl,
    "gs": BucketUrl,
    "s3": BucketUrl,
    "signed-gs": SignedUrl,
    "signed-s3": SignedUrl,
    "file": DirectoryUrl,
}


class UnknownUrl(Url):
    """A URL whose scheme is not in the table: a request for it fails, and says why."""

    def parse(self) -> tuple[Address, str]:
        """Raise DownloadFailed."""
        raise DownloadFailed(
            f"{visible.shown(self.url)}: {names.split(self.url).scheme}: addresses are not supported.",
            hint=", ".join(dict.fromkeys(k.usage for k in KINDS.values() if k.usage)),
        )

    @property
    def is_unlisted(self) -> bool:
        """Raise DownloadFailed."""
        self.parse()
        return False

    def at_revision(self, revision: str) -> str:
        """Raise DownloadFailed."""
        self.parse()
        return self.url

    def request_root(self, where: Settings) -> str:
        """Raise DownloadFailed."""
        self.parse()
        return self.url

    def answers(self, where: Settings) -> bool:
        """Return False."""
        return False

    def _files(self, client: Client) -> Offer:
        self.parse()
        return ()


def as_url(url: str) -> Url:
    """Return a URL or path as its scheme says."""
    scheme = url.partition(":")[0].lower()
    if "://" not in url and scheme != "file":  # a path, or package:samples/...
        return DirectoryUrl(url)
    return KINDS.get(scheme, UnknownUrl)(url)


def network_schemes() -> tuple[str, ...]:
    """Return the schemes of addresses that mean the same on every machine."""
    return tuple(name for name, kind in KINDS.items() if kind.shareable)
