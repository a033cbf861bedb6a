"""JSON files beside downloads: the record of a file, and the origin of a partial download."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import requests

from rlds_cli.downloads import names
from rlds_cli.downloads.fetch.policy import Permanent, quoted
from rlds_cli.errors import NoPermission
from rlds_cli.files import hashing
from rlds_cli.files import json as documents
from rlds_cli.files import safe as safe_files


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The source, size and hashes of a file when it was fetched.

    ``size`` is in bytes, ``fetched_at`` an ISO-8601 UTC time. Another ``mtime_ns`` means that the file was changed.
    """

    url: str
    revision: str | None
    size: int
    etag: str | None
    last_modified: str | None
    sha256: str
    git_sha1: str | None
    fetched_at: str
    mtime_ns: int
    md5: str | None = None
    crc32c: str | None = None

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Return the record beside ``file``; None if there is none that is valid."""
        values = read_json(path_of(file))
        if values is None or not all(is_count(values.get(k)) for k in ("size", "mtime_ns")):
            return None
        known: dict[str, Any] = {f.name: values.get(f.name) for f in fields(cls)}
        if not all(isinstance(known[k], str) for k in ("url", "sha256", "fetched_at")):
            return None
        optional = ("revision", "etag", "last_modified", "git_sha1", "md5", "crc32c")
        return cls(**known) if all(isinstance(known[k], str | None) for k in optional) else None

    @classmethod
    def of(
        cls,
        file: Path,
        *,
        url: str,
        sha256: str,
        promised: str | None = None,
        other: str | None = None,
        revision: str | None = None,
        etag: str | None = None,
        last_modified: str | None = None,
    ) -> Self:
        """Create the record of a file on the disk, with the kind of hash that its source publishes.

        ``other`` is the hash of that kind, if it is known already.
        """
        status = file.stat()
        kinds = {promised: other or hashing.hash_of(promised, file)} if promised not in (None, "sha256") else {}
        return cls(
            url=url,
            revision=revision,
            size=status.st_size,
            etag=etag,
            last_modified=last_modified,
            sha256=sha256,
            git_sha1=kinds.get("git_sha1"),
            md5=kinds.get("md5"),
            crc32c=kinds.get("crc32c"),
            fetched_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            mtime_ns=status.st_mtime_ns,
        )

    def write(self, file: Path) -> None:
        """Write the record beside ``file``, in one step."""
        write_json(path_of(file), asdict(self) | {"url": names.shown(self.url)})


def path_of(file: Path) -> Path:
    """Return the path of the record of ``file``."""
    return file.with_name(file.name + ".json")


def is_count(value: object) -> bool:
    """Return whether a value of untrusted JSON is a valid number of bytes or nanoseconds."""
    return type(value) is int and 0 <= value < 1 << 63


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is none."""
    try:
        with safe_files.reading(path) as file:
            values = documents.loads(documents.read(file, longest=documents.OWN), longest=documents.OWN)
    except (OSError, ValueError, NoPermission):
        return None
    return values if isinstance(values, dict) else None


def write_json(path: Path, values: Mapping[str, Any], *, lines: bool = True) -> None:
    """Write a JSON file in one step, for its owner alone: it may hold addresses.

    Raises
    ------
    RldsError
        The text is too long to be read back.
    """
    safe_files.replace_text(path, documents.dumps(values, path.name, lines=lines), mode=0o600)


_RANGE = re.compile(r"bytes\s+([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", re.ASCII)
_UNSATISFIED = re.compile(r"bytes\s+\*/([0-9]{1,18})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}")
_VALIDATOR = re.compile(r"[\x20-\x7e]{1,1000}")  # what may be sent back in a header
_PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".z")


@dataclass(frozen=True, slots=True)
class PartOrigin:
    """The answer that the bytes of a part come from."""

    url: str
    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None

    @classmethod
    def read(cls, part: Path) -> Self | None:
        """Return the origin recorded beside a part; None if it is missing or not valid."""
        values = read_json(path_of(part))
        if values is None or not isinstance(values.get("url"), str):
            return None
        etag, modified, size = (values.get(k) for k in ("etag", "last_modified", "size"))
        if any(v is not None and _validator(v) is None for v in (etag, modified)):
            return None
        if size is not None and not is_count(size):
            return None
        return cls(values["url"], etag, modified, size)

    @classmethod
    def of(cls, response: requests.Response, url: str) -> Self:
        """Parse the headers of an answer; raises Permanent if its lengths are not valid."""
        headers = response.headers
        size: int | None = None
        if response.status_code == 206:
            answered = range_of(response)
            size = answered[2] if answered else None
        elif not is_chunked(response) and (said := headers.get("Content-Length")) is not None:
            lengths = {length.strip() for length in said.split(",")}  # the same header twice
            if len(lengths) != 1 or not _NUMBER.fullmatch(length := lengths.pop()):
                raise Permanent("has a length that is not a number")
            size = int(length)
        etag, modified = (_validator(headers.get(k)) for k in ("ETag", "Last-Modified"))
        return cls(names.shown(url), etag, modified, size)

    @property
    def validator(self) -> str | None:
        """Value for ``If-Range``: a strong ETag, else the date."""
        weak = self.etag is None or self.etag.startswith("W/")
        return self.last_modified if weak else self.etag


def _validator(value: object) -> str | None:
    return value if isinstance(value, str) and _VALIDATOR.fullmatch(value) else None


def range_of(response: requests.Response) -> tuple[int, int, int | None] | None:
    """Parse Content-Range of a 206: first byte, last byte and size of the file; None if it is not valid."""
    match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    if match is None or response.headers.get("Content-Type", "").lower().startswith("multipart/"):
        return None
    first, last, size = int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])
    return (first, last, size) if first <= last and (size is None or last < size) else None


def size_of(response: requests.Response) -> int | None:
    """Parse the size of the file from Content-Range of a 416."""
    match = _UNSATISFIED.fullmatch(response.headers.get("Content-Range", "").strip())
    return int(match[1]) if match else None


def is_chunked(response: requests.Response) -> bool:
    """Return whether a body has chunked encoding, which marks its own end."""
    return "chunked" in response.headers.get("Transfer-Encoding", "").lower()


def check_plain(response: requests.Response, path: str) -> None:
    """Refuse a compressed answer, except for files that are compressed themselves: servers label those so too."""
    if response.headers.get("Transfer-Encoding", "chunked").strip().lower() not in ("chunked", "identity"):
        raise Permanent("answered in a transfer encoding that was not requested")
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("", "identity") and not path.lower().endswith(_PACKED):
        raise Permanent(f"answered {quoted(packed)} where plain bytes were requested")


def changed(known: PartOrigin, now: PartOrigin) -> bool:
    """Return whether the ETags or dates of two answers from one URL differ."""
    if known.etag and now.etag:
        return known.etag.removeprefix("W/") != now.etag.removeprefix("W/")
    return bool(known.last_modified and now.last_modified and known.last_modified != now.last_modified)


def disagree(*sizes: int | None) -> bool:
    """Return whether sizes stated for one file contradict each other."""
    return len({size for size in sizes if size is not None}) > 1
