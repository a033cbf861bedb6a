"""Where the files of a lock are fetched: at the registry's places; elsewhere only what the registry has a hash of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from rlds_cli.entries import Entry, File
from rlds_cli.errors import RldsError
from rlds_cli.settings import Settings
from rlds_cli.transfer import buckets, hub, sources


def pinned(file: Mapping[str, Any], entry: Entry, where: Settings) -> File:
    """A file as it was: from where it came, else from where the registry knows it.

    What the registry says of its size and hash is what is promised, else what the lock says. An address that is none
    of the registry's counts only where the registry knows the hash: otherwise anybody could publish under the name.
    """
    name, url = str(file["file"]), file.get("url")
    known = next((f for f in entry.files if f.path == name), File(name, ()))
    came = [url] if url and _may_be_used(url, known, entry, where) else []
    return File(
        path=name,
        urls=tuple(dict.fromkeys([*came, *known.urls])),
        size=file.get("size") if known.size is None else known.size,
        sha256=known.sha256 or file.get("sha256"),
    )


def _may_be_used(url: str, known: File, entry: Entry, where: Settings) -> bool:
    if url.startswith("package:"):
        return url in known.urls
    return known.sha256 is not None or _is_known(url, known, entry, where)


def _is_known(url: str, known: File, entry: Entry, where: Settings) -> bool:
    """Whether an address is a place of the registry's, or below one."""
    try:
        asked = unquote(sources.https(url, where))
        roots = [unquote(root) for root in _roots(known, entry, where)]
    except RldsError:
        return False
    host = urlsplit(asked).netloc
    return ".." not in asked and any(asked.startswith(r) and urlsplit(r).netloc == host for r in roots)


def _roots(known: File, entry: Entry, where: Settings) -> Iterator[str]:
    yield from (sources.https(u, where) for u in known.urls)
    for url in entry.tree:
        if url.startswith("hf://"):
            yield f"{where.hub}/datasets/{hub.parse(url).repo}/resolve/"
        elif buckets.is_bucket(url):
            place = buckets.parse(url)
            yield f"{place.root(where)}/{place.path}"
        else:
            yield url
