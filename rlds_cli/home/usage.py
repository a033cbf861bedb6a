"""Measure the disk space of a home; a file with several names counts once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rlds_cli import ids, settings
from rlds_cli.errors import DamagedDataset
from rlds_cli.files import disk, trees
from rlds_cli.files.names import is_unfinished
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.settings import StrPath
from rlds_cli.store import paths, references

_BLOCK = 512  # unit of st_blocks, whatever the file system's own

Inode = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DatasetUsage:
    """Bytes on disk of one dataset. ``shared`` bytes of its ``cache`` also belong to a dataset listed before it.

    ``archive`` is 0 without an archive, and for variants. ``here`` is False if there is only an archive.
    ``last_opened`` is an ISO-8601 UTC time, as exact as the file system's access times; None without a cache.
    ``refers_to`` names versions of other datasets in which rows of its newest version are stored.
    """

    id: str
    archive: int
    cache: int
    shared: int
    last_opened: str | None
    here: bool
    refers_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on disk of a home.

    ``packed`` counts row blocks for loading, which are rebuilt when needed; ``remote`` counts what is here of datasets
    at an address, which is fetched again when needed; ``partial`` counts the remains of
    interrupted downloads, conversions and removals. ``archives`` and ``caches`` count shared files once; ``total``
    counts everything.
    """

    home: Path
    datasets: tuple[DatasetUsage, ...]
    packed: int
    partial: int
    archives: int
    caches: int
    total: int
    free: int
    remote: int = 0


def usage(*, cache_dir: StrPath | None = None) -> Usage:
    """Measure the user's own home; a home that does not exist is empty."""
    root = settings.read(cache_dir).home
    home = Home(root)
    seen: set[Inode] = set()
    archives = {
        str(id): _sum((file for file in _files(path) if not is_unfinished(file[0])), seen)
        for id, path in home.archives()
    }
    rows = [_dataset(id, path, archives.pop(str(id), 0), seen) for id, path in sorted(home.datasets(), key=_order)]
    rows += [DatasetUsage(id, size, 0, 0, None, False) for id, size in archives.items() if size]
    rows.sort(key=lambda row: _order((ids.parse(row.id), root)))  # archives before what was made of parts of them
    packed, remote = size_on_disk(root / "packed", seen), size_on_disk(home.remote, seen)
    partial = sum(
        size_on_disk(root / top, seen) for top in ("partial", "archives", "datasets", "versions")
    )  # with what is left over
    archived, cached = sum(r.archive for r in rows), sum(r.cache - r.shared for r in rows)
    total = archived + cached + packed + partial + remote
    return Usage(root, tuple(rows), packed, partial, archived, cached, total, disk.free(root), remote)


def size_on_disk(path: Path, seen: set[Inode] | None = None) -> int:
    """Return the bytes on disk of a file, or of all files below a directory; 0 for a missing path.

    Links do not count. A file with several names counts once. Inodes in ``seen`` do not count, and new ones are added
    to it.
    """
    return _sum(_files(path), set() if seen is None else seen)


def freed_by(paths: Sequence[Path]) -> list[int]:
    """Return the bytes that removing each of ``paths`` in turn would free; files with names elsewhere stay."""
    names: dict[Inode, int] = {}
    freed = []
    for path in paths:
        size = 0
        for _, status in _files(path):
            inode = (status.st_dev, status.st_ino)
            names[inode] = names.get(inode, status.st_nlink) - 1
            size += status.st_blocks * _BLOCK if names[inode] == 0 else 0
        freed.append(size)
    return freed


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of a file, or of all regular files below a directory; links are not followed."""
    below = (Path(entry.path) for entry in trees.below(path)) if not path.is_symlink() else ()
    for file in (path, *below):
        with suppress(OSError):  # gone meanwhile
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                yield file.name, status


def _sum(files: Iterable[tuple[str, os.stat_result]], seen: set[Inode]) -> int:
    size = 0
    for _, status in files:
        inode = (status.st_dev, status.st_ino)
        size += status.st_blocks * _BLOCK if inode not in seen else 0
        seen.add(inode)
    return size


def _order(found: tuple[DatasetId, Path]) -> tuple[str, str, str]:
    id, _ = found
    return id.family, id.name, id.variant or ""


def _dataset(id: DatasetId, path: Path, archive: int, seen: set[Inode]) -> DatasetUsage:
    parts = [path, paths.earlier_versions(path)]
    once: set[Inode] = set()
    whole = sum(size_on_disk(part, once) for part in parts)
    new = sum(size_on_disk(part, seen) for part in parts)
    status = (path / "zarr.json").stat()
    opened = datetime.fromtimestamp(max(status.st_atime, status.st_mtime), UTC).isoformat(timespec="seconds")
    return DatasetUsage(str(id), archive, whole, whole - new, opened, True, tuple(map(str, _sources(path))))


def _sources(path: Path) -> tuple[references.Source, ...]:
    with suppress(DamagedDataset):
        return references.sources(path)
    return ()
