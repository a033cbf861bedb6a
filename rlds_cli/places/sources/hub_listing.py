"""List the files of a dataset repository of the hub, and of servers that have some of its calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from rlds_cli.base.files.names import fixed_directory, selected
from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent
from rlds_cli.places.sources.limits import ListingLimits
from rlds_cli.places.sources.place import Meta


def find(client: Client, endpoint: str, repo: str, revision: str, path: str) -> tuple[str, dict[str, Meta]]:
    """Return the commit that a revision names, else the revision, and the files that may belong to a path, by name.

    Raises
    ------
    Permanent
        The hub does not list the repository.
    """
    info = _info(client, endpoint, repo, revision)
    if pinned := _commit(info.get("sha")):
        try:
            return pinned, _Tree(client, endpoint, repo, pinned).files(path)
        except Permanent as exc:
            if exc.status != 404:
                raise
    tree = _Tree(client, endpoint, repo, revision)
    try:
        found = tree.files(path)
    except Permanent as exc:
        found = _siblings(info)
        if exc.status != 404 or not found:
            raise
    return tree.commit or revision, found


def entries(
    client: Client, endpoint: str, repo: str, revision: str, directory: str, limit: ListingLimits, *, recursive: bool
) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Yield files and directories below a directory: path, the hub's words about it, and the commit; raises Permanent.

    Servers may list fewer levels than they are asked for.
    """
    below = f"/{quote(directory)}" if directory else ""
    root = f"{endpoint}/api/datasets/{repo}/tree/{quote(revision, safe='')}{below}"
    url: str | None = f"{root}?recursive={str(recursive).lower()}&expand=false"
    while url and limit.ask(url):
        page = client.json(url)
        for entry in page.value if isinstance(page.value, list) else [None]:
            if not isinstance(entry, dict) or not isinstance(path := entry.get("path"), str):
                raise Permanent("the answer is not a list of files")
            yield limit.take(path), entry, page.commit
        url = page.following


def meta_of(path: str, said: dict[str, Any]) -> Meta:
    """Return size and hashes of a listed file; None for values that are not valid."""
    lfs = said.get("lfs")
    if isinstance(lfs, dict) and lfs:
        oid = lfs.get("oid")
        sha256 = _hash(oid.removeprefix("sha256:") if isinstance(oid, str) else "", 64)
        return Meta(path, _size(lfs.get("size", said.get("size"))), sha256=sha256)
    # Git holds only a pointer for a file in LFS: the hash of the pointer is not that of the file.
    git_sha1 = None if lfs else _hash(said.get("oid"), 40)
    return Meta(path, _size(said.get("size")), git_sha1=git_sha1)


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _hash(value: object, digits: int) -> str | None:
    """Return a hash in lower case; None for the zeros or running numbers of servers without hashes."""
    text = value.lower() if isinstance(value, str) else ""
    return text if re.fullmatch(f"[0-9a-f]{{{digits}}}", text) and len(set(text)) >= 8 else None


def _commit(value: object) -> str | None:
    """Return the commit that a server names, if it can be part of an address."""
    return value if isinstance(value, str) and re.fullmatch(r"\w[\w.-]{0,127}", value, re.ASCII) else None


def _siblings(info: dict[str, Any]) -> dict[str, Meta]:
    """Return the files that the revision call lists, without sizes and hashes."""
    said, limit = info.get("siblings"), ListingLimits()
    found = [s.get("rfilename") for s in said if isinstance(s, dict)] if isinstance(said, list) else []
    return {limit.take(name): Meta(name) for name in found if isinstance(name, str)}


def _info(client: Client, endpoint: str, repo: str, revision: str) -> dict[str, Any]:
    """Return the hub's answer about the revision; empty if the server does not have the call."""
    try:
        value = client.json(f"{endpoint}/api/datasets/{repo}/revision/{quote(revision, safe='')}").value
    except Permanent as exc:
        if not exc.status or exc.status in (401, 429):
            raise
        return {}
    return value if isinstance(value, dict) else {}


class _Tree:
    """The tree call, on servers with or without subdirectories, recursion and pages."""

    def __init__(self, client: Client, endpoint: str, repo: str, revision: str) -> None:
        self._place = client, endpoint, repo, revision
        self.commit: str | None = None

    def files(self, path: str) -> dict[str, Meta]:
        """Return all files that may belong to a path, by name; raises Permanent."""
        start = fixed_directory(path) if "*" in path else path
        while True:
            try:
                found = self._below(start, path.split("*")[0])
            except Permanent as exc:
                if exc.status != 404 or not start:
                    raise
            else:
                answered_below = bool(found) and all(e.startswith(start + "/") for e in found)
                if not start or answered_below or selected(found, path):
                    return found
            start = start.rpartition("/")[0]

    def _below(self, directory: str, fixed: str) -> dict[str, Meta]:
        """Walk a directory, and those below it that may hold files whose names begin with ``fixed``."""
        files: dict[str, Meta] = {}
        opened: set[str] = set()  # directories whose files are listed already
        waiting, limit = [directory], ListingLimits()
        while waiting:
            here = waiting.pop()
            if here in opened:
                continue
            opened.add(here)
            folders = set()
            for path, said, commit in entries(*self._place, here, limit, recursive=True):
                self.commit = self.commit or _commit(commit)
                kind = said.get("type", "file")
                if kind == "file":
                    files[path] = meta_of(path, said)
                    opened.update(_above(path))
                elif kind == "directory" and (path.startswith(fixed) or fixed.startswith(path + "/")):
                    folders.add(path)
            waiting += sorted(folders - opened)
        return files


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a file, nearest first."""
    while path := path.rpartition("/")[0]:
        yield path
