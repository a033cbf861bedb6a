"""Listings of dataset repositories over the hub's public HTTP API; their files are plain HTTPS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.client import Client, Refused
from rlds_cli.downloads.sources.limits import Allowance
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import DownloadFailed

_URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<pin>refs/(?:pr|convert)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<path>.*?))?/?(?:@(?P<rev>[^@]+))?"
)


class Unanswered(DownloadFailed):
    """A hub that did not say whether it has something; it would not say so of another revision either."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file, a directory, a pattern or a prefix in a dataset repository at a revision."""

    repo: str
    path: str
    revision: str

    def url_of(self, path: str, endpoint: str) -> str:
        """Where a file of the repository is fetched."""
        return f"{endpoint}/datasets/{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(path)}"


def parse(url: str) -> Place:
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
    return Place(match["repo"], names.safe(path) if path else "", match["pin"] or match["rev"] or "main")


def at(url: str, revision: str) -> str:
    """The same place at another revision; URLs that are none of the hub as they are."""
    if not url.startswith("hf://"):
        return url
    place = parse(url)
    return f"hf://datasets/{place.repo}@{revision}" + (f"/{place.path}" if place.path else "")


def https(url: str, endpoint: str) -> str:
    """Where a file is fetched: ``hf://`` URLs of files as HTTPS, others as they are."""
    if not url.startswith("hf://"):
        return url
    place = parse(url)
    return place.url_of(place.path, endpoint)


def list_hub(url: str, client: Client, *, endpoint: str | None = None) -> tuple[RemoteFile, ...]:
    """The files that a hub URL means, with their sizes, hashes and the commit that they are pinned to.

    Raises
    ------
    DownloadFailed
        When the hub does not know the repository, or has no such file in it; Unanswered, when it does not answer.
    """
    asked = parse(url)
    endpoint = endpoint or client.where.hub
    try:
        place, entries = _pinned(asked, client, endpoint)
    except Refused as exc:
        kind = DownloadFailed if exc.status == 404 else Unanswered
        raise kind(
            f"{endpoint} does not list {asked.repo} at {asked.revision}: {exc.reason}. Nothing was written.",
            hint=f"{endpoint}/datasets/{asked.repo} says who may read it; HF_TOKEN holds the token"
            if exc.status in (401, 403)
            else "HF_ENDPOINT names another hub; --from DIR|URL takes the files from somewhere else",
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
    """Servers that stand in for the hub may hold the named revision only; the hash tells whether it is the same."""
    return replace(file, urls=(*file.urls, url)) if file.hashed else file


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a listing says of a file, as far as it can be true; anything else counts as not said."""

    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None

    @classmethod
    def of(cls, said: dict[str, Any]) -> _Entry:
        lfs = said.get("lfs")
        if isinstance(lfs, dict) and lfs:
            sha256 = _hash(_text(lfs.get("oid")).removeprefix("sha256:"), 64)
            return cls(_size(lfs.get("size", said.get("size"))), sha256)
        # What is in LFS has a pointer for its content in git, whose name says nothing of the file.
        return cls(_size(said.get("size")), None, None if lfs else _hash(_text(said.get("oid")), 40))


def _file(place: Place, path: str, name: str, entry: _Entry, endpoint: str) -> RemoteFile:
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
    """A hash in lower case; None for the zeros or the running number of a server that knows none."""
    text = text.lower()
    return text if re.fullmatch(f"[0-9a-f]{{{digits}}}", text) and len(set(text)) >= 8 else None


def _commit(value: object) -> str | None:
    """What a server calls a commit, where that can be part of an address."""
    return value if isinstance(value, str) and re.fullmatch(r"\w[\w.-]{0,127}", value, re.ASCII) else None


def _pinned(place: Place, client: Client, endpoint: str) -> tuple[Place, dict[str, _Entry]]:
    """The place at its commit where the hub tells it, and the entries of its files by path."""
    info = _info(place, client, endpoint)
    if commit := _commit(info.get("sha")):
        pinned = Place(place.repo, place.path, commit)
        try:
            return pinned, _Tree(client, endpoint, pinned).files()
        except Refused as exc:
            if exc.status != 404:
                raise
    tree = _Tree(client, endpoint, place)
    try:
        entries = tree.files()
    except Refused as exc:
        entries = _siblings(info)
        if exc.status != 404 or not entries:
            raise
    return Place(place.repo, place.path, tree.commit or place.revision), entries


def _siblings(info: dict[str, Any]) -> dict[str, _Entry]:
    """The files that the revision call lists; their sizes and hashes are not told there."""
    said, allowance = info.get("siblings"), Allowance()
    found = [s.get("rfilename") for s in said if isinstance(s, dict)] if isinstance(said, list) else []
    return {allowance.take(name): _Entry() for name in found if isinstance(name, str)}


def _info(place: Place, client: Client, endpoint: str) -> dict[str, Any]:
    """What the hub says of the revision; empty where the server does not know the call."""
    try:
        value = client.json(f"{endpoint}/api/datasets/{place.repo}/revision/{quote(place.revision, safe='')}").value
    except Refused as exc:
        if not exc.status or exc.status in (401, 429):
            raise
        return {}
    return value if isinstance(value, dict) else {}


class _Tree:
    """The tree call, for servers that know subdirectories, recursion and pages, and for those that do not."""

    def __init__(self, client: Client, endpoint: str, place: Place) -> None:
        self._client = client
        self._place = place
        self._root = f"{endpoint}/api/datasets/{place.repo}/tree/{quote(place.revision, safe='')}"
        self._allowance = Allowance()
        self.commit: str | None = None

    def files(self) -> dict[str, _Entry]:
        """Entries of all files that may belong to the place, by path; raises Refused."""
        path = self._place.path
        start = names.fixed_directory(path) if "*" in path else path
        while True:
            self._allowance = Allowance()  # of this walk: the one before may have been to the same directories
            try:
                entries = self._below(start)
            except Refused as exc:
                if exc.status != 404 or not start:
                    raise
            else:
                answered_below = bool(entries) and all(e.startswith(start + "/") for e in entries)
                if not start or answered_below or names.selected(entries, path):
                    return entries
            start = start.rpartition("/")[0]

    def _below(self, directory: str) -> dict[str, _Entry]:
        files: dict[str, _Entry] = {}
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
                    files[path] = _Entry.of(said)
                    opened.update(_above(path))
                elif kind == "directory" and self._concerns(path):
                    folders.add(path)
            waiting += sorted(folders - opened)
        return files

    def _concerns(self, folder: str) -> bool:
        """Whether files of the place may lie in the folder."""
        fixed = self._place.path.split("*")[0]
        return folder.startswith(fixed) or fixed.startswith(folder + "/")

    def _entries(self, directory: str) -> Iterator[tuple[str, dict[str, Any]]]:
        below = f"/{quote(directory)}" if directory else ""
        url: str | None = f"{self._root}{below}?recursive=true&expand=false"
        while url and self._allowance.ask(url):
            page = self._client.json(url)
            self.commit = self.commit or _commit(page.commit)
            if not isinstance(page.value, list):
                raise Refused("the answer is not a list of files")
            for entry in page.value:
                path = entry.get("path") if isinstance(entry, dict) else None
                if not isinstance(path, str):
                    raise Refused("the answer is not a list of files")
                yield self._allowance.take(path), entry
            url = page.following


def _above(path: str) -> Iterator[str]:
    """The directories that a file is in, from the nearest up."""
    while path := path.rpartition("/")[0]:
        yield path
