"""Hashes of a file's content, hexadecimal; and fingerprints as people read them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


def short(fingerprint: str) -> str:
    """A fingerprint for people: ``rlds1:7c1f-09ab-55e2``; that of a selection ends in ``+1a2b``."""
    head, _, digits = fingerprint.partition(":")
    digits, plus, selection = digits.partition("+")
    return f"{head}:{'-'.join(filter(None, (digits[:4], digits[4:8], digits[8:12])))}{plus}{selection[:4]}"


def _nothing(done: int) -> None:
    pass


def sha256_of(file: Path, told: Callable[[int], None] = _nothing) -> str:
    """The sha256 of a file; ``told`` receives the bytes read so far."""
    digest = hashlib.sha256()
    _feed(digest, file, told)
    return digest.hexdigest()


def git_sha1_of(file: Path) -> str:
    """The sha1 under which git keeps a file's content."""
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    _feed(digest, file, _nothing)
    return digest.hexdigest()


def hash_of(kind: str, file: Path) -> str:
    """The hash of a file of the kind ``git_sha1``, ``md5`` or ``crc32c``, as sources promise them."""
    if kind == "git_sha1":
        return git_sha1_of(file)
    if kind == "crc32c":
        return _crc32c_of(file)
    digest = hashlib.md5(usedforsecurity=False)
    _feed(digest, file, _nothing)
    return digest.hexdigest()


def _crc32c_of(file: Path) -> str:
    import google_crc32c  # seldom needed, and at the start of every command too dear

    digest = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
    _feed(digest, file, _nothing)
    return str(digest.digest().hex())  # type: ignore[no-untyped-call]


class _Digest(Protocol):
    def update(self, block: bytes, /) -> None: ...


def _feed(digest: _Digest, file: Path, told: Callable[[int], None]) -> None:
    done = 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
            told(done := done + len(block))
