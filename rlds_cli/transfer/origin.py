"""What bytes on their way are a part of, as the answer to a request tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import requests

from rlds_cli.transfer import names, records

_RANGE = re.compile(r"bytes\s+(\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Origin:
    """What the bytes of a part are a part of: an answer to one request."""

    url: str
    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None

    @classmethod
    def read(cls, part: Path) -> Self | None:
        """What stands beside a part, or None."""
        values = records.read_json(records.path_of(part))
        if values is None or not isinstance(values.get("url"), str):
            return None
        known: dict[str, Any] = {f.name: values.get(f.name) for f in fields(cls)}
        return cls(**known)

    @classmethod
    def of(cls, response: requests.Response, url: str) -> Self:
        """What an answer says."""
        headers = response.headers
        size: int | None = None
        if response.status_code == 206:
            answered = range_of(response)
            size = answered[2] if answered else None
        elif headers.get("Content-Length", "").isdecimal():
            size = int(headers["Content-Length"])
        return cls(names.shown(url), headers.get("ETag"), headers.get("Last-Modified"), size)

    @property
    def validator(self) -> str | None:
        """What ``If-Range`` takes: a strong ETag, else the date."""
        weak = self.etag is None or self.etag.startswith("W/")
        return self.last_modified if weak else self.etag


def range_of(response: requests.Response) -> tuple[int, int, int | None] | None:
    """First byte, last byte and size of the whole that a 206 speaks of; None where it says nothing that is one."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    return (int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])) if match else None


def changed(known: Origin, now: Origin) -> bool:
    """Whether two answers of one URL are about different contents, as far as they say."""
    if known.etag and now.etag:
        return known.etag.removeprefix("W/") != now.etag.removeprefix("W/")
    return bool(known.last_modified and now.last_modified and known.last_modified != now.last_modified)
