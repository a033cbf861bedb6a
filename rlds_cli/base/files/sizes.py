"""Measure bytes on disk; a file with several names counts once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rlds_cli.base.files import trees

_BLOCK = 512  # unit of st_blocks, whatever the file system's own

Inode = tuple[int, int]


def size_on_disk(path: Path, seen: set[Inode] | None = None) -> int:
    """Return the bytes on disk of a file, or of all files below a directory; 0 for a missing path.

    Links do not count. A file with several names counts once. Inodes in ``seen`` do not count, and new ones are added
    to it.
    """
    return add_new(sizes_of(files_of(path)), set() if seen is None else seen)


def freed_by(paths: Sequence[Path]) -> list[int]:
    """Return the bytes that removing each of ``paths`` in turn would free; files with names elsewhere stay."""
    names: dict[Inode, int] = {}
    freed = []
    for path in paths:
        size = 0
        for _, status in files_of(path):
            inode = (status.st_dev, status.st_ino)
            names[inode] = names.get(inode, status.st_nlink) - 1
            size += status.st_blocks * _BLOCK if names[inode] == 0 else 0
        freed.append(size)
    return freed


def files_of(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of a file, or of all regular files below a directory; links are not followed."""
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            yield path.name, status
        elif stat.S_ISDIR(status.st_mode):
            for entry in trees.below(path):
                with suppress(OSError):  # gone meanwhile
                    if entry.is_file(follow_symlinks=False):
                        yield entry.name, entry.stat(follow_symlinks=False)


def sizes_of(files: Iterable[tuple[str, os.stat_result]]) -> dict[Inode, int]:
    """Return the bytes on disk of every file, each once."""
    return {(status.st_dev, status.st_ino): status.st_blocks * _BLOCK for _, status in files}


def add_new(sizes: Mapping[Inode, int], seen: set[Inode]) -> int:
    """Return the bytes of the files that are not in ``seen``, and add them to it."""
    new = sum(size for inode, size in sizes.items() if inode not in seen)
    seen.update(sizes)
    return new
