"""A bucket of S3, of a compatible server or of Google Cloud Storage as a source, by obstore.

Credentials are those of `settings`. Without any, requests are not signed, which public buckets answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any
from urllib.parse import quote

from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent, Retryable, Stopped
from rlds_cli.base.http.ranges import NoRange, RangeRequest, Reply, Tag
from rlds_cli.base.settings import Settings
from rlds_cli.errors import MissingPackage, RldsError
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.bucket_listing import http_root, region_in
from rlds_cli.places.sources.limits import ListingLimits
from rlds_cli.places.sources.place import (
    ANY,
    LONGEST,
    Body,
    Chunk,
    Document,
    Meta,
    Overtaken,
    Place,
    Unconditional,
)
from rlds_cli.places.sources.web import WebPlace

PART = Body.PIECE  # bytes of a part of a large upload
_PARTS = 9_000  # S3 takes 10,000
_AT_ONCE = 4  # parts of each of the files that are sent at a time
_SLOW = 10  # times as long as for an answer: seconds for parts that are sent at once
_LONGEST = 900.0  # seconds of any request
_CHUNK = 1 << 20
_WHOLE = 8 << 20  # bytes of a range that is taken in one piece: it costs a copy less than a stream
_SIGNED = timedelta(hours=1)
_MOST_SIBLINGS = 100
_DEFAULT_REGION = "us-east-1"
_RETRIES = 4  # of one part of an upload, by obstore: a whole file is not sent again for it
_HINTS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of ~/.aws/credentials, must allow it",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names the key file of a service account that may do it",
}
_KINDS = {
    "html": "text/html; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "json": "application/json",
}
_CODES = {  # of S3 and Google, and what they mean
    "InvalidAccessKeyId": "the access key is not known",
    "SignatureDoesNotMatch": "the secret key is not that of the access key",
    "ExpiredToken": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
}
_NO_BUCKET = ("NoSuchBucket", "InvalidBucketName")
_NOT_AGAIN = {400, 401, 403, 404, 405, 411, 413, 416, 501}


_begun: list[int] = []  # the process that has used obstore, whose threads do not survive a fork


def was_forked() -> bool:
    """Return whether obstore was used by a parent of this process, and cannot be used here."""
    return bool(_begun) and _begun[0] != os.getpid()


class BucketPlace(Place):
    """The files below ``s3://BUCKET/PATH`` or ``gs://BUCKET/PATH``; ``region`` of S3 if it is known."""

    at_once = 2  # while one begins or ends, the parts of the other are on their way

    def __init__(self, address: Address, client: Client, *, region: str | None = None) -> None:
        super().__init__(address, client)
        if region is not None:
            self.__dict__["_region"] = region
        self._obstore = _import_obstore()
        self._version = "version" if address.scheme == "gs" else "e_tag"  # by which the store compares

    @cached_property
    def _store(self) -> Any:
        """The bucket as obstore has it, to read; made with the first request, which asks S3 for the bucket's region."""
        return self._made({"read_timeout": timedelta(seconds=self.client.policy.read)}, retries=0)

    @cached_property
    def _writer(self) -> Any:
        """The bucket to write: an answer comes when a whole part was sent, which takes long on a slow line."""
        return self._made({"timeout": timedelta(seconds=_SLOW * self.client.policy.read)}, retries=_RETRIES)

    @cached_property
    def _sender(self) -> Any:
        """The bucket to write large files: over TLS, which protects bodies, requests do not sign the hashes of theirs.

        To hash a body takes longer than to send it.
        """
        if self._endpoint.startswith("http://") or self.address.scheme == "gs":
            return self._writer
        timeouts = {"timeout": timedelta(seconds=_SLOW * self.client.policy.read)}
        return self._made(timeouts, retries=_RETRIES, unsigned_payload=True)

    @property
    def _endpoint(self) -> str:
        return self.where.gcs if self.address.scheme == "gs" else self.where.s3 or ""

    def _made(self, timeouts: Mapping[str, timedelta], *, retries: int, **more: bool) -> Any:
        if not _begun:
            _begun.append(os.getpid())
        where, policy = self.where, self.client.policy
        common: dict[str, Any] = {
            "retry_config": {
                "max_retries": retries,
                "retry_timeout": timedelta(seconds=policy.idle),
                "backoff": {
                    "init_backoff": timedelta(seconds=min(policy.first, 0.2)),
                    "max_backoff": timedelta(seconds=min(policy.longest, 5.0)),
                },
            },
            "client_options": {
                "connect_timeout": timedelta(seconds=policy.connect),
                "timeout": timedelta(seconds=_LONGEST),
                "allow_http": self._endpoint.startswith("http://"),
                **timeouts,
            },
        }
        if self.address.scheme == "gs":
            key: dict[str, Any] = {"service_account": str(where.google)} if where.google else {"skip_signature": True}
            try:
                return self._obstore.store.GCSStore(self.address.root, base_url=where.gcs, **key, **common)
            except self._obstore.exceptions.BaseError:  # whose text may hold a part of the key
                raise Permanent("the key file of the service account cannot be used", 401) from None
        options: dict[str, Any] = {"region": self._region, **where.aws, **more}
        if "access_key_id" not in where.aws:
            options["skip_signature"] = True
        if where.s3:
            options["endpoint"] = where.s3
        options["virtual_hosted_style_request"] = not where.s3 and "." not in self.address.root
        return self._obstore.store.S3Store(self.address.root, **options, **common)

    @cached_property
    def _region(self) -> str:
        """The region of the bucket. S3 tells it to everybody, in the headers of a refusal."""
        if self.where.region or self.where.s3:
            return self.where.region or _DEFAULT_REGION
        try:
            with self.client.open(f"https://s3.amazonaws.com/{self.address.root}") as response:
                return response.headers.get("x-amz-bucket-region", _DEFAULT_REGION)
        except Permanent as exc:
            return region_in(exc) or _DEFAULT_REGION
        except Retryable:
            return _DEFAULT_REGION

    def signed(self, name: str, valid: timedelta = _SIGNED) -> str:
        """Return a URL by which a file can be read for a while, without further credentials; nothing is asked for."""
        key = self._key(name)
        if not has_credentials(self.address.scheme, self.where):
            region = None if self.address.scheme == "gs" else self._region
            return f"{http_root(self.address.scheme, self.address.root, region, self.where)}/{quote(key)}"
        try:
            return str(self._obstore.sign(self._store, "GET", key, valid))
        except self._obstore.exceptions.BaseError as e:
            raise self._failed(e) from None

    # -- reading

    def document(self, name: str, longest: int) -> Document | None:
        """Return a small file, with its ETag; in Google Cloud Storage its generation."""
        try:
            found = self._obstore.get(self._store, self._key(name))
            if found.meta["size"] > longest:
                raise Permanent(f"it has more than {longest:,} bytes")
            data = bytes(found.bytes())
            if len(data) != found.meta["size"]:
                raise Retryable("the connection closed early")
            return Document(data, found.meta[self._version] or "")
        except (Permanent, Retryable):
            raise
        except FileNotFoundError as e:
            if _code(e) in _NO_BUCKET:
                raise self._failed(e) from None
            return None
        except Exception as e:
            raise self._failed(e) from None

    def stat(self, name: str) -> Meta | None:
        """Return the size of a file."""
        try:
            return Meta(name, int(self._obstore.head(self._store, self._key(name))["size"]))
        except FileNotFoundError:
            return None
        except Exception as e:
            raise self._failed(e) from None

    @contextmanager
    def open(self, name: str, request: RangeRequest) -> Iterator[Reply]:
        """Request a range of a file."""
        asked: Any = {"offset": request.start} if request.stop is None else (request.start, request.stop)
        try:
            found = self._obstore.get(self._store, self._key(name), options={"range": asked})
            (first, end), said = found.range, found.meta
        except FileNotFoundError:
            raise Permanent("there is no such file", 404) from None
        except Exception as e:
            raise self._failed(e) from None
        if first != request.start:
            raise NoRange("the answer is a range that was not requested")
        tag = Tag(etag=said["e_tag"], modified=str(said["last_modified"]), size=said["size"])
        yield Reply(tag=tag, start=first, stop=end, blocks=self._chunks(found, end - first))

    def _chunks(self, found: Any, size: int) -> Iterator[Chunk]:
        try:
            for chunk in found.stream(min_chunk_size=_CHUNK) if size > _WHOLE else [found.bytes()]:
                yield memoryview(chunk)
        except Exception as e:
            raise self._failed(e) from None

    def list(self, prefix: str) -> Iterator[Meta]:
        """Yield the files below a directory of the bucket."""
        limit, below = ListingLimits(), self._key("")
        try:
            pages = self._obstore.list(self._store, prefix=self._key(prefix).rstrip("/") or None)
            for number, page in enumerate(pages):
                limit.ask(str(number))
                for found in page:
                    if found["path"].startswith(below):
                        yield Meta(limit.take(found["path"])[len(below) :], int(found["size"]))
        except Permanent:
            raise
        except Exception as e:
            raise self._failed(e) from None

    def siblings(self) -> Iterator[Place]:
        """Yield the places beside this one in the bucket."""
        above = self.address.path.rpartition("/")[0]
        with suppress(Exception):  # a bucket that may not be listed has none
            found = self._obstore.list_with_delimiter(self._store, prefix=above or None)
            for place in sorted(found["common_prefixes"])[:_MOST_SIBLINGS]:
                beside = self.address.sibling(place.strip("/").rpartition("/")[2])
                if beside is not None and beside.path != self.address.path:
                    made = self.beside(beside)
                    made.__dict__["_store"] = self._store
                    yield made

    # -- writing

    def write(self, name: str, body: Body, *, if_tag: str | Unconditional | None = ANY) -> int:
        """Send a file, in parts if it is large."""
        key = self._key(name)
        if not isinstance(if_tag, Unconditional):
            self._replace(name, body, if_tag)
            return body.size
        try:
            if body.size <= PART:
                data = b"".join(body.pieces())
                self._obstore.put(self._writer, key, data, attributes=_kind(name), use_multipart=False)
            else:
                self._send(key, body)
            there = int(self._obstore.head(self._store, key)["size"])
        except Exception as e:
            raise self._failed(e) from None
        if there != body.size:
            raise Retryable(f"{there:,} of {body.size:,} bytes were stored")
        return body.size

    def _send(self, key: str, body: Body) -> None:
        """Send a large file in parts; with signed hashes to a bucket whose policy denies others."""
        part = max(PART, -(-body.size // _PARTS))
        while True:
            sender = self._sender
            try:
                self._obstore.put(sender, key, self._pieces(body), chunk_size=part, max_concurrency=_AT_ONCE)
                return
            except Exception as e:
                failed = self._failed(e)
                if sender is self._writer or not isinstance(failed, Permanent) or failed.status != 403:
                    raise
                self._sender = self._writer

    def _pieces(self, body: Body) -> Iterator[Chunk]:
        for piece in body.pieces():
            self.client.check()
            yield piece

    def _replace(self, name: str, body: Body, seen: str | None) -> None:
        key, errors = self._key(name), self._obstore.exceptions
        with body.open() as content:
            data = content.read()
        mode: Any = "create" if seen is None else {self._version: seen}
        if self.compares:
            try:
                self._obstore.put(self._writer, key, data, attributes=_kind(name), mode=mode, use_multipart=False)
                return
            except (errors.AlreadyExistsError, errors.PreconditionError):
                raise Overtaken from None
            except (NotImplementedError, errors.NotSupportedError):
                self.compares = False
            except Exception as e:
                failed = self._failed(e)
                if not isinstance(failed, Permanent) or failed.status not in (400, 501):
                    raise failed from None
                self.compares = False
        there = self.document(name, LONGEST)
        if (None if there is None else there.tag) != seen:
            raise Overtaken
        try:
            self._obstore.put(self._writer, key, data, attributes=_kind(name), use_multipart=False)
        except Exception as e:
            raise self._failed(e) from None
        now = self.document(name, LONGEST)
        if now is None or now.data != data:
            raise Overtaken

    def copy(self, source: Place, name: str) -> bool:
        """Let the store copy a file of another place in the same bucket."""
        if not isinstance(source, BucketPlace):
            return False
        with suppress(Exception):  # a copy that fails is sent
            self._obstore.copy(self._store, source._key(name), self._key(name))
            return self.stat(name) == source.stat(name)
        return False

    def delete(self, names: Sequence[str]) -> None:
        """Remove files."""
        for name in names:
            try:
                self._obstore.delete(self._store, self._key(name))
            except FileNotFoundError:
                pass
            except Exception as e:
                raise self._failed(e) from None

    def _key(self, name: str) -> str:
        return f"{self.address.path}/{name}" if self.address.path else name

    def _failed(self, e: Exception) -> Exception:
        """Return what an error of obstore means, without its text: that holds requests and their signatures."""
        if isinstance(e, RldsError | Permanent | Stopped):  # of the file that is sent, or of the key file
            return e
        status = re.search(r"status(?: code)?: (\d{3})|with status (\d{3})|HTTP (?:status )?(\d{3})", str(e))
        number = int(next(filter(None, status.groups()))) if status else 0
        kind = type(e).__name__
        if isinstance(e, OSError) and e.errno is not None:
            return Permanent(e.strerror or kind)  # of a file of this machine
        code = _code(e)
        if code in _NO_BUCKET:
            return Permanent(f"there is no bucket {self.address.root}", 404)
        if code in _CODES:
            return Permanent(_CODES[code], 403)
        if kind == "PermissionDeniedError" or number == 403:
            return Permanent("access is denied (HTTP 403)", 403)
        if kind == "UnauthenticatedError" or number == 401:
            return Permanent("the credentials are missing or not accepted (HTTP 401)", 401)
        if number in _NOT_AGAIN:
            return Permanent(f"HTTP {number}", number)
        return Retryable(f"HTTP {number}" if number else "the connection failed")

    def hint(self, exc: Permanent) -> str | None:
        """Say which credentials and names to check."""
        if exc.reason.startswith("there is no bucket"):
            return "check the name of the bucket, and the endpoint (AWS_ENDPOINT_URL)"
        return _HINTS[self.address.scheme] if exc.status in (401, 403) else None


class SignedPlace(WebPlace):
    """A bucket, read by plain requests whose URLs are signed.

    A process that was forked after its parent had used obstore reads all buckets so.
    """

    def __init__(self, address: Address, client: Client) -> None:
        super().__init__(address, client)
        self._bucket = BucketPlace(address, client)

    def url(self, name: str) -> str:
        """Return the URL that a file is requested at."""
        return self._bucket.signed(name)


def has_credentials(scheme: str, where: Settings) -> bool:
    """Return whether credentials are set for the scheme."""
    return "access_key_id" in where.aws if scheme == "s3" else where.google is not None


def _code(e: Exception) -> str:
    """Return the code by which a store says what is wrong; nothing if it says none."""
    found = re.search(r"<Code>(\w{1,60})</Code>", str(e))
    return found[1] if found else ""


def _kind(name: str) -> dict[str, str]:
    """Return the content type of a page, which a bucket that serves pages tells browsers."""
    kind = _KINDS.get(name.rpartition(".")[2])
    return {"Content-Type": kind} if kind else {}


def _import_obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as exc:
        raise MissingPackage(
            "Buckets are read and written with obstore, which is not installed.",
            hint="pip install 'rlds-cli[buckets]'",
        ) from exc
    return obstore
