"""List dataset repositories with the hub's public HTTP API. Their files are plain HTTPS downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from rlds_cli.downloads import names
from rlds_cli.downloads.sources.protocol import FileSource, ListingLimits, RemoteFile, Unanswered
from rlds_cli.errors import DownloadFailed
from rlds_cli.http.client import Client
from rlds_cli.http.connections import Permanent
from rlds_cli.settings import Settings

_URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<pin>refs/(?:pr|convert)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<path>.*?))?/?(?:@(?P<rev>[^@]+))?"
)


@dataclass(frozen=True, slots=True)
class HubLocation:
    """A file, a directory, a pattern or a prefix in a dataset repository at a revision."""

    repo: str
    path: str
    revision: str

    def url_of(self, path: str, endpoint: str) -> str:
        """Return the HTTP address of a file of the repository."""
        return f"{endpoint}/datasets/{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(path)}"


def parse(url: str) -> HubLocation:
    """Read ``hf://datasets/<owner>/<repo>[@rev][/<path>]`` or ``...[/<path>]@rev``; without a revision, ``main``.

    Raises
    ------
    DownloadFailed
        For anything else.
    """
    match = _URL.fullmatch(url)
    if match is None or {".", ".."} & set(match["repo"].split("/")):
        raise DownloadFailed(
            f"{url} does not name a dataset repository of the hub.",
            hint="hf://datasets/OWNER/REPO[/PATH][@REVISION]",
        )
    path = (match["path"] or "").strip("/")
    return HubLocation(match["repo"], names.safe(path) if path else "", match["pin"] or match["rev"] or "main")


def list_hub(url: str, client: Client, *, endpoint: str | None = None) -> tuple[RemoteFile, ...]:
    """List the files of a hub URL, with sizes, hashes and the commit that they are pinned to.

    Raises
    ------
    DownloadFailed
        When the hub does not know the repository, or has no such file in it; Unanswered, when it does not answer.
    """
    asked = parse(url)
    endpoint = endpoint or client.where.hub
    try:
        place, entries = _pinned(asked, client, endpoint)
    except Permanent as exc:
        kind = DownloadFailed if exc.status == 404 else Unanswered
        raise kind(
            f"{endpoint} does not list {asked.repo} at {asked.revision}: {exc.reason}. Nothing was written.",
            hint=f"{endpoint}/datasets/{asked.repo} says who may read it; HF_TOKEN holds the token"
            if exc.status in (401, 403)
            else "HF_ENDPOINT names another hub; --from DIR|URL takes the files from another source",
        ) from exc
    chosen = names.selected(entries, place.path)
    if not chosen:
        raise DownloadFailed(f'{place.repo} at {place.revision} has nothing called "{place.path}".')
    files = [_file(place, path, name, entries[path], endpoint) for path, name in chosen.items()]
    if place != asked:
        files = [_also_unpinned(f, asked.url_of(path, endpoint)) for f, path in zip(files, chosen, strict=True)]
    names.all_safe(f.path for f in files)
    return tuple(files)


def _also_unpinned(file: RemoteFile, url: str) -> RemoteFile:
    """Add the unpinned address: a mirror may hold only the named revision, and the hash decides if it is the same."""
    return replace(file, urls=(*file.urls, url)) if file.hashed else file


@dataclass(frozen=True, slots=True)
class _HubFile:
    """Size and hashes of a listed file; None for values that are not valid."""

    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None

    @classmethod
    def of(cls, said: dict[str, Any]) -> _HubFile:
        lfs = said.get("lfs")
        if isinstance(lfs, dict) and lfs:
            sha256 = _hash(_text(lfs.get("oid")).removeprefix("sha256:"), 64)
            return cls(_size(lfs.get("size", said.get("size"))), sha256)
        # Git holds only a pointer for a file in LFS: the hash of the pointer is not that of the file.
        return cls(_size(said.get("size")), None, None if lfs else _hash(_text(said.get("oid")), 40))


def _file(place: HubLocation, path: str, name: str, entry: _HubFile, endpoint: str) -> RemoteFile:
    return RemoteFile(
        path=name,
        urls=(place.url_of(path, endpoint),),
        size=entry.size,
        sha256=entry.sha256,
        git_sha1=entry.git_sha1,
        revision=place.revision,
        key=f"{place.repo}/{path}",
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _hash(text: str, digits: int) -> str | None:
    """Return a hash in lower case; None for the zeros or running numbers of servers without hashes."""
    text = text.lower()
    return text if re.fullmatch(f"[0-9a-f]{{{digits}}}", text) and len(set(text)) >= 8 else None


def _commit(value: object) -> str | None:
    """Return the commit that a server names, if it can be part of an address."""
    return value if isinstance(value, str) and re.fullmatch(r"\w[\w.-]{0,127}", value, re.ASCII) else None


def _pinned(place: HubLocation, client: Client, endpoint: str) -> tuple[HubLocation, dict[str, _HubFile]]:
    """Return the location, pinned to its commit if the hub names one, and its files by path."""
    info = _info(place, client, endpoint)
    if commit := _commit(info.get("sha")):
        pinned = HubLocation(place.repo, place.path, commit)
        try:
            return pinned, _Tree(client, endpoint, pinned).files()
        except Permanent as exc:
            if exc.status != 404:
                raise
    tree = _Tree(client, endpoint, place)
    try:
        entries = tree.files()
    except Permanent as exc:
        entries = _siblings(info)
        if exc.status != 404 or not entries:
            raise
    return HubLocation(place.repo, place.path, tree.commit or place.revision), entries


def _siblings(info: dict[str, Any]) -> dict[str, _HubFile]:
    """Return the files that the revision call lists, without sizes and hashes."""
    said, limit = info.get("siblings"), ListingLimits()
    found = [s.get("rfilename") for s in said if isinstance(s, dict)] if isinstance(said, list) else []
    return {limit.take(name): _HubFile() for name in found if isinstance(name, str)}


def _info(place: HubLocation, client: Client, endpoint: str) -> dict[str, Any]:
    """Return the hub's answer about the revision; empty if the server does not have the call."""
    try:
        value = client.json(f"{endpoint}/api/datasets/{place.repo}/revision/{quote(place.revision, safe='')}").value
    except Permanent as exc:
        if not exc.status or exc.status in (401, 429):
            raise
        return {}
    return value if isinstance(value, dict) else {}


class _Tree:
    """The tree call, on servers with or without subdirectories, recursion and pages."""

    def __init__(self, client: Client, endpoint: str, place: HubLocation) -> None:
        self._client = client
        self._place = place
        self._root = f"{endpoint}/api/datasets/{place.repo}/tree/{quote(place.revision, safe='')}"
        self._allowance = ListingLimits()
        self.commit: str | None = None

    def files(self) -> dict[str, _HubFile]:
        """Return all files that may belong to the location, by path; raises Permanent."""
        path = self._place.path
        start = names.fixed_directory(path) if "*" in path else path
        while True:
            self._allowance = ListingLimits()  # a new one: the previous walk may have read the same directories
            try:
                entries = self._below(start)
            except Permanent as exc:
                if exc.status != 404 or not start:
                    raise
            else:
                answered_below = bool(entries) and all(e.startswith(start + "/") for e in entries)
                if not start or answered_below or names.selected(entries, path):
                    return entries
            start = start.rpartition("/")[0]

    def _below(self, directory: str) -> dict[str, _HubFile]:
        files: dict[str, _HubFile] = {}
        opened: set[str] = set()  # directories whose files are listed already
        waiting = [directory]
        while waiting:
            here = waiting.pop()
            if here in opened:
                continue
            opened.add(here)
            folders = set()
            for path, said in self._entries(here):
                kind = said.get("type", "file")
                if kind == "file":
                    files[path] = _HubFile.of(said)
                    opened.update(_above(path))
                elif kind == "directory" and self._concerns(path):
                    folders.add(path)
            waiting += sorted(folders - opened)
        return files

    def _concerns(self, folder: str) -> bool:
        """Return whether a folder may hold files of the location."""
        fixed = self._place.path.split("*")[0]
        return folder.startswith(fixed) or fixed.startswith(folder + "/")

    def _entries(self, directory: str) -> Iterator[tuple[str, dict[str, Any]]]:
        below = f"/{quote(directory)}" if directory else ""
        url: str | None = f"{self._root}{below}?recursive=true&expand=false"
        while url and self._allowance.ask(url):
            page = self._client.json(url)
            self.commit = self.commit or _commit(page.commit)
            if not isinstance(page.value, list):
                raise Permanent("the answer is not a list of files")
            for entry in page.value:
                path = entry.get("path") if isinstance(entry, dict) else None
                if not isinstance(path, str):
                    raise Permanent("the answer is not a list of files")
                yield self._allowance.take(path), entry
            url = page.following


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a file, nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


class _HubSource(FileSource):
    """``hf://datasets/<owner>/<repo>[@<revision>][/<path>]``."""

    usage = "hf://datasets/"
    has_api = True

    def key(self, url: str) -> str:
        place = parse(url)
        return f"{place.repo}/{place.path}".rstrip("/")

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        return list_hub(url, client)

    def list_at(self, url: str, mirror: str, client: Client) -> tuple[RemoteFile, ...]:
        return list_hub(url, client, endpoint=mirror.rstrip("/"))

    def list_offline(self, url: str) -> None:
        parse(url)

    def single_file(self, url: str) -> RemoteFile | None:
        place = parse(url)
        if "*" in place.path or not names.has_suffix(place.path):
            return None
        name = place.path.rpartition("/")[2]
        return RemoteFile(path=name, urls=(url,), revision=place.revision, key=f"{place.repo}/{place.path}")

    def request_url(self, url: str, where: Settings) -> str:
        place = parse(url)
        return place.url_of(place.path, where.hub)

    def root(self, url: str, where: Settings) -> str:
        """All revisions of the repository."""
        return f"{where.hub}/datasets/{parse(url).repo}/resolve/"

    def at_revision(self, url: str, revision: str) -> str:
        place = parse(url)
        return f"hf://datasets/{place.repo}@{revision}" + (f"/{place.path}" if place.path else "")

    def service(self, url: str) -> str:
        return parse(url).repo

    def is_repository(self, url: str) -> bool:
        return not parse(url).path

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        try:
            place = parse(mirror)
        except DownloadFailed:  # no address of the hub: the error of a file says so, if no source has it
            yield from super().mirror_urls(mirror, tails)
            return
        below = f"/{place.path}" if place.path else ""
        # addresses of this scheme are not quoted
        yield from (f"hf://datasets/{place.repo}@{place.revision}{below}/{tail}" for tail in tails[:2])


HUB = _HubSource()
