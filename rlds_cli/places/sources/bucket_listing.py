"""List public buckets: Google Cloud Storage with its JSON API, S3 and compatible servers with ListObjectsV2.

::

    gs://<bucket>/<prefix>      https://storage.googleapis.com/storage/v1/b/<bucket>/o?prefix=...
    s3://<bucket>/<prefix>      https://<bucket>.s3.amazonaws.com/?list-type=2&prefix=...

Pages of ListObjectsV2 are untrusted XML: read without a tree, document types and entities.

::

    <ListBucketResult>
        <Contents><Key>a/b.h5</Key><Size>5</Size><ETag>"..."</ETag></Contents>
        <NextContinuationToken>...</NextContinuationToken>

Public buckets are not listed with ``obstore``: it reads a page of any length (3 GB in 10 s from a server that does not
end it), and tells neither crc32c nor generation nor encoding of a file in GCS, by which downloads are checked.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import urlencode
from xml.parsers import expat

from rlds_cli.base.files import json as documents
from rlds_cli.base.files import names
from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.settings import Settings
from rlds_cli.places.sources.limits import ListingLimits
from rlds_cli.places.sources.place import Meta

_LONG = 64  # characters of a generation; it has twenty
_MD5 = re.compile(r"[0-9a-f]{32}")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_FIELDS = "items(name,size,md5Hash,crc32c,generation,contentEncoding),nextPageToken"
_ROOT, _OBJECT, _NEXT = "ListBucketResult", "Contents", "NextContinuationToken"
_LONGEST = 8192  # characters of a value
_TAGS = ("Key", "Size", "ETag")


def http_root(scheme: str, bucket: str, region: str | None, where: Settings) -> str:
    """Return the URL below which the files of a bucket are requested; ``region`` if S3 named one."""
    if scheme == "gs":
        return f"{where.gcs}/{bucket}"
    if where.s3:
        return f"{where.s3}/{bucket}"
    host = f"s3.{region}.amazonaws.com" if region else "s3.amazonaws.com"
    # A certificate for *.s3.amazonaws.com is none for a.b.s3.amazonaws.com.
    return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"


def region_in(exc: Permanent) -> str | None:
    """Return the region that S3 names in a refusal, which it does for everybody."""
    found = exc.headers.get("x-amz-bucket-region", "")
    return found if _REGION.fullmatch(found) else None


def find(scheme: str, bucket: str, path: str, client: Client) -> tuple[str | None, dict[str, Meta]]:
    """Return the region of a bucket, if S3 redirects to it, and the files that may belong to a path, by name.

    These are the files in the directory, else those with the prefix; if none match a pattern, those beside them.

    Raises
    ------
    Permanent
        The bucket is not public, or does not answer.
    """
    fixed, region = path.split("*")[0], None
    directory = [f"{fixed}/"] if fixed == path != "" and not names.has_suffix(fixed) else []
    beside = [names.fixed_directory(path)] if "*" in path else []
    for prefix in (*directory, fixed, *beside):
        try:
            found = {m.name: m for m in _listed(scheme, bucket, region, prefix, client)}
        except Permanent as exc:
            region = region or region_in(exc)
            if scheme == "gs" or client.where.s3 or region is None:
                raise
            found = {m.name: m for m in _listed(scheme, bucket, region, prefix, client)}
        if found:
            break
    return region, found


def _listed(scheme: str, bucket: str, region: str | None, prefix: str, client: Client) -> Iterator[Meta]:
    if scheme == "gs":
        return _gcs(bucket, prefix, client)
    return _s3(http_root(scheme, bucket, region, client.where), prefix, client, etags=not bucket.endswith("--x-s3"))


def _gcs(bucket: str, prefix: str, client: Client) -> Iterator[Meta]:
    root, limit = f"{client.where.gcs}/storage/v1/b/{bucket}/o", ListingLimits()
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


def _gcs_object(item: dict[str, Any]) -> Meta:
    generation = str(item["generation"])[:_LONG] if isinstance(item.get("generation"), str | int) else None
    if item.get("contentEncoding") in (None, "", "identity"):
        md5, crc32c = _hex(item.get("md5Hash"), 16), _hex(item.get("crc32c"), 4)
        return Meta(item["name"], _size(item.get("size")), md5=md5, crc32c=crc32c, revision=generation)
    # GCS decompresses such a file when it sends it: size and hashes are those of the compressed one.
    return Meta(item["name"], revision=generation)


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


def _s3(root: str, prefix: str, client: Client, *, etags: bool) -> Iterator[Meta]:
    """List a bucket. An ETag is the md5 of what was uploaded in one piece, except in directory buckets."""
    limit = ListingLimits()
    page: str | None = ""
    while page is not None and limit.ask(page):
        query = {"list-type": 2, "prefix": prefix} | ({"continuation-token": page} if page else {})
        found, page = objects(limit.read(client.document(f"{root}/?{urlencode(query)}")[0]))
        for said in found:
            if not limit.take(said.get("Key", "/")).endswith("/"):
                tag = said.get("ETag", "").strip('"').lower()
                yield Meta(said["Key"], _size(said.get("Size")), md5=tag if etags and _MD5.fullmatch(tag) else None)


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
