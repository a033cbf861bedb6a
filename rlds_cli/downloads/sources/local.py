"""Files on this machine: ``file:`` URLs, paths, and samples inside the installed package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rlds_cli import settings
from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.parts import FileRecord
from rlds_cli.downloads.sources.protocol import FileSource, RemoteFile
from rlds_cli.errors import DownloadFailed
from rlds_cli.files import trees

if TYPE_CHECKING:
    from rlds_cli.http.client import Client

_PACKAGE = "package:"


def path_of(url: str) -> Path:
    """Return the path of a ``file:`` URL, a ``package:`` URL or a plain path; it need not exist."""
    if url.startswith(_PACKAGE):
        inside = url.removeprefix(_PACKAGE)
        return Path(str(resources("rlds_cli")), names.safe(inside) if inside else "")
    if not url.startswith("file:"):
        return settings.expanded(url).absolute()
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise DownloadFailed(f"{url} names another machine.", hint="file:///absolute/path")
    return Path(unquote(parts.path)).absolute()


def list_local(url: str) -> tuple[RemoteFile, ...]:
    """List a file, the files below a directory, or those that match a pattern with ``*``.

    Raises
    ------
    DownloadFailed
        There are none.
    """
    wanted = path_of(url)
    base = wanted.parent
    while "*" in str(base):
        base = base.parent
    pattern = wanted.relative_to(base).as_posix()
    found = names.selected(_below(base, pattern), pattern)
    listed = [_file(url, base / path, name) for path, name in found.items() if not _is_record(base / path)]
    if not listed:
        raise DownloadFailed(f"{url} does not exist, or holds no files. Nothing was written.")
    names.all_safe(f.path for f in listed)
    return tuple(listed)


def _file(url: str, path: Path, name: str) -> RemoteFile:
    inside = url.startswith(_PACKAGE)
    origin = _PACKAGE + path.relative_to(path_of(_PACKAGE)).as_posix() if inside else path.as_uri()
    return RemoteFile(path=name, urls=(origin,), size=path.stat().st_size, key=path.as_posix())


def _below(base: Path, pattern: str) -> Iterator[str]:
    """Yield names of files, relative to ``base``, that may match; walks no other directory."""
    start = pattern.split("*")[0].split("/")[0]
    try:
        entries = [e for e in os.scandir(base) if (e.name.startswith(start) if "*" in pattern else e.name == start)]
    except OSError:
        return
    for entry in entries:
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


class _LocalSource(FileSource):
    """Paths, ``file:`` URLs, and ``package:`` names of files inside the installed package."""

    usage = "file://"
    shareable = False

    def key(self, url: str) -> str:
        return path_of(url).as_posix()

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        return list_local(url)

    def list_offline(self, url: str) -> tuple[RemoteFile, ...]:
        return list_local(url)

    def local_path(self, url: str) -> Path:
        return path_of(url)

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        path = path_of(mirror)
        yield from (p.as_uri() for p in (path / tail for tail in tails) if p.is_file())


LOCAL = _LocalSource()
