"""A file that a source offers."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("sha256", "git_sha1", "md5", "crc32c")  # of hashes, strongest first


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that a source offers, and what the source promises of it.

    Parameters
    ----------
    path : str
        Where it belongs below the destination: relative, POSIX, checked.
    urls : tuple of str
        Where it may be had, in order: ``http(s):``, ``file:`` or ``package:``.
    size : int, optional
        Bytes.
    sha256, git_sha1, md5, crc32c : str, optional
        Lower-case hexadecimal; ``git_sha1`` is the name of the content in git.
    revision : str, optional
        The commit of the repository, else the name of the revision that was asked for; of a bucket the generation.
    key : str
        Its full place at the source, host or repository first; copies elsewhere are called by a tail of it.
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

    @property
    def promise(self) -> tuple[str, str] | None:
        """The strongest hash that the source promises, which is the one that is checked: its kind and its value."""
        return next(((kind, value) for kind in KINDS if (value := getattr(self, kind))), None)

    @property
    def hashed(self) -> bool:
        """Whether the source promises a hash."""
        return self.promise is not None
