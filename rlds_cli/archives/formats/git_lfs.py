"""Pointers of Git LFS: small texts that stand in a clone for files that were not fetched.

::

    version https://git-lfs.github.com/spec/v1
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
    size 12345
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rlds_cli.base.text import plural
from rlds_cli.errors import CorruptArchive

START = b"version https://git-lfs.github.com/spec/"
MAX_BYTES = 1024  # of a pointer, by its specification


def is_pointer(path: Path) -> bool:
    """Return whether a file is a pointer, and not the file that it stands for."""
    try:
        if os.stat(path).st_size >= MAX_BYTES:  # noqa: PTH116  (thousands of images)
            return False
        with path.open("rb") as f:
            return f.read(len(START)) == START
    except OSError:
        return False


def check(files: Iterable[Path]) -> None:
    """Refuse pointers.

    Raises
    ------
    CorruptArchive
        One of the files is a pointer; the message counts them.
    """
    pointers = [path for path in files if is_pointer(path)]
    if pointers:
        raise not_fetched(pointers)


def not_fetched(pointers: list[Path]) -> CorruptArchive:
    """Return the error for pointers."""
    first = pointers[0]
    more = f", and so {'is' if len(pointers) == 2 else 'are'} {plural(len(pointers) - 1, 'other file')}"
    return CorruptArchive(
        f"{first.name} is a pointer of Git LFS{more if len(pointers) > 1 else ''}: its content was not fetched.",
        hint=f"git -C {first.parent} lfs pull",
    )
