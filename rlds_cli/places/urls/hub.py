"""URLs of dataset repositories of the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from rlds_cli.base.files import names
from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.sources import hub_listing
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.urls.url import ELSEWHERE, Offer, Unanswered, Url

_URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<pin>refs/(?:pr|convert)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<path>.*?))?/?(?:@(?P<rev>[^@]+))?"
)
_MAIN = "main"


class HubUrl(Url):
    """``hf://datasets/<owner>/<repo>[@<revision>][/<path>]`` or ``...[/<path>]@<revision>``."""

    usage = "hf://datasets/"

    def __init__(self, url: str, *, endpoint: str | None = None) -> None:
        super().__init__(url)
        self._endpoint = endpoint  # of a server that has the calls of the hub

    def parse(self) -> tuple[Address, str]:
        """Return the repository at the revision, which is ``main`` if none is named."""
        match = _URL.fullmatch(self.url)
        if match is None or {".", ".."} & set(match["repo"].split("/")):
            raise DownloadFailed(
                f"{self.url} does not name a dataset repository of the hub.",
                hint="hf://datasets/OWNER/REPO[/PATH][@REVISION]",
            )
        path = (match["path"] or "").strip("/")
        revision = match["pin"] or match["rev"] or _MAIN
        return Address("hf", match["repo"], "", revision), names.safe(path) if path else ""

    @property
    def service(self) -> str:
        """The repository, whatever the revision."""
        return self.parse()[0].root

    @property
    def names_everything(self) -> bool:
        """True without a path."""
        return not self.parse()[1]

    def matching(self, name: str) -> str:
        """Return the URL of a file that the listing of this pattern names."""
        address, path = self.parse()
        below = "/".join(filter(None, (names.fixed_directory(path), name)))
        revision = "" if address.revision == _MAIN else f"@{address.revision}"
        return f"hf://datasets/{address.root}{revision}/{below}"

    def at_revision(self, revision: str) -> str:
        """Return the URL of the same files at another revision."""
        address, path = self.parse()
        return f"hf://datasets/{address.root}@{revision}" + (f"/{path}" if path else "")

    def at_mirror(self, mirror: str) -> HubUrl:
        """Return the same files at a server that may have the calls of the hub."""
        return HubUrl(self.url, endpoint=mirror)

    def mirrored(self, tails: Sequence[str]) -> Iterator[str]:
        """Yield URLs in this repository; URLs of this kind are not quoted."""
        try:
            address, path = self.parse()
        except DownloadFailed:  # no address of the hub: the error of a file says so, if no place has it
            yield from super().mirrored(tails)
            return
        below = f"/{path}" if path else ""
        yield from (f"hf://datasets/{address.root}@{address.revision}{below}/{tail}" for tail in tails[:2])

    def request(self, where: Settings) -> str:
        """Return the HTTP address of a file at its revision."""
        address, path = self.parse()
        return _file_url(address.root, str(address.revision), where.hub, path)

    def request_root(self, where: Settings) -> str:
        """Return the HTTP address of all revisions of the repository."""
        return f"{where.hub}/datasets/{self.parse()[0].root}/resolve/"

    def single_file(self) -> RemoteFile | None:
        """Return the file if the path has the suffix of one."""
        return self._named()

    def _files(self, client: Client) -> Offer:
        """List the files at the commit that the revision names; URLs are those of it."""
        (asked, path), endpoint = self.parse(), (self._endpoint or client.where.hub).rstrip("/")
        try:
            revision, listed = hub_listing.find(client, endpoint, asked.root, str(asked.revision), path)
        except Permanent as exc:
            kind = DownloadFailed if exc.status == 404 else Unanswered
            raise kind(
                f"{endpoint} does not list {asked.root} at {asked.revision}: {exc.reason}. Nothing was written.",
                hint=f"{endpoint}/datasets/{asked.root} says who may read it; HF_TOKEN holds the token"
                if exc.status in (401, 403)
                else f"HF_ENDPOINT names another hub; {ELSEWHERE}",
            ) from exc
        url_of = partial(_file_url, asked.root, revision, endpoint)
        files = self._chosen(listed, url_of, f'{asked.root} at {revision} has nothing called "{path}".')

        def pinned(f: RemoteFile) -> RemoteFile:
            """Add the revision, and the address of the one that was named: a hash decides if it is the same file."""
            name = f.key.removeprefix(f"{asked.root}/")
            named = _file_url(asked.root, str(asked.revision), endpoint, name)
            urls = tuple(dict.fromkeys((*f.urls, named))) if f.hashed else f.urls
            return replace(f, urls=urls, revision=revision)

        return tuple(map(pinned, files))


def _file_url(repo: str, revision: str, endpoint: str, path: str) -> str:
    """Return the HTTP address of a file of a repository."""
    return f"{endpoint}/datasets/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"
