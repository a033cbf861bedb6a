"""What one source lists: a file, or those of a hub repository, a bucket, a directory, the package, a web server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.client import Again, Client, Patience, Refused, Stopped
from rlds_cli.downloads.sources import buckets, hub, index, local
from rlds_cli.downloads.sources.remote import RemoteFile
from rlds_cli.errors import DownloadFailed, Offline, RldsError
from rlds_cli.settings import Settings


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
    if local.is_local(url):
        return local.list_local(url)
    scheme = names.split(url).scheme
    if scheme in ("http", "https") and one(url):
        return (http_file(url),)
    asks = {"http": index.list_index, "https": index.list_index, "hf": hub.list_hub}.get(scheme)
    asks = buckets.list_bucket if buckets.is_bucket(url) else asks
    if asks is None:
        raise unknown(url)
    if scheme == "hf":
        hub.parse(url)
    elif buckets.is_bucket(url):
        buckets.parse(url)
    if where.offline:
        raise offline(url)
    with answering(url), Client(where, patience=patience) as client:
        return asks(url, client)


@contextmanager
def answering(url: str) -> Iterator[None]:
    """Turn whatever an answer makes our own code raise into an error of this source, so that others are asked."""
    try:
        yield
    except (RldsError, Stopped):
        raise
    except Exception as exc:
        why = exc.reason if isinstance(exc, Refused | Again) else f"the answer cannot be read ({type(exc).__name__})"
        raise DownloadFailed(
            f"{names.shown(url)} does not list its files: {why}. Nothing was written.",
            hint="--from DIR|URL takes the files from somewhere else",
        ) from exc


def unknown(url: str) -> DownloadFailed:
    """The error of a URL that nobody here can fetch."""
    return DownloadFailed(
        f"{names.shown(url)}: there is no way to fetch {names.split(url).scheme}: sources.",
        hint="http(s)://, hf://datasets/, gs://, s3://, file://",
    )


def one(url: str) -> RemoteFile | None:
    """The one file that a remote URL names, without asking; None where only a listing can tell."""
    if url.startswith(("http://", "https://")):
        path = names.split(url).path
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
    parts = names.split(url)
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
