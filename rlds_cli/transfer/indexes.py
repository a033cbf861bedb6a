"""Directories that a web server shows as a page of links, as Apache, nginx and Python's http.server do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from rlds_cli.errors import DownloadFailed
from rlds_cli.transfer import names, reading
from rlds_cli.transfer.client import Client, Refused
from rlds_cli.transfer.remote import RemoteFile

_DEEP = 16  # directories in directories
_MANY = 10_000  # pages


def list_index(url: str, client: Client) -> tuple[RemoteFile, ...]:
    """The files below a directory, or those that a pattern with ``*`` means. Their sizes are not known.

    Raises
    ------
    DownloadFailed
        There is no such directory, or the server does not show what is in it.
    """
    parts = urlsplit(url)
    root = urlunsplit((parts.scheme, parts.netloc, "/", "", ""))
    wanted = unquote(parts.path).strip("/")
    start = names.fixed_directory(wanted) if "*" in wanted else wanted
    try:
        found = set(_below(root, f"{start}/" if start else "", client))
    except Refused as exc:
        raise DownloadFailed(
            f"{names.shown(url)} does not show its files: {exc.reason}. Nothing was written.",
            hint="--from DIR|URL takes the files from somewhere else",
        ) from None
    chosen = names.selected(found, wanted)
    if not chosen:
        raise DownloadFailed(f"{names.shown(url)} has no files. Nothing was written.")
    names.all_safe(chosen.values())
    host = parts.netloc.rpartition("@")[2]
    return tuple(
        RemoteFile(path=path, urls=(root + quote(name),), key=f"{host}/{name}") for name, path in chosen.items()
    )


def _below(root: str, start: str, client: Client) -> Iterator[str]:
    """Paths of all files below a directory, relative to the root of the server."""
    waiting, seen = [start], {start}
    while waiting:
        here = waiting.pop()
        links = _links(reading.body(client, root + quote(here)))
        if here == start and not links:
            raise Refused("the answer is no page of links")
        for name in _names(links, root, here):
            if not name.endswith("/"):
                yield name
            elif name not in seen and name.count("/") - start.count("/") <= _DEEP:
                seen.add(name)
                waiting.append(name)
        if len(seen) > _MANY:
            raise Refused(f"there are more than {_MANY:,} directories")


def _links(page: bytes) -> list[str]:
    parser = _Parser()
    parser.feed(page.decode(errors="replace"))
    return parser.found


def _names(links: Iterable[str], root: str, here: str) -> Iterator[str]:
    """What a page links to right below it; neither other servers, nor the directory above, nor ways to sort it."""
    for link in links:
        target = urljoin(root + quote(here), link)
        if urlsplit(link).query or not target.startswith(root):
            continue
        name = unquote(urlsplit(target).path)[1:]
        below = name.removeprefix(here)
        if name.startswith(here) and below and "/" not in below[:-1]:
            yield name


class _Parser(HTMLParser):
    """Collects the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
