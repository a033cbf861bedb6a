"""What a source lists: one file, the files of a hub repository, of a directory, of the package, or of a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from rlds_cli.errors import DownloadFailed, Offline, TransferError
from rlds_cli.settings import Settings
from rlds_cli.transfer import buckets, hub, local, names, reading
from rlds_cli.transfer.client import Client, Patience, Refused
from rlds_cli.transfer.remote import RemoteFile

__all__ = ["RemoteFile", "https", "list_files", "list_source", "read"]


def list_source(url: str, where: Settings, *, patience: Patience | None = None) -> tuple[RemoteFile, ...]:
    """The files that one source offers, sorted as people count.

    Parameters
    ----------
    url : str
        ``http(s)://.../file``; ``hf://datasets/<owner>/<repo>[/<path>][@rev]``; ``gs://<bucket>/<path>``;
        ``s3://<bucket>/<path>``; ``file:`` or a path; or ``package:samples/...``. ``<path>`` is a file, a directory,
        a pattern with ``*`` or, on the hub and in buckets, a prefix.
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
        Where the source does not answer, or has nothing of that name.
    Offline
        Where it must be asked and the network is forbidden.
    UnsafeArchive
        Where it lists a name that leaves its directory.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("http", "https"):
        return (_http_file(url),)
    if scheme == "hf":
        hub.parse(url)
        if where.offline:
            raise _offline(url)
        with Client(where, patience=patience) as client:
            return hub.list_hub(url, client)
    if buckets.is_bucket(url):
        buckets.parse(url)
        if where.offline:
            raise _offline(url)
        with Client(where, patience=patience) as client:
            return buckets.list_bucket(url, client)
    if local.is_local(url):
        return local.list_local(url)
    raise DownloadFailed(
        f"{url}: there is no way to fetch {scheme}: sources.", hint="http(s)://, hf://datasets/, gs://, s3://, file://"
    )


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
        raise _offline(file.path)
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

    The first of ``urls`` that answers says which files there are. Where that is one file, the others are further places
    for it, and ``size`` and ``sha256`` (of a registry) are promises about it.

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
        return _promised(_mirrored(urls, where, source, patience), size, sha256)
    failures: list[TransferError] = []
    for url in urls:
        try:
            file = _one(url) if sha256 else None  # what is known needs no listing
            files = (file,) if file else list_source(url, where, patience=patience)
        except TransferError as exc:
            failures.append(exc)
            continue
        if len(files) == 1:
            others = [u for u in urls if u != url and _one(u)]
            files = (replace(files[0], urls=tuple(dict.fromkeys((*files[0].urls, *others)))),)
        return _promised(files, size, sha256)
    raise failures[0] if failures else DownloadFailed("No source is known for these files.")


def _one(url: str) -> RemoteFile | None:
    """The one file that a remote URL names, without asking; None where only a listing can tell."""
    if url.startswith(("http://", "https://")):
        return _http_file(url)
    if buckets.is_bucket(url):
        found = buckets.parse(url)
        if "*" in found.path or not names.has_suffix(found.path):
            return None
        return RemoteFile(found.path.rpartition("/")[2], (url,), key=f"{found.bucket}/{found.path}")
    if not url.startswith("hf://"):
        return None
    place = hub.parse(url)
    if "*" in place.path or not names.has_suffix(place.path):
        return None
    name = place.path.rpartition("/")[2]
    return RemoteFile(path=name, urls=(url,), revision=place.revision, key=f"{place.repo}/{place.path}")


def _http_file(url: str) -> RemoteFile:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise DownloadFailed(f"{names.shown(url)} names no host.")
    return RemoteFile(path=names.basename(url), urls=(url,), key=unquote(f"{host}{parts.path}"))


def _promised(files: tuple[RemoteFile, ...], size: int | None, sha256: str | None) -> tuple[RemoteFile, ...]:
    if len(files) != 1:
        return files
    promised = replace(files[0], sha256=sha256.lower()) if sha256 else files[0]
    return (replace(promised, size=size) if size is not None and not local.is_local(promised.urls[0]) else promised,)


def _offline(url: str) -> Offline:
    return Offline(
        f"The network is forbidden (RLDS_OFFLINE or --offline), and {url} must be asked for its files.",
        hint="--from DIR takes them from a local copy",
    )


def _mirrored(urls: Sequence[str], where: Settings, source: str, patience: Patience | None) -> tuple[RemoteFile, ...]:
    if source.startswith(("http://", "https://")):
        return _mirrored_over_http(urls, where, source, patience)
    if local.is_local(source) and local.path_of(source).is_file():
        found = local.list_local(source)[0]
        wanted = next((file for url in urls if (file := _one(url))), found)
        return (replace(found, path=wanted.path),)
    if local.is_local(source) and not local.path_of(source).exists():
        raise DownloadFailed(f"There is no {source}.", hint="--from takes a file, a directory or a URL")
    tried = []
    for url in urls:
        candidates = [c for tail in names.tails(_key(url)) for c in _candidates(source, tail)]
        if url.startswith("hf://") and not hub.parse(url).path and local.is_local(source):
            candidates.append(source)  # all of a repository: a copy of it may be called anything
        for candidate in candidates:
            tried.append(candidate)
            try:
                return list_source(candidate, where, patience=patience)
            except DownloadFailed:
                continue
    looked = ", ".join(dict.fromkeys(t.rpartition("/")[2] for t in tried))
    raise DownloadFailed(
        f"{source} does not hold the files wanted (looked for {looked}, and below the directories of their source).",
        hint="give the file itself, or the directory that it is in",
    )


def _candidates(source: str, tail: str) -> Iterator[str]:
    """Where ``tail`` may be below a root that can be listed; the root may be the directory wanted itself."""
    if not local.is_local(source):
        yield f"{source.rstrip('/')}/{tail}"
        return
    root = local.path_of(source)
    yield str(root / tail)
    if root.as_posix().endswith("/" + tail):
        yield str(root)


def _key(url: str) -> str:
    if url.startswith("hf://"):
        place = hub.parse(url)
        return f"{place.repo}/{place.path}".rstrip("/")
    if buckets.is_bucket(url):
        found = buckets.parse(url)
        return f"{found.bucket}/{found.path}".rstrip("/")
    if url.startswith(("http://", "https://")):
        return _http_file(url).key
    return local.path_of(url).as_posix()


def _mirrored_over_http(
    urls: Sequence[str], where: Settings, source: str, patience: Patience | None
) -> tuple[RemoteFile, ...]:
    singles = [file for url in urls if (file := _one(url))]
    if singles:
        below = [u for file in singles for u in _mirror_urls(source, file)]
        return (replace(singles[0], urls=tuple(dict.fromkeys(below))),)
    failures: list[TransferError] = []
    for url in urls:
        try:
            if url.startswith("hf://"):
                return _mirrored_hub(url, where, source, patience)
            return tuple(replace(f, urls=_mirror_urls(source, f)) for f in local.list_local(url))
        except TransferError as exc:
            failures.append(exc)
    raise failures[0] if failures else DownloadFailed(f"There is nothing to look for at {names.shown(source)}.")


def _mirrored_hub(url: str, where: Settings, source: str, patience: Patience | None) -> tuple[RemoteFile, ...]:
    """A mirror of the hub itself, or of its files; then the hub says which files there are."""
    if where.offline:
        raise _offline(url)
    with Client(where, patience=patience) as client:
        try:
            return hub.list_hub(url, client, endpoint=source.rstrip("/"))
        except DownloadFailed:
            files = hub.list_hub(url, client)
    return tuple(replace(f, urls=_mirror_urls(source, f)) for f in files)


def _mirror_urls(source: str, file: RemoteFile) -> tuple[str, ...]:
    below = [names.join(source, tail) for tail in names.tails(file.key)]
    itself = [source] if not source.endswith("/") else []
    first = itself if source.rpartition("/")[2] == file.path.rpartition("/")[2] else []
    return tuple(dict.fromkeys((*first, *below, *itself)))
