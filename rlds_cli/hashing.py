"""The sha256 of a file."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of(file: Path) -> str:
    """Hexadecimal sha256 of a file's content."""
    with file.open("rb", buffering=0) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
