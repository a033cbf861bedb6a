"""URLs and paths of this machine, and of the files that come with the package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files as resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rlds_cli.base import settings
from rlds_cli.base.files import names, trees
from rlds_cli.base.http.client import Client
from rlds_cli.errors import DownloadFailed
from rlds_cli.places.files.records import FileRecord
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.urls.url import Offer, Url

_PACKAGE = "package:"


class DirectoryUrl(Url):
    """``file:<path>``, ``<path>`` or ``package:samples/...``."""

    usage = "file://"
    shareable = False

    def parse(self) -> tuple[Address, str]:
        """Return the root of the file system, and the path there."""
        return Address("file", "", "/"), self.local_path.as_posix().lstrip("/")

    @property
    def local_path(self) -> Path:
        """The path that is named; it need not exist. ``package:`` is the installed package."""
        if self.url.startswith(_PACKAGE):
            inside = self.url.removeprefix(_PACKAGE)
            return Path(str(resources("rlds_cli")), names.safe(inside) if inside else "")
        if not self.url.startswith("file:"):
            return settings.expanded(self.url).absolute()
        parts = urlsplit(self.url)
        if parts.netloc not in ("", "localhost"):
            raise DownloadFailed(f"{self.url} names another machine.", hint="file:///absolute/path")
        return Path(unquote(parts.path)).absolute()

    def mirrored(self, tails: Sequence[str]) -> Iterator[str]:
        """Yield the files below this directory that exist, at any tail."""
        path = self.local_path
        yield from (p.as_uri() for p in (path / tail for tail in tails) if p.is_file())

    def known_files(self) -> Offer:
        """Return the files on this disk, with their sizes; raises DownloadFailed if there are none."""
        path = self.local_path
        base = path.parent
        while "*" in str(base):
            base = base.parent
        pattern = path.relative_to(base).as_posix()
        found = names.selected(_below(base, pattern), pattern)
        listed = []
        for name, short in found.items():
            file = base / name
            if _is_record(file):
                continue
            url = file.as_uri()
            if self.url.startswith(_PACKAGE):  # written as this one is
                url = _PACKAGE + file.relative_to(str(resources("rlds_cli"))).as_posix()
            listed.append(RemoteFile(path=short, urls=(url,), size=file.stat().st_size, key=file.as_posix()))
        if not listed:
            raise DownloadFailed(f"{self.url} does not exist, or holds no files. Nothing was written.")
        names.all_safe(f.path for f in listed)
        return tuple(listed)

    def _files(self, client: Client) -> Offer:
        return self.known_files()


def _below(base: Path, pattern: str) -> Iterator[str]:
    """Yield names of files, relative to ``base``, that may match; walks no other directory."""
    start = pattern.split("*")[0].split("/")[0]
    try:
        entries = list(os.scandir(base))
    except OSError:
        return
    for entry in entries:
        if not (entry.name.startswith(start) if "*" in pattern else entry.name == start):
            continue
        if entry.is_file():
            yield entry.name
        for file in trees.files(Path(entry.path)) if entry.is_dir() else ():
            yield file.relative_to(base).as_posix()


def _is_record(path: Path) -> bool:
    """Return whether a file is the record of the file beside it. Records of other users may be unreadable."""
    return (
        path.suffix == ".json"
        and path.with_suffix("").is_file()
        and (FileRecord.read(path.with_suffix("")) is not None or not os.access(path, os.R_OK))
    )
