"""What bytes on their way are a part of, as the answer to a request tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import requests

from rlds_cli.transfer import names, records
from rlds_cli.transfer.failures import Refused, quoted

_RANGE = re.compile(r"bytes\s+([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.ASCII)
_UNSATISFIED = re.compile(r"bytes\s+\*/([0-9]{1,18})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}")
_VALIDATOR = re.compile(r"[\x20-\x7e]{1,1000}")  # what may be sent back in a header
_PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".z")


@dataclass(frozen=True, slots=True)
class Origin:
    """What the bytes of a part are a part of: an answer to one request."""

    url: str
    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None

    @classmethod
    def read(cls, part: Path) -> Self | None:
        """What stands beside a part, or None where nothing does that can be believed."""
        values = records.read_json(records.path_of(part))
        if values is None or not isinstance(values.get("url"), str):
            return None
        etag, modified, size = (values.get(k) for k in ("etag", "last_modified", "size"))
        if any(v is not None and _validator(v) is None for v in (etag, modified)):
            return None
        if size is not None and not records.is_count(size):
            return None
        return cls(values["url"], etag, modified, size)

    @classmethod
    def of(cls, response: requests.Response, url: str) -> Self:
        """What an answer says; raises Refused where its lengths are none."""
        headers = response.headers
        size: int | None = None
        if response.status_code == 206:
            answered = range_of(response)
            size = answered[2] if answered else None
        elif not is_chunked(response) and (said := headers.get("Content-Length")) is not None:
            lengths = {length.strip() for length in said.split(",")}  # the same header twice
            if len(lengths) != 1 or not _NUMBER.fullmatch(length := lengths.pop()):
                raise Refused("says a length that is no number")
            size = int(length)
        etag, modified = (_validator(headers.get(k)) for k in ("ETag", "Last-Modified"))
        return cls(names.shown(url), etag, modified, size)

    @property
    def validator(self) -> str | None:
        """What ``If-Range`` takes: a strong ETag, else the date."""
        weak = self.etag is None or self.etag.startswith("W/")
        return self.last_modified if weak else self.etag


def _validator(value: object) -> str | None:
    return value if isinstance(value, str) and _VALIDATOR.fullmatch(value) else None


def range_of(response: requests.Response) -> tuple[int, int, int | None] | None:
    """First byte, last byte and size of the whole that a 206 speaks of; None where it says nothing that can be."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    if match is None or response.headers.get("Content-Type", "").lower().startswith("multipart/"):
        return None
    first, last, size = int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])
    return (first, last, size) if first <= last and (size is None or last < size) else None


def size_of(response: requests.Response) -> int | None:
    """The size of the whole that a 416 speaks of."""
    match = _UNSATISFIED.fullmatch(response.headers.get("Content-Range", "").strip())
    return int(match[1]) if match else None


def is_chunked(response: requests.Response) -> bool:
    """Whether a body says itself where it ends."""
    return "chunked" in response.headers.get("Transfer-Encoding", "").lower()


def check_plain(response: requests.Response, path: str) -> None:
    """Refuse what a server packs on its own account; files that are packed themselves are often labelled so too."""
    if response.headers.get("Transfer-Encoding", "chunked").strip().lower() not in ("chunked", "identity"):
        raise Refused("answered in a transfer encoding that was not asked for")
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("", "identity") and not path.lower().endswith(_PACKED):
        raise Refused(f"answered {quoted(packed)} where the bytes themselves were asked for")


def changed(known: Origin, now: Origin) -> bool:
    """Whether two answers of one URL are about different contents, as far as they say."""
    if known.etag and now.etag:
        return known.etag.removeprefix("W/") != now.etag.removeprefix("W/")
    return bool(known.last_modified and now.last_modified and known.last_modified != now.last_modified)


def disagree(*sizes: int | None) -> bool:
    """Whether what is said of the size of one file cannot all be true."""
    return len({size for size in sizes if size is not None}) > 1
