"""What is known of a file, in a small JSON beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rlds_cli import documents, hashing, safe_files
from rlds_cli.errors import NoPermission
from rlds_cli.transfer import names


@dataclass(frozen=True, slots=True)
class Record:
    """Where a file came from and what it was when it came.

    ``size`` in bytes; ``fetched_at`` is an ISO-8601 UTC time; ``mtime_ns`` tells a file that was touched since.
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
        """The record beside ``file``, or None where there is none that can be read."""
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
        """A record, made now, of a file as it is on the disk, with the kind of hash that its source has promised.

        ``other`` is the hash of that kind, where it is known already.
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
    """Where the record of ``file`` stands."""
    return file.with_name(file.name + ".json")


def is_count(value: object) -> bool:
    """Whether a value of a stranger's JSON is a number of bytes or nanoseconds."""
    return type(value) is int and 0 <= value < 1 << 63


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is none."""
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
        It would be too long to be read again.
    """
    safe_files.replace_text(path, documents.dumps(values, path.name, lines=lines), mode=0o600)
