"""What one source lists: a file, or those of a hub repository, a bucket, a directory, the package, a web server."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from rlds_cli.errors import DownloadFailed, Offline
from rlds_cli.settings import Settings
from rlds_cli.transfer import buckets, hub, indexes, local, names
from rlds_cli.transfer.client import Client, Patience
from rlds_cli.transfer.remote import RemoteFile


def list_source(url: str, where: Settings, *, patience: Patience | None = None) -> tuple[RemoteFile, ...]:
    """The files that one source offers, sorted as people count.

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
        Where the source does not answer, or has nothing of that name.
    Offline
        Where it must be asked and the network is forbidden.
    UnsafeArchive
        Where it lists a name that leaves its directory.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("http", "https"):
        if one(url):
            return (http_file(url),)
        if where.offline:
            raise offline(url)
        with Client(where, patience=patience) as client:
            return indexes.list_index(url, client)
    if scheme == "hf":
        hub.parse(url)
        if where.offline:
            raise offline(url)
        with Client(where, patience=patience) as client:
            return hub.list_hub(url, client)
    if buckets.is_bucket(url):
        buckets.parse(url)
        if where.offline:
            raise offline(url)
        with Client(where, patience=patience) as client:
            return buckets.list_bucket(url, client)
    if local.is_local(url):
        return local.list_local(url)
    raise unknown(url)


def unknown(url: str) -> DownloadFailed:
    """The error of a URL that nobody here can fetch."""
    return DownloadFailed(
        f"{names.shown(url)}: there is no way to fetch {urlsplit(url).scheme}: sources.",
        hint="http(s)://, hf://datasets/, gs://, s3://, file://",
    )


def one(url: str) -> RemoteFile | None:
    """The one file that a remote URL names, without asking; None where only a listing can tell."""
    if url.startswith(("http://", "https://")):
        path = urlsplit(url).path
        return None if "*" in path or path.endswith("/") else http_file(url)
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


def http_file(url: str) -> RemoteFile:
    """The file that an HTTP URL names; nobody is asked. Raises DownloadFailed where it names none."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise DownloadFailed(f"{names.shown(url)} names no host.")
    return RemoteFile(path=names.basename(url), urls=(url,), key=unquote(f"{host}{parts.path}"))


def offline(url: str) -> Offline:
    """The error of a source that must be asked while the network is forbidden."""
    return Offline(
        f"The network is forbidden (RLDS_OFFLINE or --offline), and {url} must be asked for its files.",
        hint="--from DIR takes them from a local copy",
    )
