"""URLs of web servers."""

from __future__ import annotations

from urllib.parse import unquote, urlunsplit

from rlds_cli.base import visible
from rlds_cli.base.files import names
from rlds_cli.base.http.client import Client, RetryPolicy
from rlds_cli.base.http.connections import Permanent, Retryable
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.web import WebPlace
from rlds_cli.places.urls.url import Offer, Url


class WebUrl(Url):
    """``http(s)://.../file``, or ``.../directory/`` where the server shows pages of links."""

    usage = "http(s)://"

    @property
    def is_unlisted(self) -> bool:
        """True: it may show no directories."""
        return True

    def parse(self) -> tuple[Address, str]:
        """Return the server, with the query of the URL: it is often a token, and sent with every page and file."""
        parts = names.split(self.url)
        root = urlunsplit((parts.scheme, parts.netloc, "/", parts.query, ""))
        return Address(parts.scheme, parts.netloc.rpartition("@")[2], "", url=root), unquote(parts.path).strip("/")

    def matching(self, name: str) -> str:
        """Return the URL of a file that the listing of this pattern names."""
        place, mark, query = self.url.partition("#")[0].partition("?")
        return names.join(f"{names.fixed_directory(place)}{mark}{query}", name)

    def single_file(self) -> RemoteFile | None:
        """Return the file, but for a pattern or a directory; raises DownloadFailed if it has no host."""
        parts = names.split(self.url)
        if "*" in parts.path or parts.path.endswith("/"):
            return None
        host = parts.netloc.rpartition("@")[2]
        if not host:
            raise DownloadFailed(f"{visible.shown(self.url)} names no host.")
        return RemoteFile(path=names.basename(self.url), urls=(self.url,), key=unquote(f"{host}{parts.path}"))

    def known_files(self) -> Offer | None:
        """Return the file that its form alone names."""
        file = self.single_file()
        return None if file is None else (file,)

    def answers(self, where: Settings) -> bool:
        """Return whether the server answers at all."""
        with Client(where, policy=RetryPolicy(connect=5.0, read=5.0)) as client:
            try:
                with client.open(self.url):
                    return True
            except Permanent as exc:
                return exc.status > 0
            except (Retryable, ValueError):  # ValueError: not a valid address
                return False

    def _files(self, client: Client) -> Offer:
        """Read the pages of links of the directory, or of the one that is above the pattern."""
        address, path = self.parse()
        start = names.fixed_directory(path) if "*" in path else path
        deep = path.count("/") - start.count("/") - bool(start) if "*" in path and "**" not in path else None
        place = WebPlace(address, client, deep=deep)
        listed = {m.name: m for m in place.list(f"{start}/" if start else "")}
        return self._chosen(listed, place.url, f"{visible.shown(self.url)} has no files. Nothing was written.")
