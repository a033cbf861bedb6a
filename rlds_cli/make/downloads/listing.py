"""Lists the files of an archive, and where each may be fetched: at mirrors, at its source, at further sources.

``RLDS_MIRROR`` names places that are tried first, ``--from`` the only place to try.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlds_cli.base import visible
from rlds_cli.base.files import names
from rlds_cli.base.http.client import Client, RetryPolicy
from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, Offline, RldsError, TransferError, UnsafeArchive
from rlds_cli.places import RemoteFile, Unanswered, as_url

_FEW = 8  # files; for more, a mirror is probed once, so that each file does not wait for it


def list_source(url: str, where: Settings, *, policy: RetryPolicy | None = None) -> tuple[RemoteFile, ...]:
    """List the files that one source offers, in natural order.

    Parameters
    ----------
    url : str
        ``http(s)://.../file``, or ``.../directory/`` where the server shows what is in it;
        ``hf://datasets/<owner>/<repo>[/<path>][@rev]``; ``gs://<bucket>/<path>``; ``s3://<bucket>/<path>``;
        ``file:`` or a path; or ``package:samples/...``. ``<path>`` is a file, a directory, a pattern with ``*`` or, on
        the hub and in buckets, a prefix.
        Files are named relative to the directory: ``.../human-v2/data`` gives ``main_data.hdf5``.
    where : Settings
        The hub, its token, and whether the network may be used.

    Returns
    -------
    tuple of RemoteFile
        Not empty. Sizes and hashes where the source tells them; a plain HTTP file is not asked for them.

    Raises
    ------
    DownloadFailed
        The source does not answer, or has nothing of that name.
    Offline
        A request is needed, and network access is off.
    UnsafeArchive
        The source lists a name that leaves its directory.
    """
    if (files := as_url(url).known_files()) is not None:
        return files
    if where.offline:
        raise offline(url)
    with Client(where, policy=policy) as client:
        return as_url(url).files(client)


def list_files(
    urls: Sequence[str],
    where: Settings,
    *,
    source: str | None = None,
    suffix: str = "",
    size: int | None = None,
    sha256: str | None = None,
    policy: RetryPolicy | None = None,
) -> tuple[RemoteFile, ...]:
    """List the files of one archive that several sources may have.

    The first of ``urls`` that answers decides which files there are; if none answers, a mirror of ``RLDS_MIRROR`` does.
    If that is one file, the others are further places for it, and ``size`` and ``sha256`` (of a registry) are what it
    must have. Mirrors are tried before all other places.

    Parameters
    ----------
    urls : sequence of str
        As for `list_source`, best first.
    suffix : str, optional
        Only files that begin as one of ``urls`` and end with this: the same as ``<url>**<suffix>``.
    source : str, optional
        ``--from``: a file, a directory or the root of a mirror to take the files from, and nothing else. Below it, a
        file is looked for at its place at the source and at every tail of that: ``host/a/b.h5``, ``a/b.h5``, ``b.h5``.

    Raises
    ------
    DownloadFailed, Offline, UnsafeArchive
        As `list_source`; of several failures the first.
    """
    if suffix:
        urls = [f"{url}**{suffix}" for url in urls]
    if source is not None:
        return _with_promise(list_copy(urls, where, source, policy), size, sha256)
    failures: list[RldsError] = []
    unanswered: set[str] = set()  # services, such as a repository of the hub, whatever the revision
    for url in urls:
        service, named = url, as_url(url)
        try:
            service = named.service
            if service in unanswered:
                continue
            file = named.single_file() if sha256 else None  # a file with a known hash needs no listing
            files = (file,) if file else list_source(url, where, policy=policy)
        except (TransferError, UnsafeArchive) as exc:  # unsafe names at one source say nothing about another
            failures.append(exc)
            if isinstance(exc, Unanswered):
                unanswered.add(service)
            continue
        if len(files) == 1:
            others = [u for u in urls if u != url and as_url(u).single_file()]
            files = (replace(files[0], urls=tuple(dict.fromkeys((*files[0].urls, *others)))),)
        files = _with_promise(files, size, sha256)
        return _with_mirrors(files, where) if where.mirrors else files
    for root in where.mirrors:
        try:
            return _with_promise(list_copy(urls, where, root, policy), size, sha256)
        except (TransferError, UnsafeArchive):
            continue
    raise failures[0] if failures else DownloadFailed("No source is known for these files.")


def read(file: RemoteFile, where: Settings, *, policy: RetryPolicy | None = None) -> bytes:
    """Read a small file into memory from the first place that has it. Its hash is not checked; nothing is written.

    Raises
    ------
    DownloadFailed
        No place has it, or it has more than 64 MiB.
    Offline
        It is not on this machine, and network access is off.
    """
    remote = []
    for url in file.urls:
        path = as_url(url).local_path
        if path is None:
            remote.append(url)
        elif path.is_file():
            return path.read_bytes()
    if where.offline:
        raise offline(file.path)
    failures = []
    with Client(where, policy=policy) as client:
        for url in (as_url(u).request(where) for u in remote):
            try:
                return client.document(url)[0]
            except Permanent as exc:
                failures.append(f"{visible.shown(url)}: {exc.reason}")
    raise DownloadFailed(f"{file.path} could not be read. {'; '.join(failures)}. Nothing was written.")


def offline(url: str) -> Offline:
    """Return the error of a source that needs a request while network access is off."""
    return Offline(
        f"Network access is off (RLDS_OFFLINE or --offline), and {url} must be asked for its files.",
        hint="--from DIR takes them from a local copy",
    )


def _with_promise(files: tuple[RemoteFile, ...], size: int | None, sha256: str | None) -> tuple[RemoteFile, ...]:
    """Add the registry's size and hash to a single file."""
    if len(files) != 1:
        return files
    file = replace(files[0], sha256=sha256.lower()) if sha256 else files[0]
    return (replace(file, size=size) if size is not None and as_url(file.urls[0]).local_path is None else file,)


# -- mirrors and copies


def _with_mirrors(files: tuple[RemoteFile, ...], where: Settings) -> tuple[RemoteFile, ...]:
    """Put the mirrors of ``RLDS_MIRROR`` before the other places of each file.

    A mirror has a file at its whole place at the source (``<root>/<host>/<path>``, ``<root>/<owner>/<repo>/<path>``,
    ``<root>/<bucket>/<path>``), or without its first part; a directory at any tail of that.
    """
    mirrors = [as_url(root) for root in where.mirrors]
    if len(files) > _FEW and not where.offline:
        mirrors = [mirror for mirror in mirrors if mirror.answers(where)]
    found = []
    for file in files:
        urls: list[str] = []
        if as_url(file.urls[0]).local_path is None:
            for mirror in mirrors:
                urls += mirror.mirrored(names.tails(file.key))
        found.append(replace(file, urls=tuple(dict.fromkeys((*urls, *file.urls)))))
    return tuple(found)


def names_file(source: str) -> bool:
    """Return whether ``--from`` names a single file."""
    if (path := as_url(source).local_path) is not None:
        return path.is_file()
    return names.has_suffix(names.split(source).path.rpartition("/")[2])


def list_copy(
    urls: Sequence[str], where: Settings, source: str, policy: RetryPolicy | None = None
) -> tuple[RemoteFile, ...]:
    """List the files of an archive in a copy: a file, a directory, or the root of a mirror.

    Below it, a file is looked for at its place at the source and at every tail of that.

    Raises
    ------
    DownloadFailed, Offline, UnsafeArchive
        As `list_source`.
    """
    copy = as_url(source)
    if copy.is_unlisted:  # its files are asked for by name
        copy.parse()  # raises for an invalid address, before it is tried under many names
        return _from_unlisted(urls, where, source, policy)
    path = copy.local_path
    if path is not None and path.is_file():
        found = list_source(source, where)[0]
        wanted = next((file for url in urls if (file := as_url(url).single_file())), found)
        return (replace(found, path=wanted.path),)
    if path is not None and not path.exists():
        raise DownloadFailed(f"There is no {source}.", hint="--from takes a file, a directory or a URL")
    tried, unsafe = [], None
    root = path.as_posix() if path is not None else source.rstrip("/")
    for url in urls:
        original = as_url(url)
        candidates = [c for tail in names.tails(original.key) for c in _candidates(root, tail)]
        if original.names_everything:  # a copy of a whole repository may have any name
            candidates.append(source)
        for candidate in candidates:
            tried.append(candidate)
            try:
                return list_source(candidate, where, policy=policy)
            except (DownloadFailed, UnsafeArchive) as exc:
                unsafe = unsafe or (exc if isinstance(exc, UnsafeArchive) else None)
    if unsafe:
        raise unsafe
    looked = ", ".join(dict.fromkeys(t.rpartition("/")[2] for t in tried))
    raise DownloadFailed(
        f"{source} does not hold the requested files (looked for {looked}, and below the directories of their source).",
        hint="give the file itself, or the directory that it is in",
    )


def _candidates(root: str, tail: str) -> Iterator[str]:
    """Yield where ``tail`` may be below a copy; the root of the copy may be the wanted directory itself."""
    yield f"{root}/{tail}"
    if root.endswith("/" + tail):
        yield root


def _from_unlisted(
    urls: Sequence[str], where: Settings, mirror: str, policy: RetryPolicy | None
) -> tuple[RemoteFile, ...]:
    """List the files of an archive at a web server, which may show no directories."""
    singles = [file for url in urls if (file := as_url(url).single_file())]
    if singles:
        below = [u for file in singles for u in _guesses(mirror, file)]
        return (replace(singles[0], urls=tuple(dict.fromkeys(below))),)
    failures: list[RldsError] = []
    for url in urls:
        try:
            return _with_api(url, where, mirror, policy) or _by_directory(url, where, mirror, policy)
        except (TransferError, UnsafeArchive) as exc:
            failures.append(exc)
    raise failures[0] if failures else DownloadFailed(f"There is nothing to look for at {visible.shown(mirror)}.")


def _with_api(url: str, where: Settings, mirror: str, policy: RetryPolicy | None) -> tuple[RemoteFile, ...] | None:
    """List the files with the source's own calls at a mirror; None where the mirror does not have them."""
    copy = as_url(url).at_mirror(mirror)
    if copy is None:
        return None
    if where.offline:
        raise offline(url)
    if "?" in mirror:  # calls cannot be made below an address with a query
        return None
    try:
        with Client(where, policy=policy) as client:
            return copy.files(client)
    except (DownloadFailed, UnsafeArchive):
        return None


def _by_directory(url: str, where: Settings, mirror: str, policy: RetryPolicy | None) -> tuple[RemoteFile, ...]:
    """List a directory of the mirror below a tail of the place; else the source itself, with the mirror's addresses."""
    policy = policy or RetryPolicy()
    original = as_url(url)
    for tail in () if original.local_path is not None else names.tails(original.key):
        below = names.join(mirror, tail if "*" in tail else f"{tail}/", safe="/*")
        begun = time.monotonic()
        try:
            return list_source(below, where, policy=policy)
        except (DownloadFailed, UnsafeArchive):
            if time.monotonic() - begun > policy.read:  # the server does not answer: other directories wait as long
                raise
    return tuple(replace(f, urls=_guesses(mirror, f)) for f in list_source(url, where, policy=policy))


def _guesses(mirror: str, file: RemoteFile) -> tuple[str, ...]:
    """Return the addresses at which a web server may have a file."""
    below = [names.join(mirror, tail) for tail in names.tails(file.key)]
    place = mirror.partition("#")[0].partition("?")[0]
    itself = [mirror] if not place.endswith("/") else []
    first = itself if place.rpartition("/")[2] == file.path.rpartition("/")[2] else []
    return tuple(dict.fromkeys((*first, *below, *itself)))
