"""Zarr stores at addresses: ``https://HOST/buffer.zarr`` names the files below it, as its place lists them.

They arrive below a directory of the store's name, which is then one file of the archive. A web server may leave
names that begin with a dot out of its pages, and with them the documents of format 2: these are asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from rlds_cli.base import visible
from rlds_cli.base.files import names
from rlds_cli.base.files.bundles import DOCUMENTS
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.make.downloads import listing
from rlds_cli.places import RemoteFile, as_url

_ALL = "**"
_WAY = "a store in a zip is one file at any server: zip -0 -r buffer.zarr.zip . in its directory"
_REVISION = re.compile(r"(hf://datasets/[^/]+/[^/@]+)(/.+)@([^/@]+)")
_MOST_DIRECTORIES = 1 << 10  # that are asked for documents


def is_store(url: str) -> bool:
    """Return whether a URL is called as a store in a directory."""
    return "://" in url and not url.startswith("file:") and "*" not in url and bool(_name(url))


def parts(url: str) -> str:
    """Return the pattern of the files of a store."""
    if revision := _REVISION.fullmatch(url.rstrip("/")):
        url = f"{revision[1]}@{revision[3]}{revision[2]}"
    return names.join(url, _ALL, safe="/*")


def files(pattern: str, where: Settings, source: str | None) -> dict[str, RemoteFile]:
    """List the files of a pattern by URL. Those of a store are below its name, and include its documents.

    Raises
    ------
    DownloadFailed
        The place does not list them; of a store with the way for such a place.
    """
    end = f"/{_ALL}"
    store = _name(pattern.partition("?")[0].removesuffix(end)) if pattern.partition("?")[0].endswith(end) else ""
    try:
        found = listing.list_files([pattern], where, source=source)
    except DownloadFailed as e:
        raise DownloadFailed(e.message, hint=_WAY if store else e.hint) from e
    if store and not any(f.path.rpartition("/")[2] in DOCUMENTS for f in found):
        hidden = tuple(_documents(pattern, found, where)) if as_url(pattern).is_unlisted else ()
        if not hidden:
            raise DownloadFailed(
                f"{visible.shown(pattern)} is no Zarr store: it lists no {', '.join(DOCUMENTS)}. Nothing was written.",
                hint=_WAY,
            )
        found = (*found, *hidden)
    above = f"{store}/" if store else ""
    return {as_url(pattern).matching(f.path): replace(f, path=f"{above}{f.path}") for f in found}


def _name(url: str) -> str:
    """Return the name of the directory of a store that a URL ends with; empty for others."""
    url = _REVISION.sub(r"\1\2", url.rstrip("/")) if url.startswith("hf://") else url
    name = unquote(urlsplit(url).path.rstrip("/")).rpartition("/")[2]
    return name if name.lower().endswith(".zarr") and "*" not in name else ""


def _documents(pattern: str, found: Sequence[RemoteFile], where: Settings) -> Iterator[RemoteFile]:
    """Yield the documents of format 2 that a page of links does not show: what is below an array is a chunk."""
    directories = {"", *("/".join(f.path.split("/")[:k]) for f in found for k in range(1, f.path.count("/") + 1))}
    arrays = set[str]()
    for n, directory in enumerate(sorted(directories)):
        if n > _MOST_DIRECTORIES:
            raise DownloadFailed(
                f"{visible.shown(pattern)} has more than {_MOST_DIRECTORIES:,} directories.", hint=_WAY
            )
        if any(directory.startswith(f"{array}/") or not array for array in arrays):
            continue
        for name in (".zarray", ".zgroup", ".zattrs"):
            path = f"{directory}/{name}".lstrip("/")
            file = RemoteFile(path=path, urls=(as_url(pattern).matching(path),), key=path)
            try:
                listing.read(file, where)
            except DownloadFailed:
                continue
            yield file
            arrays |= {directory} if name == ".zarray" else set()
