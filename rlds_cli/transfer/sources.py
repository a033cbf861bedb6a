"""What the sources of an archive list, and where its files may be had: mirrors, the source itself, further places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlds_cli.errors import DownloadFailed, RldsError, TransferError, UnsafeArchive
from rlds_cli.settings import Settings
from rlds_cli.transfer import buckets, hub, listing, local, mirrors, names, reading
from rlds_cli.transfer.client import Client, Patience, Refused
from rlds_cli.transfer.listing import list_source
from rlds_cli.transfer.remote import RemoteFile

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
                return reading.body(client, url)
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
        return _promised(mirrors.list_copy(urls, where, source, patience), size, sha256)
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
        return mirrors.first(_promised(files, size, sha256), where)
    for root in where.mirrors:
        try:
            return _promised(mirrors.list_copy(urls, where, root, patience), size, sha256)
        except (TransferError, UnsafeArchive):
            continue
    raise failures[0] if failures else DownloadFailed("No source is known for these files.")


def _promised(files: tuple[RemoteFile, ...], size: int | None, sha256: str | None) -> tuple[RemoteFile, ...]:
    if len(files) != 1:
        return files
    promised = replace(files[0], sha256=sha256.lower()) if sha256 else files[0]
    return (replace(promised, size=size) if size is not None and not local.is_local(promised.urls[0]) else promised,)
