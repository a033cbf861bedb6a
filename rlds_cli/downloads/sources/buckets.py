"""List buckets: GCS with its JSON API, S3 and compatible servers with ListObjectsV2.

::

    gs://<bucket>/<path>      https://storage.googleapis.com/storage/v1/b/<bucket>/o?prefix=...
    s3://<bucket>/<path>      https://<bucket>.s3.amazonaws.com/?list-type=2&prefix=...

``<path>`` is a file, a directory, a pattern with ``*`` or a prefix, as on the hub.

Pages of ListObjectsV2 are untrusted XML: read without a tree, document types and entities.

::

    <ListBucketResult>
        <Contents><Key>a/b.h5</Key><Size>5</Size><ETag>"..."</ETag></Contents>
        <NextContinuationToken>...</NextContinuationToken>

Public buckets are not listed with ``obstore``: it reads a page of any length (3 GB in 10 s from a server that does not
end it), and tells neither crc32c nor generation nor encoding of a file in GCS, by which downloads are checked. Private
buckets are listed with the user's credentials and fetched by signed URLs, both with ``obstore``. No file and no
error holds a credential: a private file has the address ``signed-s3://<region>@<bucket>/<path>`` or
``signed-gs://<bucket>/<path>``, which is signed just before the request.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode
from xml.parsers import expat

from rlds_cli.downloads import names
from rlds_cli.downloads.sources.protocol import FileSource, ListingLimits, RemoteFile
from rlds_cli.errors import DownloadFailed, MissingPackage
from rlds_cli.files import json as documents
from rlds_cli.http.client import Client
from rlds_cli.http.connections import Permanent
from rlds_cli.settings import Settings

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

_URL = re.compile(r"(?P<scheme>gs|s3)://(?P<bucket>[a-z0-9][a-z0-9._-]{0,220})(?:/(?P<path>.*))?", re.DOTALL)
_LONG = 64  # characters of a generation; it has twenty
_MD5 = re.compile(r"[0-9a-f]{32}")
_CREDENTIALS = {"s3": "AWS_ACCESS_KEY_ID or AWS_PROFILE", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
_FIELDS = "items(name,size,md5Hash,crc32c,generation,contentEncoding),nextPageToken"
_ROOT, _OBJECT, _NEXT = "ListBucketResult", "Contents", "NextContinuationToken"
_LONGEST = 8192  # characters of a value
_TAGS = ("Key", "Size", "ETag")
_SIGNED_URL = re.compile(
    r"signed-(?P<scheme>gs|s3)://(?:(?P<region>[a-z0-9-]+)@)?(?P<bucket>[^/@]+)/(?P<path>.+)", re.DOTALL
)
_VALID = timedelta(hours=12)  # longer than any download of one file; S3 allows a week
_DEFAULT_REGION = "us-east-1"
_CLOSED, _NONE = "they do not open it", "there is no such bucket"
_SAID = {
    **dict.fromkeys(("401", "403", "UnauthenticatedError", "PermissionDeniedError"), _CLOSED),
    **dict.fromkeys(("404", "NotFoundError"), _NONE),
}


@dataclass(frozen=True, slots=True)
class BucketLocation:
    """A file, a directory, a pattern or a prefix in a bucket; ``region`` if S3 redirected to one."""

    scheme: str
    bucket: str
    path: str
    region: str | None = None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")

    def root(self, where: Settings) -> str:
        """The URL below which the bucket's files are fetched."""
        if self.scheme == "gs":
            return f"{where.gcs}/{self.bucket}"
        if where.s3:
            return f"{where.s3}/{self.bucket}"
        host = f"s3.{self.region}.amazonaws.com" if self.region else "s3.amazonaws.com"
        # A certificate for *.s3.amazonaws.com is none for a.b.s3.amazonaws.com.
        return f"https://{host}/{self.bucket}" if "." in self.bucket else f"https://{self.bucket}.{host}"


@dataclass(frozen=True, slots=True)
class _Object:
    """A listed file. ``generation`` identifies its content in GCS."""

    name: str
    size: int | None
    md5: str | None = None
    crc32c: str | None = None
    generation: str | None = None


def parse(url: str) -> BucketLocation:
    """Read ``gs://<bucket>[/<path>]`` or ``s3://<bucket>[/<path>]``; the path is taken as it is, without escapes.

    Raises
    ------
    DownloadFailed
        For anything else.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise DownloadFailed(f"{url} does not name a bucket.", hint="gs://BUCKET/PATH or s3://BUCKET/PATH")
    path = (match["path"] or "").strip("/")
    return BucketLocation(match["scheme"], match["bucket"], names.safe(path) if path else "")


def list_bucket(url: str, client: Client) -> tuple[RemoteFile, ...]:
    """List the files of a bucket URL, with sizes and the bucket's own hashes.

    Raises
    ------
    DownloadFailed
        When the bucket does not answer, is closed, or has no such file in it.
    """
    asked = parse(url)
    try:
        place, objects = _found(asked, client)
    except Permanent as exc:
        if exc.status in (401, 403) and has_credentials(asked.scheme, client.where):
            return _list_private(replace(asked, region=exc.headers.get("x-amz-bucket-region")), client.where)
        raise _not_listed(asked, exc) from exc
    chosen = names.selected(objects, place.path)
    if not chosen:
        raise DownloadFailed(f'{place.scheme}://{place.bucket} has nothing called "{place.path}".')
    names.all_safe(chosen.values())
    root = place.root(client.where)
    return tuple(_file(place, objects[name], f"{root}/{quote(name)}", path) for name, path in chosen.items())


def _list_private(place: BucketLocation, where: Settings) -> tuple[RemoteFile, ...]:
    """List with the user's credentials. ETags are not used as md5: the bucket may be encrypted."""
    bucket, path = place.bucket, place.path
    above = names.fixed_directory(path) if "*" in path else path
    for directory in dict.fromkeys((above, names.fixed_directory(path))):
        found = dict(list_below(place.scheme, bucket, directory, place.region, where))
        if chosen := names.selected(found, path):
            break
    else:
        raise DownloadFailed(f'{place.scheme}://{bucket} has nothing called "{path}".')
    names.all_safe(chosen.values())
    return tuple(
        RemoteFile(
            path=relative,
            urls=(url_of(place.scheme, bucket, name, place.region),),
            size=found[name],
            key=f"{bucket}/{name}",
        )
        for name, relative in chosen.items()
    )


def _file(place: BucketLocation, found: _Object, url: str, path: str) -> RemoteFile:
    return RemoteFile(
        path=path,
        urls=(url,),
        size=found.size,
        md5=found.md5,
        crc32c=found.crc32c,
        revision=found.generation,
        key=f"{place.bucket}/{found.name}",
    )


def _found(place: BucketLocation, client: Client) -> tuple[BucketLocation, dict[str, _Object]]:
    """Return files that may belong to the location, by name: those in the directory, else those with the prefix."""
    fixed = place.path.split("*")[0]
    directory = [f"{fixed}/"] if fixed == place.path != "" and not names.has_suffix(fixed) else []
    for prefix in (*directory, fixed):
        place, objects = _listed(place, prefix, client)
        if objects:
            break
    return place, objects


def _listed(place: BucketLocation, prefix: str, client: Client) -> tuple[BucketLocation, dict[str, _Object]]:
    if place.scheme == "gs":
        return place, {o.name: o for o in _gcs(place, prefix, client)}
    try:
        return place, {o.name: o for o in _s3(place, prefix, client)}
    except Permanent as exc:
        region = exc.headers.get("x-amz-bucket-region", "")
        if place.region or client.where.s3 or not re.fullmatch(r"[a-z0-9-]+", region):
            raise
        return _listed(BucketLocation(place.scheme, place.bucket, place.path, region), prefix, client)


def _gcs(place: BucketLocation, prefix: str, client: Client) -> Iterator[_Object]:
    root, limit = f"{client.where.gcs}/storage/v1/b/{place.bucket}/o", ListingLimits()
    page: str | None = ""
    while page is not None and limit.ask(page):
        query = {"prefix": prefix, "fields": _FIELDS, "maxResults": 1000} | ({"pageToken": page} if page else {})
        answer = _json(limit.read(client.document(f"{root}?{urlencode(query)}")[0]))
        for item in answer.get("items") or ():
            if not limit.take(item["name"]).endswith("/"):
                yield _gcs_object(item)
        following = answer.get("nextPageToken")
        page = following if isinstance(following, str) else None


def _json(body: bytes) -> dict[str, Any]:
    """Parse a page of a listing: an object whose items have a name each."""
    try:
        answer = documents.loads(body)
    except ValueError as exc:
        raise Permanent("the answer is not a list of files") from exc
    items = (answer.get("items") or []) if isinstance(answer, dict) else None
    if isinstance(items, list) and all(isinstance(i, dict) and isinstance(i.get("name"), str) for i in items):
        return dict(answer)
    raise Permanent("the answer is not a list of files")


def _gcs_object(item: dict[str, Any]) -> _Object:
    generation = str(item["generation"])[:_LONG] if isinstance(item.get("generation"), str | int) else None
    if item.get("contentEncoding") in (None, "", "identity"):
        md5, crc32c = _hex(item.get("md5Hash"), 16), _hex(item.get("crc32c"), 4)
        return _Object(item["name"], _size(item.get("size")), md5, crc32c, generation)
    # GCS decompresses such a file when it sends it: size and hashes are those of the compressed one.
    return _Object(item["name"], None, generation=generation)


def _size(text: object) -> int | None:
    digits = str(text) if isinstance(text, str | int) and not isinstance(text, bool) else ""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None


def _hex(encoded: object, length: int) -> str | None:
    """Convert a hash of GCS from Base64 to hexadecimal."""
    try:
        raw = base64.b64decode(encoded if isinstance(encoded, str) else "", validate=True)
    except ValueError:
        return None
    return raw.hex() if len(raw) == length else None


def _s3(place: BucketLocation, prefix: str, client: Client) -> Iterator[_Object]:
    root, limit = place.root(client.where), ListingLimits()
    page: str | None = ""
    while page is not None and limit.ask(page):
        query = {"list-type": 2, "prefix": prefix} | ({"continuation-token": page} if page else {})
        found, page = objects(limit.read(client.document(f"{root}/?{urlencode(query)}")[0]))
        for said in found:
            if not limit.take(said.get("Key", "/")).endswith("/"):
                yield _s3_object(place, said)


def _s3_object(place: BucketLocation, found: dict[str, str]) -> _Object:
    """Return a listed file. Its ETag is its md5 if it was uploaded in one piece, except in directory buckets."""
    etag = found.get("ETag", "").strip('"').lower()
    md5 = etag if _MD5.fullmatch(etag) and not place.bucket.endswith("--x-s3") else None
    return _Object(found["Key"], _size(found.get("Size")), md5)


def _not_listed(place: BucketLocation, exc: Permanent) -> DownloadFailed:
    bucket = f"{place.scheme}://{place.bucket}"
    elsewhere = "--from DIR|URL takes the files from another source"
    if exc.status in (401, 403):
        return DownloadFailed(
            f"{bucket} is closed: it does not list its files publicly (HTTP {exc.status}). Nothing was written.",
            hint=f"{elsewhere}; credentials open a private bucket ({_CREDENTIALS[place.scheme]})",
        )
    if exc.status == 404:
        return DownloadFailed(f"There is no bucket {bucket} (HTTP 404). Nothing was written.", hint=elsewhere)
    return DownloadFailed(f"{bucket} does not list its files: {exc.reason}. Nothing was written.", hint=elsewhere)


def objects(body: bytes) -> tuple[list[dict[str, str]], str | None]:
    """Parse a page: the fields of each object, and the token of the next page; raises Permanent."""
    reader = _S3PageParser()
    try:
        reader.parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as exc:  # LookupError: an unknown encoding
        raise Permanent("the answer is not a list of files") from exc
    return reader.found, reader.following or None


class _S3PageParser:
    def __init__(self) -> None:
        self.found: list[dict[str, str]] = []
        self.following = ""
        self._path: list[str] = []  # the elements that are open, without namespaces
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse

    def _refuse(self, *declared: object) -> NoReturn:
        raise Permanent("the answer declares a document type")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name.rpartition(" ")[2])
        if self._path[0] != _ROOT or len(self._path) > 32:
            raise Permanent("the answer is not a list of files")
        if self._path == [_ROOT, _OBJECT]:
            self.found.append({})

    def _end(self, name: str) -> None:
        self._path.pop()

    def _text(self, text: str) -> None:
        if self._path == [_ROOT, _NEXT]:
            self.following = _longer(self.following, text)
        elif len(self._path) == 3 and self._path[1] == _OBJECT and (field := self._path[2]) in _TAGS:
            said = self.found[-1]
            said[field] = _longer(said.get(field, ""), text)


def _longer(text: str, more: str) -> str:
    if len(text) > _LONGEST:
        raise Permanent(f"the answer has a value of more than {_LONGEST:,} characters")
    return text + more


def has_credentials(scheme: str, where: Settings) -> bool:
    """Return whether credentials are set for the scheme."""
    return bool(where.aws) if scheme == "s3" else where.google is not None


def url_of(scheme: str, bucket: str, path: str, region: str | None) -> str:
    """Return the address of a private file before it is signed."""
    return f"signed-{scheme}://{f'{region}@' if region else ''}{bucket}/{path}"


def signed_https(url: str, where: Settings) -> str:
    """Sign the URL of a private file for twelve hours; other URLs are returned as they are.

    Raises
    ------
    MissingPackage
        obstore is not installed.
    DownloadFailed
        Credentials are missing, or cannot sign.
    """
    match = _SIGNED_URL.fullmatch(url)
    if match is None:
        return url
    obstore = _obstore()
    try:
        store = _store(match["scheme"], match["bucket"], match["region"], where)
        return str(obstore.sign(store, "GET", match["path"], _VALID))
    except obstore.exceptions.BaseError as exc:
        raise _not_signed(match["scheme"], match["bucket"], exc) from None


def list_below(
    scheme: str, bucket: str, directory: str, region: str | None, where: Settings
) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of all files below a directory of a bucket, or of the whole bucket if it is empty.

    Raises
    ------
    MissingPackage, DownloadFailed
        As `signed_https`; or the credentials do not open the bucket.
    """
    obstore = _obstore()
    limit = ListingLimits()
    try:
        for k, found in enumerate(obstore.list(_store(scheme, bucket, region, where), prefix=directory or None)):
            limit.ask(str(k))
            yield from ((limit.take(str(f["path"])), int(f["size"])) for f in found)
    except Permanent as exc:
        raise DownloadFailed(
            f"{scheme}://{bucket} does not list its files: {exc.reason}. Nothing was written."
        ) from exc
    except obstore.exceptions.BaseError as exc:
        raise _not_signed(scheme, bucket, exc) from None


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as exc:
        raise MissingPackage(
            "Buckets that are not public are read with obstore, which is not installed.",
            hint="pip install 'rlds-cli[buckets]'",
        ) from exc
    return obstore


def _store(scheme: str, bucket: str, region: str | None, where: Settings) -> S3Store | GCSStore:
    store = _obstore().store
    retry = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
    if scheme == "gs":
        local = {"client_options": {"allow_http": True}} if where.gcs.startswith("http://") else {}
        found: GCSStore = store.GCSStore(bucket, service_account=str(where.google), retry_config=retry, **local)
        return found
    options: dict[str, Any] = {"region": region or _DEFAULT_REGION, **where.aws}
    if where.s3:
        options |= {"endpoint": where.s3, "client_options": {"allow_http": where.s3.startswith("http://")}}
    signed: S3Store = store.S3Store(
        bucket, retry_config=retry, virtual_hosted_style_request=not where.s3 and "." not in bucket, **options
    )
    return signed


def _not_signed(scheme: str, bucket: str, exc: Exception) -> DownloadFailed:
    """Return an error without the request, which holds a signature."""
    status = re.search(r"status code: (\d{3}) ([A-Za-z ]*)", str(exc))
    said = _SAID.get(status[1] if status else type(exc).__name__)
    why = said or (f"HTTP {status[1]} {status[2].strip()}" if status else type(exc).__name__)
    hint = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of ~/.aws/credentials"
    if scheme == "gs":
        hint = "GOOGLE_APPLICATION_CREDENTIALS names the key file of a service account: others cannot sign"
    return DownloadFailed(f"{scheme}://{bucket} with your credentials: {why}. Nothing was written.", hint=hint)


class _BucketSource(FileSource):
    """``gs://<bucket>/<path>`` and ``s3://<bucket>/<path>``."""

    usage = "gs://, s3://"

    def key(self, url: str) -> str:
        place = parse(url)
        return f"{place.bucket}/{place.path}".rstrip("/")

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        return list_bucket(url, client)

    def list_offline(self, url: str) -> None:
        parse(url)

    def single_file(self, url: str) -> RemoteFile | None:
        place = parse(url)
        if "*" in place.path or not names.has_suffix(place.path):
            return None
        return RemoteFile(place.path.rpartition("/")[2], (url,), key=f"{place.bucket}/{place.path}")

    def request_url(self, url: str, where: Settings) -> str:
        place = parse(url)
        return f"{place.root(where)}/{quote(place.path)}"

    def root(self, url: str, where: Settings) -> str:
        place = parse(url)
        return f"{place.root(where)}/{place.path}"

    def mirror_urls(self, mirror: str, tails: Sequence[str]) -> Iterator[str]:
        yield from (f"{mirror.rstrip('/')}/{tail}" for tail in tails[:2])


class _SignedSource(FileSource):
    """``signed-s3://`` and ``signed-gs://``: a file of a private bucket, until its request is signed."""

    shareable = False

    def key(self, url: str) -> str:
        match = _SIGNED_URL.fullmatch(url)
        return f"{match['bucket']}/{match['path']}" if match else url

    def list(self, url: str, client: Client) -> tuple[RemoteFile, ...]:
        raise DownloadFailed(f"{names.shown(url)} names a signed file, which cannot be listed.")

    def request_url(self, url: str, where: Settings) -> str:
        return signed_https(url, where)


BUCKETS = _BucketSource()
SIGNED = _SignedSource()
