"""Directories that a web server shows as a page of links, as Apache, nginx and Python's http.server do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import unescape
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.client import Client, Refused
from rlds_cli.downloads.sources import limits
from rlds_cli.downloads.sources.limits import Allowance
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import DownloadFailed

_DEEP = 16  # directories in directories
_TAG = re.compile(r"<(?:(?P<passed>!--|script\b|style\b)|a\s(?P<attributes>[^<>]{1,8192})>)", re.IGNORECASE)
_CLOSING = {"!--": "-->", "script": "</script", "style": "</style"}
_TARGET = re.compile(r"""(?:^|\s)href\s{0,8}=\s{0,8}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


def list_index(url: str, client: Client) -> tuple[RemoteFile, ...]:
    """The files below a directory, or those that a pattern with ``*`` means. Their sizes are not known.

    Raises
    ------
    DownloadFailed
        There is no such directory, or the server does not show what is in it.
    """
    parts = names.split(url)
    query = f"?{parts.query}" if parts.query else ""  # often what opens the door: asked of every page and file
    root = urlunsplit((parts.scheme, parts.netloc, "/", "", ""))
    wanted = unquote(parts.path).strip("/")
    start = names.fixed_directory(wanted) if "*" in wanted else wanted
    try:
        found = set(_below(root, f"{start}/" if start else "", query, client))
    except Refused as exc:
        raise DownloadFailed(
            f"{names.shown(url)} does not show its files: {exc.reason}. Nothing was written.",
            hint="--from DIR|URL takes the files from somewhere else",
        ) from exc
    chosen = names.selected(found, wanted)
    if not chosen:
        raise DownloadFailed(f"{names.shown(url)} has no files. Nothing was written.")
    names.all_safe(chosen.values())
    host = parts.netloc.rpartition("@")[2]
    return tuple(
        RemoteFile(path=path, urls=(root + quote(name) + query,), key=f"{host}/{name}") for name, path in chosen.items()
    )


def _below(root: str, start: str, query: str, client: Client) -> Iterator[str]:
    """Paths of all files below a directory, relative to the root of the server."""
    waiting, seen, allowance = [start], {start}, Allowance()
    while waiting:
        here = waiting.pop()
        allowance.ask(here)
        found = links(allowance.read(limits.body(client, root + quote(here) + query)))
        if here == start and not found:
            raise Refused("the answer is no page of links")
        for name in _names(found, root, here):
            if not allowance.take(name).endswith("/"):
                yield name
            elif name not in seen and name.count("/") - start.count("/") <= _DEEP:
                seen.add(name)
                waiting.append(name)


def links(page: bytes) -> list[str]:
    """What a page links to. Comments and scripts are passed over; the page is read once, however odd it is."""
    text, found, at = page.decode(errors="replace"), [], 0
    while tag := _TAG.search(text, at):
        at = tag.end()
        if closing := _CLOSING.get((tag["passed"] or "").lower()):
            end = _position(text, closing, at)
            at = len(text) if end < 0 else end
        elif tag["attributes"] and (target := _TARGET.search(tag["attributes"])):
            found.append(unescape(target[1] or target[2] or target[3] or ""))
    return [link for link in found if link]


def _position(text: str, what: str, at: int) -> int:
    match = re.compile(re.escape(what), re.IGNORECASE).search(text, at)
    return -1 if match is None else match.start()


def _names(links: Iterable[str], root: str, here: str) -> Iterator[str]:
    """What a page links to right below it; neither other servers, nor the directory above, nor ways to sort it."""
    for link in links:
        try:
            target = urljoin(root + quote(here), link)
            if urlsplit(link).query or not target.startswith(root):
                continue
        except ValueError:  # such as http://[
            continue
        name = unquote(urlsplit(target).path)[1:]
        below = name.removeprefix(here)
        if name.startswith(here) and below and "/" not in below[:-1]:
            yield name
