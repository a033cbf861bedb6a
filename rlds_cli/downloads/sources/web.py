"""Web servers: single files, and directories that a server shows as a page of links.

Apache, nginx and Python's http.server show such pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import unescape
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from rlds_cli.downloads import names
from rlds_cli.downloads.sources.protocol import FileSource, ListingLimits, RemoteFile
from rlds_cli.errors import DownloadFailed
from rlds_cli.http.client import Client, RetryPolicy
from rlds_cli.http.connections import Permanent, Retryable
from rlds_cli.settings import Settings

_DEEP = 16  # directories in directories
_TAG = re.compile(r"<(?:(?P<passed>!--|script\b|style\b)|a\s(?P<attributes>[^<>]{1,8192})>)", re.IGNORECASE)
_CLOSING = {"!--": "-->", "script": "</script", "style": "</style"}
_TARGET = re.compile(r"""(?:^|\s)href\s{0,8}=\s{0,8}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


def list_index(url: str, client: Client) -> tuple[RemoteFile, ...]:
    """List the files below a directory, or those that match a pattern with ``*``. Their sizes are not known.

    Raises
    ------
    DownloadFailed
        There is no such directory, or the server does not list it.
    """
    parts = names.split(url)
    query = f"?{parts.query}" if parts.query else ""  # often a token: sent with every page and file
    root = urlunsplit((parts.scheme, parts.netloc, "/", "", ""))
    wanted = unquote(parts.path).strip("/")
    start = names.fixed_directory(wanted) if "*" in wanted else wanted
    try:
        found = set(_below(root, f"{start}/" if start else "", query, client))
    except Permanent as exc:
        raise DownloadFailed(
            f"{names.shown(url)} does not list its files: {exc.reason}. Nothing was written.",
            hint="--from DIR|URL takes the files from another source",
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
    """Yield the paths of all files below a directory, relative to the root of the server."""
    waiting, seen, limit = [start], {start}, ListingLimits()
    while waiting:
        here = waiting.pop()
        limit.ask(here)
        found = links(limit.read(client.document(root + quote(here) + query)[0]))
        if here == start and not found:
            raise Permanent("the answer is not a page of links")
        for name in _names(found, root, here):
            if not limit.take(name).endswith("/"):
                yield name
            elif name not in seen and name.count("/") - start.count("/") <= _DEEP:
                seen.add(name)
                waiting.append(name)


def links(page: bytes) -> list[str]:
    """Return the links of a page, without comments and scripts. Takes linear time for any input."""
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
    """Yield linked names directly below a directory; not other servers, the parent directory or sort orders."""
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


def http_file(url: str) -> RemoteFile:
    """Return the file that an HTTP URL names, without a request; raises DownloadFailed where it names none."""
    parts = names.split(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise DownloadFailed(f"{names.shown(url)} names no host.")
    return RemoteFile(path=names.basename(url), urls=(url,), key=unquote(f"{host}{parts.path}"))


class _WebSource(FileSource):
    """``http://`` and ``https://``."""

    usage = "http(s)://"
    lists_mirrors = False

    def key(self, url: str) -> str:
        parts = names.split(url)
        return unquote(f"{parts.netloc.rpartition('@')[2]}{parts.path}").rstrip("/")

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        return list_index(url, client)

    def list_offline(self, url: str) -> tuple[RemoteFile, ...] | None:
        file = self.single_file(url)
        return None if file is None else (file,)

    def single_file(self, url: str) -> RemoteFile | None:
        path = names.split(url).path
        return None if "*" in path or path.endswith("/") else http_file(url)

    def answers(self, mirror: str, where: Settings) -> bool:
        with Client(where, policy=RetryPolicy(connect=5.0, read=5.0)) as client:
            try:
                with client.open(mirror):
                    return True
            except Permanent as exc:
                return exc.status > 0
            except (Retryable, ValueError):  # ValueError: not a valid address
                return False


WEB = _WebSource()
