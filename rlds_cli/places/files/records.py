"""The record beside a file of an archive: where it came from, and what it was then."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rlds_cli.base import visible
from rlds_cli.base.files import hashing
from rlds_cli.base.files import json as documents

HASHES = ("sha256", "git_sha1", "md5", "crc32c")  # kinds that sources publish, strongest first


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
        values = documents.load_own(cls.beside(file))
        if values is None or not all(documents.is_count(values.get(k)) for k in ("size", "mtime_ns")):
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

    def renewed(self, found: FileRecord) -> Self:
        """Return this record with the size, the hashes and the time of the file as it was found now."""
        return replace(self, **{k: getattr(found, k) for k in ("size", *HASHES, "mtime_ns")})

    def write(self, file: Path) -> None:
        """Write the record beside ``file``, in one step."""
        documents.save_own(self.beside(file), asdict(self) | {"url": visible.shown(self.url)})

    @staticmethod
    def beside(file: Path) -> Path:
        """Return the path of the record of ``file``."""
        return file.with_name(file.name + ".json")
