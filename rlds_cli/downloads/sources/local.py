"""Files that are on this machine already: ``file:`` URLs, paths, and samples inside the installed package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files as resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rlds_cli import settings
from rlds_cli.downloads import names
from rlds_cli.downloads.fetch import sidecars
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import DownloadFailed
from rlds_cli.files import trees

_PACKAGE = "package:"


def is_local(url: str) -> bool:
    """Whether a source is on this machine."""
    return "://" not in url or url.startswith("file:")


def path_of(url: str) -> Path:
    """The path that a ``file:`` URL, a ``package:`` URL or a plain path means; it need not exist."""
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
    """The file, the files below the directory, or those that match the ``*`` that a local source means.

    Raises
    ------
    DownloadFailed
        Where there is nothing.
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
    """Names of files, relative to ``base``, that may match; other parts of ``base`` are not walked."""
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
    """Whether a file is a record, beside the file that it describes; those of other users cannot be read."""
    return (
        path.suffix == ".json"
        and path.with_suffix("").is_file()
        and (sidecars.Record.read(path.with_suffix("")) is not None or not os.access(path, os.R_OK))
    )
