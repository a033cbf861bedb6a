"""A file that a source offers."""

from __future__ import annotations

from dataclasses import dataclass


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
    sha256, git_sha1 : str, optional
        Lower-case hexadecimal; ``git_sha1`` is the name of the content in git.
    revision : str, optional
        The commit of the repository, else the name of the revision that was asked for.
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

    @property
    def hashed(self) -> bool:
        """Whether the source promises a hash."""
        return bool(self.sha256 or self.git_sha1)
