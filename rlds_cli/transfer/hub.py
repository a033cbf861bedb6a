"""Listings of dataset repositories over the hub's public HTTP API; their files are plain HTTPS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from rlds_cli.errors import DownloadFailed
from rlds_cli.transfer import names
from rlds_cli.transfer.client import Client, Refused
from rlds_cli.transfer.remote import RemoteFile

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
        ) from None
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


def _file(place: Place, path: str, name: str, entry: dict[str, Any], endpoint: str) -> RemoteFile:
    lfs = entry.get("lfs") or {}
    oid = str(lfs.get("oid") or "").removeprefix("sha256:").lower()
    blob = "" if lfs else str(entry.get("oid") or "").lower()
    size = lfs.get("size", entry.get("size"))
    return RemoteFile(
        path=name,
        urls=(place.url_of(path, endpoint),),
        size=size if isinstance(size, int) and size >= 0 else None,
        sha256=oid if _is_hash(oid, 64) else None,
        git_sha1=blob if _is_hash(blob, 40) else None,
        revision=place.revision,
        key=f"{place.repo}/{path}",
    )


def _is_hash(text: str, digits: int) -> bool:
    """Whether a text is a hash, and not the zeros or the running number of a server that knows none."""
    return re.fullmatch(f"[0-9a-f]{{{digits}}}", text) is not None and len(set(text)) >= 8


def _pinned(place: Place, client: Client, endpoint: str) -> tuple[Place, dict[str, dict[str, Any]]]:
    """The place at its commit where the hub tells it, and the entries of its files by path."""
    info = _info(place, client, endpoint)
    commit = info.get("sha")
    if isinstance(commit, str) and commit:
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
        entries = {str(s["rfilename"]): s for s in info.get("siblings", []) if isinstance(s, dict) and "rfilename" in s}
        if exc.status != 404 or not entries:
            raise
    return Place(place.repo, place.path, tree.commit or place.revision), entries


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
        self.commit: str | None = None

    def files(self) -> dict[str, dict[str, Any]]:
        """Entries of all files that may belong to the place, by path; raises Refused."""
        path = self._place.path
        start = names.fixed_directory(path) if "*" in path else path
        while True:
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

    def _below(self, directory: str) -> dict[str, dict[str, Any]]:
        files: dict[str, dict[str, Any]] = {}
        visited: set[str] = set()
        waiting = [directory]
        while waiting:
            here = waiting.pop()
            visited.add(here)
            found = list(self._entries(here))
            files.update((e["path"], e) for e in found if e.get("type", "file") == "file")
            folders = {e["path"] for e in found if e.get("type") == "directory" and self._concerns(e["path"])}
            opened = {"/".join(p[:k]) for p in (f.split("/") for f in files) for k in range(1, len(p))}
            waiting += sorted(folders - visited - opened - set(waiting))
        return files

    def _concerns(self, folder: str) -> bool:
        """Whether files of the place may lie in the folder."""
        fixed = self._place.path.split("*")[0]
        return folder.startswith(fixed) or fixed.startswith(folder + "/")

    def _entries(self, directory: str) -> Iterator[dict[str, Any]]:
        below = f"/{quote(directory)}" if directory else ""
        url: str | None = f"{self._root}{below}?recursive=true&expand=false"
        seen: set[str] = set()
        while url and url not in seen:
            seen.add(url)
            page = self._client.json(url)
            self.commit = self.commit or page.commit
            if not isinstance(page.value, list):
                raise Refused("the answer is not a list of files")
            for entry in page.value:
                if isinstance(entry, dict) and isinstance(entry.get("path"), str):
                    yield entry
            url = page.following
