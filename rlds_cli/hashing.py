"""Hashes of a file's content, hexadecimal; and fingerprints as people read them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path


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


def _feed(digest: hashlib._Hash, file: Path, told: Callable[[int], None]) -> None:
    done = 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
            told(done := done + len(block))
