"""URLs of buckets of S3 and Google Cloud Storage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from urllib.parse import quote

from rlds_cli.base import visible
from rlds_cli.base.files import names
from rlds_cli.base.http.client import Client
from rlds_cli.base.http.connections import Permanent, Retryable
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.places.files.remote_file import RemoteFile
from rlds_cli.places.sources import bucket_listing
from rlds_cli.places.sources.addresses import Address
from rlds_cli.places.sources.bucket_listing import http_root, region_in
from rlds_cli.places.sources.buckets import BucketPlace, has_credentials
from rlds_cli.places.sources.place import Meta
from rlds_cli.places.urls.url import ELSEWHERE, Offer, Url

_DEFAULT_REGION = "us-east-1"
_VALID = timedelta(hours=12)  # longer than any download of one file; S3 allows a week
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of ~/.aws/credentials",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS names the key file of a service account: others cannot sign",
}
_CREDENTIALS = {"s3": "AWS_ACCESS_KEY_ID or AWS_PROFILE", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
_URL = re.compile(r"(?P<scheme>gs|s3)://(?P<bucket>[a-z0-9][a-z0-9._-]{0,220})(?:/(?P<path>.*))?", re.DOTALL)
_SIGNED_URL = re.compile(
    r"signed-(?P<scheme>gs|s3)://(?:(?P<region>[a-z0-9-]+)@)?(?P<bucket>[^/@]+)/(?P<path>.+)", re.DOTALL
)


class BucketUrl(Url):
    """``gs://<bucket>/<path>`` or ``s3://<bucket>/<path>``."""

    usage = "gs://, s3://"

    def parse(self) -> tuple[Address, str]:
        """Return the bucket; the path is taken as it is, without escapes."""
        match = _URL.fullmatch(self.url)
        if match is None:
            raise DownloadFailed(f"{self.url} does not name a bucket.", hint="gs://BUCKET/PATH or s3://BUCKET/PATH")
        path = (match["path"] or "").strip("/")
        return Address(match["scheme"], match["bucket"], ""), names.safe(path) if path else ""

    def mirrored(self, tails: Sequence[str]) -> Iterator[str]:
        """Yield URLs below this one."""
        yield from (f"{self.url.rstrip('/')}/{tail}" for tail in tails[:2])

    def request(self, where: Settings) -> str:
        """Return the HTTP address of a file, which a public bucket answers."""
        address, path = self.parse()
        return f"{http_root(address.scheme, address.root, None, where)}/{quote(path)}"

    def request_root(self, where: Settings) -> str:
        """Return the HTTP address below which the files are requested."""
        address, path = self.parse()
        return f"{http_root(address.scheme, address.root, None, where)}/{path}"

    def single_file(self) -> RemoteFile | None:
        """Return the file if the path has the suffix of one."""
        return self._named()

    def _files(self, client: Client) -> Offer:
        """Ask the bucket as the public may, else with the user's credentials: then URLs are to be signed."""
        address, path = self.parse()
        nothing, closed = f'{address.scheme}://{address.root} has nothing called "{path}".', None
        try:
            region, listed = bucket_listing.find(address.scheme, address.root, path, client)
        except Permanent as exc:
            if exc.status not in (401, 403) or not has_credentials(address.scheme, client.where):
                raise _not_listed(address, exc) from exc
            closed = exc
        if closed is None:
            root = http_root(address.scheme, address.root, region, client.where)
            return self._chosen(listed, lambda name: f"{root}/{quote(name)}", nothing)
        region = region_in(closed)
        signed = f"signed-{address.scheme}://{f'{region}@' if region else ''}{address.root}"
        return self._chosen(_private(address, path, region, client), lambda name: f"{signed}/{name}", nothing)


class SignedUrl(Url):
    """``signed-s3://[<region>@]<bucket>/<path>``: a file of a private bucket.

    No file and no error holds a credential, since the request is signed when it is made.
    """

    shareable = False

    def parse(self) -> tuple[Address, str]:
        """Return the bucket, with its region as revision."""
        match = _SIGNED_URL.fullmatch(self.url)
        if match is None:
            raise DownloadFailed(f"{visible.shown(self.url)} does not name a file of a bucket.")
        return Address(match["scheme"], match["bucket"], "", match["region"]), match["path"]

    def request(self, where: Settings) -> str:
        """Sign the URL for twelve hours; raises MissingPackage, and DownloadFailed if credentials cannot sign."""
        address, path = self.parse()
        try:
            with Client(where) as client:
                return BucketPlace(address, client, region=address.revision or _DEFAULT_REGION).signed(path, _VALID)
        except (Permanent, Retryable) as exc:
            raise _not_opened(address, exc.reason) from None

    def known_files(self) -> None:
        """None: it is not listed."""
        return

    def _files(self, client: Client) -> Offer:
        raise DownloadFailed(f"{visible.shown(self.url)} names a signed file, which cannot be listed.")


def _private(address: Address, path: str, region: str | None, client: Client) -> dict[str, Meta]:
    """List with the user's credentials. ETags are not used as md5: the bucket may be encrypted."""
    place = BucketPlace(address, client, region=region or _DEFAULT_REGION)
    above = names.fixed_directory(path) if "*" in path else path
    found: dict[str, Meta] = {}
    for directory in dict.fromkeys((above, names.fixed_directory(path))):
        try:
            found = client.persist(lambda left, below=directory: {m.name: m for m in place.list(below)})  # type: ignore[misc]
        except Permanent as exc:
            raise _not_opened(address, exc.reason) from None
        if names.selected(found, path):
            break
    return found


def _not_opened(address: Address, reason: str) -> DownloadFailed:
    """Return the error for a bucket that the user's credentials do not open."""
    return DownloadFailed(
        f"{address.scheme}://{address.root} with your credentials: {reason}. Nothing was written.",
        hint=_KEYS[address.scheme],
    )


def _not_listed(address: Address, exc: Permanent) -> DownloadFailed:
    """Return the error for a bucket that does not list its files."""
    place = f"{address.scheme}://{address.root}"
    if exc.status in (401, 403):
        return DownloadFailed(
            f"{place} is closed: it does not list its files publicly (HTTP {exc.status}). Nothing was written.",
            hint=f"{ELSEWHERE}; credentials open a private bucket ({_CREDENTIALS[address.scheme]})",
        )
    if exc.status == 404:
        return DownloadFailed(f"There is no bucket {place} (HTTP 404). Nothing was written.", hint=ELSEWHERE)
    return DownloadFailed(f"{place} does not list its files: {exc.reason}. Nothing was written.", hint=ELSEWHERE)
