"""URLs that archives are downloaded from: a class for each kind of place, and the table of URL schemes.

::

    http(s)://.../file                               or .../directory/, where the server shows pages of links
    hf://datasets/<owner>/<repo>[@<revision>][/<path>]    or ...[/<path>]@<revision>
    gs://<bucket>/<path>   s3://<bucket>/<path>
    signed-s3://[<region>@]<bucket>/<path>           a file of a private bucket; its request is signed when it is made
    file:<path>   <path>   package:samples/...

``<path>`` is a file, a directory, a pattern (`rlds_cli.places.sources.names.selected`) or, on the hub and in buckets, a
prefix. A new scheme is a class here, and a line in `SCHEMES`; what reads and lists its places is a
`rlds_cli.places.sources.source.Source`.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files as resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from rlds_cli.base import settings, text
from rlds_cli.base.files import trees
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.make.downloads.fetch.parts import FileRecord
from rlds_cli.make.downloads.remote_file import RemoteFile
from rlds_cli.places.http.client import Client, RetryPolicy
from rlds_cli.places.http.connections import Permanent, Retryable
from rlds_cli.places.sources import bucket_listing, hub_listing, names
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.source import Meta

_HUB = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<pin>refs/(?:pr|convert)/[\w.-]+|[^/@]+))?"
    r"(?:/(?P<path>.*?))?/?(?:@(?P<rev>[^@]+))?"
)
_BUCKET = re.compile(r"(?P<scheme>gs|s3)://(?P<bucket>[a-z0-9][a-z0-9._-]{0,220})(?:/(?P<path>.*))?", re.DOTALL)
_SIGNED = re.compile(
    r"signed-(?P<scheme>gs|s3)://(?:(?P<region>[a-z0-9-]+)@)?(?P<bucket>[^/@]+)/(?P<path>.+)", re.DOTALL
)
_VALID = timedelta(hours=12)  # longer than any download of one file; S3 allows a week
_DEFAULT_REGION = "us-east-1"
_CREDENTIALS = {"s3": "AWS_ACCESS_KEY_ID or AWS_PROFILE", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of ~/.aws/credentials",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names the key file of a service account: others cannot sign",
}
_ELSEWHERE = "--from DIR|URL takes the files from another source"
_PACKAGE = "package:"
_SHOWN = 5  # names in a hint


class Unanswered(DownloadFailed):
    """A listing failed because the service did not answer. Its other URLs are not tried."""


class Scheme(ABC):
    """URLs of one kind of place: web servers, the hub, buckets, this machine.

    All methods take URLs of the schemes that `SCHEMES` assigns to the class.
    """

    usage = ""  # how a hint names the scheme; empty for schemes that users do not write
    shareable = True  # whether a lock file may hold its URLs
    lists_mirrors = True  # False: files of a mirror are requested by name, since the mirror may not list them
    has_api = False  # whether a mirror may offer the same listing calls, for `list_at`

    @abstractmethod
    def key(self, url: str) -> str:
        """Return the full path of a URL: host, bucket or repository first. Mirrors name files by a tail of it."""

    @abstractmethod
    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        """Ask the server which files a URL names, with the sizes and hashes that it tells; raises DownloadFailed."""

    def list_offline(self, url: str) -> tuple[RemoteFile, ...] | None:
        """Return the files that a URL names where no request is needed, else None.

        Raises
        ------
        DownloadFailed
            The URL is not valid.
        """
        return None

    def list_at(self, url: str, mirror: str, client: Client) -> tuple[RemoteFile, ...]:
        """List a URL with the calls of a mirror; only of schemes with ``has_api``."""
        raise NotImplementedError

    def single_file(self, url: str) -> RemoteFile | None:
        """Return the file that a URL names where its form alone says that it names one."""
        return None

    def matching(self, pattern: str, name: str) -> str:
        """Return the URL of a file that the listing of a pattern names."""
        return f"{names.fixed_directory(pattern)}/{name}"

    def local_path(self, url: str) -> Path | None:
        """Return the path of a URL on this machine; None for remote ones."""
        return None

    def request_url(self, url: str, where: Settings) -> str:
        """Return the HTTP address of a file."""
        return url

    def root(self, url: str, where: Settings) -> str:
        """Return the HTTP address below which the files of a URL are requested."""
        return url

    def at_revision(self, url: str, revision: str) -> str:
        """Return the URL of the same place at another revision, where it has revisions."""
        return url

    def service(self, url: str) -> str:
        """Name what answers for a URL: after `Unanswered`, other URLs of the same service are skipped."""
        return url

    def is_repository(self, url: str) -> bool:
        """Return whether a URL names a whole repository, a copy of which may have any name."""
        return False

    def answers(self, mirror: str, where: Settings) -> bool:
        """Return whether a mirror answers at all."""
        return True

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        """Yield the URLs at which a mirror may have a file, given the tails of its key, longest first."""
        yield from (names.join(mirror, tail) for tail in tails[:2])


def _offered(
    found: Mapping[str, Meta], path: str, root: str, url_of: Callable[[str], str], nothing: str
) -> tuple[RemoteFile, ...]:
    """Return the listed files that belong to a path.

    ``root`` is the beginning of their keys. Raises DownloadFailed with the message ``nothing`` and the names of other
    files if there are none, and UnsafeArchive.
    """
    chosen = names.selected(found, path)
    if not chosen:
        raise DownloadFailed(nothing, hint=_others(found, path))
    names.all_safe(chosen.values())
    return tuple(
        RemoteFile(
            path=relative,
            urls=(url_of(name),),
            size=(m := found[name]).size,
            sha256=m.sha256,
            git_sha1=m.git_sha1,
            revision=m.revision,
            key=f"{root}/{name}",
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


# -- web servers


class _Web(Scheme):
    """``http://`` and ``https://``."""

    usage = "http(s)://"
    lists_mirrors = False

    def key(self, url: str) -> str:
        parts = names.split(url)
        return unquote(f"{parts.netloc.rpartition('@')[2]}{parts.path}").rstrip("/")

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        from rlds_cli.places.sources.web import WebSource

        parts = names.split(url)  # its query is often a token: it is sent with every page and file
        root = urlunsplit((parts.scheme, parts.netloc, "/", parts.query, ""))
        host, path = parts.netloc.rpartition("@")[2], unquote(parts.path).strip("/")
        start = names.fixed_directory(path) if "*" in path else path
        deep = path.count("/") - start.count("/") - bool(start) if "*" in path and "**" not in path else None
        source = WebSource(Address(parts.scheme, host, "", url=root), client, deep=deep)
        try:
            found = {m.name: m for m in source.list(f"{start}/" if start else "")}
        except Permanent as exc:
            raise DownloadFailed(
                f"{names.shown(url)} does not list its files: {exc.reason}. Nothing was written.", hint=_ELSEWHERE
            ) from exc
        return _offered(found, path, host, source.url, f"{names.shown(url)} has no files. Nothing was written.")

    def list_offline(self, url: str) -> tuple[RemoteFile, ...] | None:
        file = self.single_file(url)
        return None if file is None else (file,)

    def single_file(self, url: str) -> RemoteFile | None:
        path = names.split(url).path
        return None if "*" in path or path.endswith("/") else http_file(url)

    def matching(self, pattern: str, name: str) -> str:
        place, mark, query = pattern.partition("#")[0].partition("?")
        return names.join(f"{names.fixed_directory(place)}{mark}{query}", name)

    def answers(self, mirror: str, where: Settings) -> bool:
        with Client(where, policy=RetryPolicy(connect=5.0, read=5.0)) as client:
            try:
                with client.open(mirror):
                    return True
            except Permanent as exc:
                return exc.status > 0
            except (Retryable, ValueError):  # ValueError: not a valid address
                return False


def http_file(url: str) -> RemoteFile:
    """Return the file that an HTTP URL names, without a request; raises DownloadFailed where it names none."""
    parts = names.split(url)
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise DownloadFailed(f"{names.shown(url)} names no host.")
    return RemoteFile(path=names.basename(url), urls=(url,), key=unquote(f"{host}{parts.path}"))


# -- the hub


class _HubPlace(NamedTuple):
    """A file, a directory, a pattern or a prefix in a dataset repository at a revision."""

    repo: str
    path: str
    revision: str

    def url_of(self, path: str, endpoint: str) -> str:
        """Return the HTTP address of a file of the repository."""
        return f"{endpoint}/datasets/{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(path)}"


class _Hub(Scheme):
    """``hf://datasets/<owner>/<repo>[@<revision>][/<path>]``; without a revision, ``main``."""

    usage = "hf://datasets/"
    has_api = True

    def _parse(self, url: str) -> _HubPlace:
        match = _HUB.fullmatch(url)
        if match is None or {".", ".."} & set(match["repo"].split("/")):
            raise DownloadFailed(
                f"{url} does not name a dataset repository of the hub.",
                hint="hf://datasets/OWNER/REPO[/PATH][@REVISION]",
            )
        path = (match["path"] or "").strip("/")
        return _HubPlace(match["repo"], names.safe(path) if path else "", match["pin"] or match["rev"] or "main")

    def key(self, url: str) -> str:
        place = self._parse(url)
        return f"{place.repo}/{place.path}".rstrip("/")

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        return self.list_at(url, client.where.hub, client)

    def list_at(self, url: str, mirror: str, client: Client) -> tuple[RemoteFile, ...]:
        asked, endpoint = self._parse(url), mirror.rstrip("/")
        try:
            revision, found = hub_listing.find(client, endpoint, asked.repo, asked.revision, asked.path)
        except Permanent as exc:
            kind = DownloadFailed if exc.status == 404 else Unanswered
            raise kind(
                f"{endpoint} does not list {asked.repo} at {asked.revision}: {exc.reason}. Nothing was written.",
                hint=f"{endpoint}/datasets/{asked.repo} says who may read it; HF_TOKEN holds the token"
                if exc.status in (401, 403)
                else f"HF_ENDPOINT names another hub; {_ELSEWHERE}",
            ) from exc
        place = asked._replace(revision=revision)
        nothing = f'{asked.repo} at {revision} has nothing called "{asked.path}".'
        files = _offered(found, asked.path, asked.repo, lambda name: place.url_of(name, endpoint), nothing)

        def pinned(f: RemoteFile) -> RemoteFile:
            """Add the revision, and the address of the one that was named: a hash decides if it is the same file."""
            named = asked.url_of(f.key.removeprefix(f"{asked.repo}/"), endpoint)
            return replace(f, urls=tuple(dict.fromkeys((*f.urls, named))) if f.hashed else f.urls, revision=revision)

        return tuple(map(pinned, files))

    def list_offline(self, url: str) -> None:
        self._parse(url)

    def single_file(self, url: str) -> RemoteFile | None:
        place = self._parse(url)
        if "*" in place.path or not names.has_suffix(place.path):
            return None
        name = place.path.rpartition("/")[2]
        return RemoteFile(path=name, urls=(url,), revision=place.revision, key=f"{place.repo}/{place.path}")

    def matching(self, pattern: str, name: str) -> str:
        place = self._parse(pattern)
        path = "/".join(filter(None, (names.fixed_directory(place.path), name)))
        return f"hf://datasets/{place.repo}" + ("" if place.revision == "main" else f"@{place.revision}") + f"/{path}"

    def request_url(self, url: str, where: Settings) -> str:
        place = self._parse(url)
        return place.url_of(place.path, where.hub)

    def root(self, url: str, where: Settings) -> str:
        """All revisions of the repository."""
        return f"{where.hub}/datasets/{self._parse(url).repo}/resolve/"

    def at_revision(self, url: str, revision: str) -> str:
        place = self._parse(url)
        return f"hf://datasets/{place.repo}@{revision}" + (f"/{place.path}" if place.path else "")

    def service(self, url: str) -> str:
        return self._parse(url).repo

    def is_repository(self, url: str) -> bool:
        return not self._parse(url).path

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        try:
            place = self._parse(mirror)
        except DownloadFailed:  # no address of the hub: the error of a file says so, if no source has it
            yield from super().mirror_urls(mirror, tails)
            return
        below = f"/{place.path}" if place.path else ""
        # addresses of this scheme are not quoted
        yield from (f"hf://datasets/{place.repo}@{place.revision}{below}/{tail}" for tail in tails[:2])


# -- buckets


class _Buckets(Scheme):
    """``gs://<bucket>/<path>`` and ``s3://<bucket>/<path>``; the path is taken as it is, without escapes."""

    usage = "gs://, s3://"

    def _parse(self, url: str) -> tuple[str, str, str]:
        """Return scheme, bucket and path; raises DownloadFailed."""
        match = _BUCKET.fullmatch(url)
        if match is None:
            raise DownloadFailed(f"{url} does not name a bucket.", hint="gs://BUCKET/PATH or s3://BUCKET/PATH")
        path = (match["path"] or "").strip("/")
        return match["scheme"], match["bucket"], names.safe(path) if path else ""

    def key(self, url: str) -> str:
        _, bucket, path = self._parse(url)
        return f"{bucket}/{path}".rstrip("/")

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        from rlds_cli.places.sources.buckets import has_credentials

        scheme, bucket, path = self._parse(url)
        try:
            region, found = bucket_listing.find(scheme, bucket, path, client)
        except Permanent as exc:
            if exc.status in (401, 403) and has_credentials(scheme, client.where):
                return _list_private(scheme, bucket, path, bucket_listing.region_in(exc), client)
            raise _not_listed(scheme, bucket, exc) from exc
        root = bucket_listing.http_root(scheme, bucket, region, client.where)
        return _offered(found, path, bucket, lambda name: f"{root}/{quote(name)}", _nothing(scheme, bucket, path))

    def list_offline(self, url: str) -> None:
        self._parse(url)

    def single_file(self, url: str) -> RemoteFile | None:
        _, bucket, path = self._parse(url)
        if "*" in path or not names.has_suffix(path):
            return None
        return RemoteFile(path.rpartition("/")[2], (url,), key=f"{bucket}/{path}")

    def request_url(self, url: str, where: Settings) -> str:
        scheme, bucket, path = self._parse(url)
        return f"{bucket_listing.http_root(scheme, bucket, None, where)}/{quote(path)}"

    def root(self, url: str, where: Settings) -> str:
        scheme, bucket, path = self._parse(url)
        return f"{bucket_listing.http_root(scheme, bucket, None, where)}/{path}"

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        yield from (f"{mirror.rstrip('/')}/{tail}" for tail in tails[:2])


def _nothing(scheme: str, bucket: str, path: str) -> str:
    return f'{scheme}://{bucket} has nothing called "{path}".'


def _list_private(scheme: str, bucket: str, path: str, region: str | None, client: Client) -> tuple[RemoteFile, ...]:
    """List with the user's credentials. ETags are not used as md5: the bucket may be encrypted."""
    from rlds_cli.places.sources.buckets import BucketSource

    source = BucketSource(Address(scheme, bucket, ""), client, region=region or _DEFAULT_REGION)
    above = names.fixed_directory(path) if "*" in path else path
    found: dict[str, Meta] = {}
    for directory in dict.fromkeys((above, names.fixed_directory(path))):
        try:
            found = client.persist(lambda left, below=directory: {m.name: m for m in source.list(below)})  # type: ignore[misc]
        except Permanent as exc:
            raise _not_opened(scheme, bucket, exc) from None
        if names.selected(found, path):
            break
    at = f"{region}@" if region else ""
    return _offered(
        found, path, bucket, lambda name: f"signed-{scheme}://{at}{bucket}/{name}", _nothing(scheme, bucket, path)
    )


def _not_opened(scheme: str, bucket: str, exc: Permanent) -> DownloadFailed:
    return DownloadFailed(
        f"{scheme}://{bucket} with your credentials: {exc.reason}. Nothing was written.", hint=_KEYS[scheme]
    )


def _not_listed(scheme: str, bucket: str, exc: Permanent) -> DownloadFailed:
    place = f"{scheme}://{bucket}"
    if exc.status in (401, 403):
        return DownloadFailed(
            f"{place} is closed: it does not list its files publicly (HTTP {exc.status}). Nothing was written.",
            hint=f"{_ELSEWHERE}; credentials open a private bucket ({_CREDENTIALS[scheme]})",
        )
    if exc.status == 404:
        return DownloadFailed(f"There is no bucket {place} (HTTP 404). Nothing was written.", hint=_ELSEWHERE)
    return DownloadFailed(f"{place} does not list its files: {exc.reason}. Nothing was written.", hint=_ELSEWHERE)


class _Signed(Scheme):
    """``signed-s3://`` and ``signed-gs://``. No file and no error holds a credential: the request is signed late."""

    shareable = False

    def key(self, url: str) -> str:
        match = _SIGNED.fullmatch(url)
        return f"{match['bucket']}/{match['path']}" if match else url

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        raise DownloadFailed(f"{names.shown(url)} names a signed file, which cannot be listed.")

    def request_url(self, url: str, where: Settings) -> str:
        """Sign the URL for twelve hours; raises MissingPackage, and DownloadFailed if credentials cannot sign."""
        from rlds_cli.places.sources.buckets import BucketSource

        match = _SIGNED.fullmatch(url)
        if match is None:
            return url
        scheme, bucket = match["scheme"], match["bucket"]
        try:
            with Client(where) as client:
                source = BucketSource(Address(scheme, bucket, ""), client, region=match["region"] or _DEFAULT_REGION)
                return source.signed(match["path"], _VALID)
        except (Permanent, Retryable) as exc:
            raise _not_opened(scheme, bucket, Permanent(exc.reason)) from None


# -- this machine


class _Local(Scheme):
    """Paths, ``file:`` URLs, and ``package:`` names of files inside the installed package."""

    usage = "file://"
    shareable = False

    def key(self, url: str) -> str:
        return self.local_path(url).as_posix()

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        return self.list_offline(url)

    def list_offline(self, url: str) -> tuple[RemoteFile, ...]:
        path = self.local_path(url)
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

    def local_path(self, url: str) -> Path:
        """Return the path that a URL names; it need not exist."""
        if url.startswith(_PACKAGE):
            inside = url.removeprefix(_PACKAGE)
            return Path(str(resources("rlds_cli")), names.safe(inside) if inside else "")
        if not url.startswith("file:"):
            return settings.expanded(url).absolute()
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise DownloadFailed(f"{url} names another machine.", hint="file:///absolute/path")
        return Path(unquote(parts.path)).absolute()

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        path = self.local_path(mirror)
        yield from (p.as_uri() for p in (path / tail for tail in tails) if p.is_file())


def _local_file(url: str, path: Path, name: str) -> RemoteFile:
    inside = url.startswith(_PACKAGE)
    origin = _PACKAGE + path.relative_to(str(resources("rlds_cli"))).as_posix() if inside else path.as_uri()
    return RemoteFile(path=name, urls=(origin,), size=path.stat().st_size, key=path.as_posix())


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


# -- the table

WEB, LOCAL, _HUB_URLS, _BUCKET_URLS, _SIGNED_URLS = _Web(), _Local(), _Hub(), _Buckets(), _Signed()

SCHEMES: Mapping[str, Scheme] = {
    "http": WEB,
    "https": WEB,
    "hf": _HUB_URLS,
    "gs": _BUCKET_URLS,
    "s3": _BUCKET_URLS,
    "signed-gs": _SIGNED_URLS,
    "signed-s3": _SIGNED_URLS,
    "file": LOCAL,
}


def lookup(url: str) -> Scheme | None:
    """Return the scheme of a URL or path; None for one that is not in the table."""
    scheme = url.partition(":")[0].lower()
    if "://" not in url and scheme != "file":  # a path, or package:samples/...
        return LOCAL
    return SCHEMES.get(scheme)


def scheme_of(url: str) -> Scheme:
    """Return the scheme of a URL or path; raises DownloadFailed for one that is not in the table."""
    found = lookup(url)
    if found is None:
        raise DownloadFailed(
            f"{names.shown(url)}: {names.split(url).scheme}: addresses are not supported.",
            hint=", ".join(dict.fromkeys(s.usage for s in SCHEMES.values() if s.usage)),
        )
    return found


def single_file(url: str) -> RemoteFile | None:
    """Return the file that a remote URL names where its form alone says that it names one, else None."""
    found = lookup(url)
    return found.single_file(url) if found else None


def local_path(url: str) -> Path | None:
    """Return the path of a URL on this machine; None for a remote URL."""
    found = lookup(url)
    return found.local_path(url) if found else None


def request_url(url: str, where: Settings) -> str:
    """Return the HTTP address of a file. An unknown scheme is kept: the request then fails and says why."""
    found = lookup(url)
    return found.request_url(url, where) if found else url


def network_schemes() -> tuple[str, ...]:
    """Return the schemes of addresses that mean the same on every machine."""
    return tuple(name for name, scheme in SCHEMES.items() if scheme.shareable)
