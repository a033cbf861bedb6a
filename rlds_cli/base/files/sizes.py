"""Measure bytes on disk; a file with several names counts once."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlds_cli.base.files import trees

_BLOCK = 512  # unit of st_blocks, whatever the file system's own

Inode = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Files:
    """Regular files below directories: bytes on disk, each file once, and the different names of them."""

    sizes: dict[Inode, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, path: Path, *, without: Collection[str] = ()) -> None:
        """Add a file, or what is below a directory but not in directories of the paths ``without``.

        Links are not followed. It is a loop for itself, since homes hold thousands of datasets of some fifty files.
        """
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                self.sizes[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
                self.names.add(path.name)
            elif stat.S_ISDIR(status.st_mode):
                self._add_below(path, without)

    def _add_below(self, directory: Path, without: Collection[str]) -> None:
        sizes, names, left = self.sizes, self.names, [os.fspath(directory)]
        while left:
            try:
                entries = os.scandir(left.pop())
            except OSError:  # gone meanwhile, or not to be read
                continue
            with entries:
                for entry in entries:
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            if not without or entry.path not in without:
                                left.append(entry.path)
                        elif entry.is_file(follow_symlinks=False):
                            status = entry.stat(follow_symlinks=False)
                            sizes[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
                            names.add(entry.name)
                    except OSError:
                        continue


def size_on_disk(path: Path, seen: set[Inode] | None = None) -> int:
    """Return the bytes on disk of a file, or of all files below a directory; 0 for a missing path.

    Links do not count. A file with several names counts once. Inodes in ``seen`` do not count, and new ones are added
    to it.
    """
    files = Files()
    files.add(path)
    return add_new(files.sizes, set() if seen is None else seen)


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
