"""Which files the URL of an archive names, as each kind of place lists them, with what it says of their content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from rlds_cli.base import text, visible
from rlds_cli.base.files import names, trees
from rlds_cli.errors import DownloadFailed
from rlds_cli.places import (
    BucketPlace,
    Client,
    DirectoryPlace,
    FileRecord,
    HubPlace,
    Permanent,
    RemoteFile,
    SignedPlace,
    WebPlace,
    kind_of,
    lookup,
)
from rlds_cli.places.sources.place import Listing, Place

_CREDENTIALS = {"s3": "AWS_ACCESS_KEY_ID or AWS_PROFILE", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
_ELSEWHERE = "--from DIR|URL takes the files from another source"
_SHOWN = 5  # names in a hint


class Unanswered(DownloadFailed):
    """A listing failed because the service did not answer. Its other URLs are not tried."""


def ask(url: str, client: Client) -> tuple[RemoteFile, ...]:
    """Ask the server which files a URL names, with the sizes and hashes that it tells; raises DownloadFailed."""
    return _LISTED[kind_of(url)](url, client)


def without_asking(url: str) -> tuple[RemoteFile, ...] | None:
    """Return the files that a URL names where no request is needed, else None; raises DownloadFailed if it is wrong."""
    kind = kind_of(url)
    if kind is DirectoryPlace:
        return _local(url)
    if kind is WebPlace:
        file = single_file(url)
        return None if file is None else (file,)
    if kind is not SignedPlace:
        kind.parse(url)
    return None


def single_file(url: str) -> RemoteFile | None:
    """Return the file that a remote URL names where its form alone says that it names one, else None."""
    kind = lookup(url)
    if kind is WebPlace:
        path = names.split(url).path
        return None if "*" in path or path.endswith("/") else http_file(url)
    if kind not in (HubPlace, BucketPlace):
        return None
    address, path = kind.parse(url)
    if "*" in path or not names.has_suffix(path):
        return None
    return RemoteFile(path.rpartition("/")[2], (url,), revision=address.revision, key=kind.key(url))


def http_file(url: str) -> RemoteFile:
    """Return the file that an HTTP URL names, without a request; raises DownloadFailed where it names none."""
    parts = names.split(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise DownloadFailed(f"{visible.shown(url)} names no host.")
    return RemoteFile(path=names.basename(url), urls=(url,), key=unquote(f"{host}{parts.path}"))


def _offered(kind: type[Place], url: str, found: Listing, nothing: str) -> tuple[RemoteFile, ...]:
    """Return the listed files that belong to the path of a URL.

    Raises DownloadFailed with the message ``nothing`` and names of other files if there are none, and UnsafeArchive.
    """
    address, path = kind.parse(url)
    chosen = names.selected(found.files, path)
    if not chosen:
        raise DownloadFailed(nothing, hint=_others(found.files, path))
    names.all_safe(chosen.values())
    return tuple(
        RemoteFile(
            path=relative,
            urls=(found.url_of(name),),
            size=(m := found.files[name]).size,
            sha256=m.sha256,
            git_sha1=m.git_sha1,
            revision=m.revision,
            key=f"{address.root}/{name}",
            md5=m.md5,
            crc32c=m.crc32c,
        )
        for name, relative in chosen.items()
    )


def _others(found: Iterable[str], path: str) -> str | None:
    """Say which files are in the directory of a pattern that matches none."""
    there = names.selected(found, names.fixed_directory(path)) if "*" in path else {}
    some = ", ".join(list(there)[:_SHOWN])
    return (
        f"it has {text.plural(len(there), 'file')}: {some}{', ...' if len(there) > _SHOWN else ''}" if there else None
    )


def _web(url: str, client: Client) -> tuple[RemoteFile, ...]:
    try:
        found = WebPlace.listed(url, client)
    except Permanent as exc:
        raise DownloadFailed(
            f"{visible.shown(url)} does not list its files: {exc.reason}. Nothing was written.", hint=_ELSEWHERE
        ) from exc
    return _offered(WebPlace, url, found, f"{visible.shown(url)} has no files. Nothing was written.")


def _hub(url: str, client: Client) -> tuple[RemoteFile, ...]:
    return ask_hub(url, client.where.hub, client)


def ask_hub(url: str, hub: str, client: Client) -> tuple[RemoteFile, ...]:
    """List a URL of the hub with the calls of a server that has them; raises DownloadFailed."""
    (asked, path), endpoint = HubPlace.parse(url), hub.rstrip("/")
    try:
        found = HubPlace.listed(url, client, endpoint=endpoint)
    except Permanent as exc:
        kind = DownloadFailed if exc.status == 404 else Unanswered
        raise kind(
            f"{endpoint} does not list {asked.root} at {asked.revision}: {exc.reason}. Nothing was written.",
            hint=f"{endpoint}/datasets/{asked.root} says who may read it; HF_TOKEN holds the token"
            if exc.status in (401, 403)
            else f"HF_ENDPOINT names another hub; {_ELSEWHERE}",
        ) from exc
    files = _offered(HubPlace, url, found, f'{asked.root} at {found.revision} has nothing called "{path}".')

    def pinned(f: RemoteFile) -> RemoteFile:
        """Add the revision, and the address of the one that was named: a hash decides if it is the same file."""
        name = f.key.removeprefix(f"{asked.root}/")
        named = HubPlace.file_url(asked.root, str(asked.revision), endpoint, name)
        urls = tuple(dict.fromkeys((*f.urls, named))) if f.hashed else f.urls
        return replace(f, urls=urls, revision=found.revision)

    return tuple(map(pinned, files))


def _bucket(url: str, client: Client) -> tuple[RemoteFile, ...]:
    address, path = BucketPlace.parse(url)
    place = f"{address.scheme}://{address.root}"
    try:
        found = BucketPlace.listed(url, client)
    except Permanent as exc:
        raise _not_listed(place, _CREDENTIALS[address.scheme], exc) from exc
    return _offered(BucketPlace, url, found, f'{place} has nothing called "{path}".')


def _not_listed(place: str, credentials: str, exc: Permanent) -> DownloadFailed:
    if exc.status in (401, 403):
        return DownloadFailed(
            f"{place} is closed: it does not list its files publicly (HTTP {exc.status}). Nothing was written.",
            hint=f"{_ELSEWHERE}; credentials open a private bucket ({credentials})",
        )
    if exc.status == 404:
        return DownloadFailed(f"There is no bucket {place} (HTTP 404). Nothing was written.", hint=_ELSEWHERE)
    return DownloadFailed(f"{place} does not list its files: {exc.reason}. Nothing was written.", hint=_ELSEWHERE)


def _signed(url: str, client: Client) -> tuple[RemoteFile, ...]:
    raise DownloadFailed(f"{visible.shown(url)} names a signed file, which cannot be listed.")


# -- this machine


def _local(url: str) -> tuple[RemoteFile, ...]:
    path = DirectoryPlace.local_path(url)
    base = path.parent
    while "*" in str(base):
        base = base.parent
    pattern = path.relative_to(base).as_posix()
    found = names.selected(_below(base, pattern), pattern)
    listed = [_local_file(url, base / name, short) for name, short in found.items() if not _is_record(base / name)]
    if not listed:
        raise DownloadFailed(f"{url} does not exist, or holds no files. Nothing was written.")
    names.all_safe(f.path for f in listed)
    return tuple(listed)


def _local_file(url: str, path: Path, name: str) -> RemoteFile:
    return RemoteFile(
        path=name, urls=(DirectoryPlace.file_url(path, url),), size=path.stat().st_size, key=path.as_posix()
    )


def _below(base: Path, pattern: str) -> Iterator[str]:
    """Yield names of files, relative to ``base``, that may match; walks no other directory."""
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
    """Return whether a file is the record of the file beside it. Records of other users may be unreadable."""
    return (
        path.suffix == ".json"
        and path.with_suffix("").is_file()
        and (FileRecord.read(path.with_suffix("")) is not None or not os.access(path, os.R_OK))
    )


_LISTED: Mapping[type[Place], Callable[[str, Client], tuple[RemoteFile, ...]]] = {
    WebPlace: _web,
    HubPlace: _hub,
    BucketPlace: _bucket,
    SignedPlace: _signed,
    DirectoryPlace: lambda url, client: _local(url),
}
