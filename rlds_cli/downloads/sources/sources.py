"""What the sources of an archive list, and where its files may be had: mirrors, the source itself, further places.

The same files at other places: ``--from``, which is the only place then, and ``RLDS_MIRROR``, which is the first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import unquote

from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.client import Again, Client, Patience, Refused
from rlds_cli.downloads.sources import buckets, hub, limits, listing, local
from rlds_cli.downloads.sources.listing import list_source
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import DownloadFailed, RldsError, TransferError, UnsafeArchive
from rlds_cli.settings import Settings

__all__ = ["RemoteFile", "https", "list_files", "list_source", "read"]


def https(url: str, where: Settings) -> str:
    """Where a file is fetched: URLs of the hub and of buckets as HTTPS, others as they are."""
    return buckets.https(hub.https(url, where.hub), where)


def read(file: RemoteFile, where: Settings, *, patience: Patience | None = None) -> bytes:
    """The bytes of a small file, from the first of its places that has it. They are not checked; nothing is written.

    Raises
    ------
    DownloadFailed
        No place gives it, or it has more than 64 MiB.
    Offline
        It is not on this machine, and the network is forbidden.
    """
    for url in file.urls:
        if local.is_local(url) and (path := local.path_of(url)).is_file():
            return path.read_bytes()
    if where.offline:
        raise listing.offline(file.path)
    failures = []
    with Client(where, patience=patience) as client:
        for url in (https(u, where) for u in file.urls if not local.is_local(u)):
            try:
                return limits.body(client, url)
            except Refused as exc:
                failures.append(f"{names.shown(url)}: {exc.reason}")
    raise DownloadFailed(f"{file.path} could not be read. {'; '.join(failures)}. Nothing was written.")


def list_files(
    urls: Sequence[str],
    where: Settings,
    *,
    source: str | None = None,
    suffix: str = "",
    size: int | None = None,
    sha256: str | None = None,
    patience: Patience | None = None,
) -> tuple[RemoteFile, ...]:
    """The files of one archive that may be had at several places.

    The first of ``urls`` that answers says which files there are; where none does, a mirror of ``RLDS_MIRROR``. Where
    that is one file, the others are further places for it, and ``size`` and ``sha256`` (of a registry) are promises
    about it. Mirrors are places before all others.

    Parameters
    ----------
    urls : sequence of str
        As for `list_source`, best first.
    suffix : str, optional
        Only files that begin as one of ``urls`` and end with this: the same as ``<url>*<suffix>``.
    source : str, optional
        ``--from``: a file, a directory or the root of a mirror to take the files from, and nothing else. Below it, a
        file is looked for at its place at the source and at every tail of that: ``host/a/b.h5``, ``a/b.h5``, ``b.h5``.

    Raises
    ------
    DownloadFailed, Offline, UnsafeArchive
        As `list_source`; of several failures the first.
    """
    if suffix:
        urls = [f"{url}*{suffix}" for url in urls]
    if source is not None:
        return _promised(list_copy(urls, where, source, patience), size, sha256)
    failures: list[RldsError] = []
    silent: set[str] = set()  # repositories whose hub does not answer, at whatever revision
    for url in urls:
        if url.startswith("hf://") and hub.parse(url).repo in silent:
            continue
        try:
            file = listing.one(url) if sha256 else None  # what is known needs no listing
            files = (file,) if file else listing.list_source(url, where, patience=patience)
        except (TransferError, UnsafeArchive) as exc:  # names of one source say nothing of another
            failures.append(exc)
            if isinstance(exc, hub.Unanswered):
                silent.add(hub.parse(url).repo)
            continue
        if len(files) == 1:
            others = [u for u in urls if u != url and listing.one(u)]
            files = (replace(files[0], urls=tuple(dict.fromkeys((*files[0].urls, *others)))),)
        return first(_promised(files, size, sha256), where)
    for root in where.mirrors:
        try:
            return _promised(list_copy(urls, where, root, patience), size, sha256)
        except (TransferError, UnsafeArchive):
            continue
    raise failures[0] if failures else DownloadFailed("No source is known for these files.")


def _promised(files: tuple[RemoteFile, ...], size: int | None, sha256: str | None) -> tuple[RemoteFile, ...]:
    if len(files) != 1:
        return files
    promised = replace(files[0], sha256=sha256.lower()) if sha256 else files[0]
    return (replace(promised, size=size) if size is not None and not local.is_local(promised.urls[0]) else promised,)


_FEW = 8  # files that may as well find out themselves whether a mirror is there


def first(files: tuple[RemoteFile, ...], where: Settings) -> tuple[RemoteFile, ...]:
    """The files with the mirrors of ``RLDS_MIRROR`` before their own places.

    A mirror has a file at its whole place at the source (``<root>/<host>/<path>``, ``<root>/<owner>/<repo>/<path>``,
    ``<root>/<bucket>/<path>``), or without its first part; a directory at any tail of that.
    """
    roots = where.mirrors
    if len(files) > _FEW and not where.offline:
        roots = tuple(r for r in roots if not r.startswith("http") or _answers(r, where))
    return tuple(replace(f, urls=tuple(dict.fromkeys((*_mirrored(f, roots), *f.urls)))) for f in files)


def _answers(root: str, where: Settings) -> bool:
    """Whether a web server is there at all: if not, each of many files would wait for it in vain."""
    with Client(where, patience=Patience(connect=5.0, read=5.0)) as client:
        try:
            with client.open(root):
                return True
        except Refused as exc:
            return exc.status > 0
        except (Again, ValueError):  # ValueError: no address at all
            return False


def _mirrored(file: RemoteFile, roots: Sequence[str]) -> Iterator[str]:
    if local.is_local(file.urls[0]):
        return
    for root in roots:
        tails = names.tails(file.key)
        if local.is_local(root):
            path = local.path_of(root)
            yield from (p.as_uri() for p in (path / tail for tail in tails) if p.is_file())
        elif buckets.is_bucket(root):
            yield from (f"{root.rstrip('/')}/{tail}" for tail in tails[:2])
        else:
            yield from (names.join(root, tail) for tail in tails[:2])


def names_file(source: str) -> bool:
    """Whether ``--from`` names a file, and not a place with many."""
    if local.is_local(source):
        return local.path_of(source).is_file()
    return names.has_suffix(names.split(source).path.rpartition("/")[2])


def list_copy(
    urls: Sequence[str], where: Settings, source: str, patience: Patience | None = None
) -> tuple[RemoteFile, ...]:
    """The files of an archive, at ``urls`` otherwise, in a copy: a file, a directory, or the root of a mirror.

    Below it, a file is looked for at its place at the source and at every tail of that.

    Raises
    ------
    DownloadFailed, Offline, UnsafeArchive
        As `listing.list_source`.
    """
    if source.startswith(("http://", "https://")):
        names.split(source)  # what is no address is not asked under many names
        return _over_http(urls, where, source, patience)
    if not (local.is_local(source) or buckets.is_bucket(source) or source.startswith(("hf://", "package:"))):
        raise listing.unknown(source)
    if local.is_local(source) and local.path_of(source).is_file():
        found = local.list_local(source)[0]
        wanted = next((file for url in urls if (file := listing.one(url))), found)
        return (replace(found, path=wanted.path),)
    if local.is_local(source) and not local.path_of(source).exists():
        raise DownloadFailed(f"There is no {source}.", hint="--from takes a file, a directory or a URL")
    tried, unsafe = [], None
    for url in urls:
        candidates = [c for tail in names.tails(_key(url)) for c in _candidates(source, tail)]
        if url.startswith("hf://") and not hub.parse(url).path:
            candidates.append(source)  # all of a repository: a copy of it may be called anything
        for candidate in candidates:
            tried.append(candidate)
            try:
                return listing.list_source(candidate, where, patience=patience)
            except (DownloadFailed, UnsafeArchive) as exc:
                unsafe = unsafe or (exc if isinstance(exc, UnsafeArchive) else None)
    if unsafe:
        raise unsafe
    looked = ", ".join(dict.fromkeys(t.rpartition("/")[2] for t in tried))
    raise DownloadFailed(
        f"{source} does not hold the files wanted (looked for {looked}, and below the directories of their source).",
        hint="give the file itself, or the directory that it is in",
    )


def _candidates(source: str, tail: str) -> Iterator[str]:
    """Where ``tail`` may be below a root that can be listed; the root may be the directory wanted itself."""
    root = local.path_of(source).as_posix() if local.is_local(source) else source.rstrip("/")
    yield f"{root}/{tail}"
    if root.endswith("/" + tail):
        yield root


def _key(url: str) -> str:
    if url.startswith("hf://"):
        place = hub.parse(url)
        return f"{place.repo}/{place.path}".rstrip("/")
    if buckets.is_bucket(url):
        found = buckets.parse(url)
        return f"{found.bucket}/{found.path}".rstrip("/")
    if url.startswith(("http://", "https://")):
        parts = names.split(url)
        return unquote(f"{parts.netloc.rpartition('@')[2]}{parts.path}").rstrip("/")
    return local.path_of(url).as_posix()


def _over_http(urls: Sequence[str], where: Settings, source: str, patience: Patience | None) -> tuple[RemoteFile, ...]:
    singles = [file for url in urls if (file := listing.one(url))]
    if singles:
        below = [u for file in singles for u in _mirror_urls(source, file)]
        return (replace(singles[0], urls=tuple(dict.fromkeys(below))),)
    failures: list[RldsError] = []
    for url in urls:
        try:
            if url.startswith("hf://"):
                return _hub(url, where, source, patience)
            return _mapped(url, where, source, patience)
        except (TransferError, UnsafeArchive) as exc:
            failures.append(exc)
    raise failures[0] if failures else DownloadFailed(f"There is nothing to look for at {names.shown(source)}.")


def _mapped(url: str, where: Settings, source: str, patience: Patience | None) -> tuple[RemoteFile, ...]:
    """What the mirror shows below a tail of the place; else what the source itself lists, at the mirror."""
    patience = patience or Patience()
    for tail in () if local.is_local(url) else names.tails(_key(url)):
        below = names.join(source, tail if "*" in tail else f"{tail}/", safe="/*")
        begun = time.monotonic()
        try:
            return listing.list_source(below, where, patience=patience)
        except (DownloadFailed, UnsafeArchive):
            if time.monotonic() - begun > patience.read:  # a server that has not answered will not do so elsewhere
                raise
    return tuple(replace(f, urls=_mirror_urls(source, f)) for f in listing.list_source(url, where, patience=patience))


def _hub(url: str, where: Settings, source: str, patience: Patience | None) -> tuple[RemoteFile, ...]:
    """A mirror of the hub itself, or of its files; then the hub says which files there are."""
    if where.offline:
        raise listing.offline(url)
    if "?" in source:  # no hub has its calls below such an address
        return _mapped(url, where, source, patience)
    try:
        with listing.answering(source), Client(where, patience=patience) as client:
            return hub.list_hub(url, client, endpoint=source.rstrip("/"))
    except (DownloadFailed, UnsafeArchive):
        return _mapped(url, where, source, patience)


def _mirror_urls(source: str, file: RemoteFile) -> tuple[str, ...]:
    below = [names.join(source, tail) for tail in names.tails(file.key)]
    place = source.partition("#")[0].partition("?")[0]
    itself = [source] if not place.endswith("/") else []
    first = itself if place.rpartition("/")[2] == file.path.rpartition("/")[2] else []
    return tuple(dict.fromkeys((*first, *below, *itself)))
