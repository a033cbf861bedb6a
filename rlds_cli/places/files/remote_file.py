"""A file that a source offers."""

from __future__ import annotations

from dataclasses import dataclass

from rlds_cli.places.files.records import HASHES, FileRecord


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that a source offers, with its published size and hashes.

    Parameters
    ----------
    path : str
        Path below the destination: relative, POSIX, checked.
    urls : tuple of str
        Addresses to try, in order, of any scheme in `places.urls.kinds.KINDS`.
    size : int, optional
        Bytes.
    sha256, git_sha1, md5, crc32c : str, optional
        Lower-case hexadecimal; ``git_sha1`` is the id of the blob in git.
    revision : str, optional
        Commit of the repository, else the revision that was requested; in a bucket the generation.
    key : str
        Full path at the source, host or repository first. Copies elsewhere are named by a tail of it.
    placed : bool
        Without a published hash, an existing file counts only if it came from one of ``urls``.
    """

    path: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    revision: str | None = None
    key: str = ""
    md5: str | None = None
    crc32c: str | None = None
    placed: bool = False

    @property
    def promise(self) -> tuple[str, str] | None:
        """Kind and value of the strongest hash that the source publishes. It is the one that is checked."""
        for kind in HASHES:
            if value := getattr(self, kind):
                return kind, value
        return None

    @property
    def hashed(self) -> bool:
        """True if the source publishes a hash."""
        return self.promise is not None

    @property
    def hash_name(self) -> str:
        """How people call the hash that is published; nothing without one."""
        return self.promise[0].replace("_", " ") if self.promise else ""

    def misfit(self, record: FileRecord) -> str | None:
        """Return how a file differs from what its source publishes: hashes first, which say more than sizes."""
        if self.promise and (got := getattr(record, self.promise[0])) != self.promise[1]:
            return f"{self.hash_name} is {got}, expected {self.promise[1]}"
        if self.size not in (None, record.size):
            return f"has {record.size:,} B, expected {self.size:,} B"
        return None
