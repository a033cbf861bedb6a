"""Buckets that are not public: listed with the user's credentials, fetched by URLs that are signed for a while.

``obstore`` signs; nothing else here, on the disk or in an error holds a credential. A file is called
``signed-s3://<region>@<bucket>/<path>`` or ``signed-gs://<bucket>/<path>`` until it is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlds_cli.errors import DownloadFailed, MissingPackage
from rlds_cli.settings import Settings
from rlds_cli.transfer.allowance import Allowance
from rlds_cli.transfer.client import Refused

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

_URL = re.compile(r"signed-(?P<scheme>gs|s3)://(?:(?P<region>[a-z0-9-]+)@)?(?P<bucket>[^/@]+)/(?P<path>.+)", re.DOTALL)
_VALID = timedelta(hours=12)  # longer than any download of one file; S3 allows a week
_DEFAULT_REGION = "us-east-1"
_CLOSED, _NONE = "they do not open it", "there is no such bucket"
_SAID = {
    **dict.fromkeys(("401", "403", "UnauthenticatedError", "PermissionDeniedError"), _CLOSED),
    **dict.fromkeys(("404", "NotFoundError"), _NONE),
}


def has_credentials(scheme: str, where: Settings) -> bool:
    """Whether the user has said who they are."""
    return bool(where.aws) if scheme == "s3" else where.google is not None


def url_of(scheme: str, bucket: str, path: str, region: str | None) -> str:
    """What a file is called until it is fetched."""
    return f"signed-{scheme}://{f'{region}@' if region else ''}{bucket}/{path}"


def https(url: str, where: Settings) -> str:
    """A signed URL of a private file, good for twelve hours; other URLs as they are.

    Raises
    ------
    MissingPackage
        obstore is not installed.
    DownloadFailed
        There are no credentials any more, or they cannot sign.
    """
    match = _URL.fullmatch(url)
    if match is None:
        return url
    obstore = _obstore()
    try:
        store = _store(match["scheme"], match["bucket"], match["region"], where)
        return str(obstore.sign(store, "GET", match["path"], _VALID))
    except obstore.exceptions.BaseError as exc:
        raise _failed(match["scheme"], match["bucket"], exc) from None


def list_below(
    scheme: str, bucket: str, directory: str, region: str | None, where: Settings
) -> Iterator[tuple[str, int]]:
    """Names and sizes of all files below a directory of a bucket; of all of it where that is empty.

    Raises
    ------
    MissingPackage, DownloadFailed
        As `https`; or the credentials do not open the bucket.
    """
    obstore = _obstore()
    allowance = Allowance()
    try:
        for k, found in enumerate(obstore.list(_store(scheme, bucket, region, where), prefix=directory or None)):
            allowance.ask(str(k))
            yield from ((allowance.take(str(f["path"])), int(f["size"])) for f in found)
    except Refused as exc:
        raise DownloadFailed(
            f"{scheme}://{bucket} does not list its files: {exc.reason}. Nothing was written."
        ) from exc
    except obstore.exceptions.BaseError as exc:
        raise _failed(scheme, bucket, exc) from None


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


def _failed(scheme: str, bucket: str, exc: Exception) -> DownloadFailed:
    """What went wrong without what was asked: a request holds a signature."""
    status = re.search(r"status code: (\d{3}) ([A-Za-z ]*)", str(exc))
    said = _SAID.get(status[1] if status else type(exc).__name__)
    why = said or (f"HTTP {status[1]} {status[2].strip()}" if status else type(exc).__name__)
    hint = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of ~/.aws/credentials"
    if scheme == "gs":
        hint = "GOOGLE_APPLICATION_CREDENTIALS names the key file of a service account: others cannot sign"
    return DownloadFailed(f"{scheme}://{bucket} with your credentials: {why}. Nothing was written.", hint=hint)
