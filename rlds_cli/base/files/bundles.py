"""Directories that are one file of an archive: Zarr stores, and tables that the ``datasets`` library has saved.

Their parts say nothing by themselves: chunks of arrays, and shards of a table, which may divide an episode. A
directory is a store if it holds the document of a group or an array, and a table if it holds the two documents of
``Dataset.save_to_disk``. Those below it are parts of it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rlds_cli.base.files import hashing, trees
from rlds_cli.base.files.hashing import sha256_of as sha256_of_file
from rlds_cli.base.files.names import below

DOCUMENTS = (".zgroup", ".zarray", "zarr.json")
OF_TABLE = (STATE, INFO) = ("state.json", "dataset_info.json")


def is_store(path: Path) -> bool:
    """Return whether a path is a directory that is a Zarr store."""
    return os.path.isdir(path) and any(os.path.isfile(f"{path}/{name}") for name in DOCUMENTS)  # noqa: PTH112, PTH113


def is_saved_table(path: Path) -> bool:
    """Return whether a path is a directory that ``Dataset.save_to_disk`` has written."""
    return os.path.isdir(path) and all(os.path.isfile(f"{path}/{name}") for name in OF_TABLE)  # noqa: PTH112, PTH113


def is_bundle(path: Path) -> bool:
    """Return whether a path is a directory that is one file of an archive."""
    return is_store(path) or is_saved_table(path)


def gathered(files: Mapping[Path, str | None], top: Path) -> dict[Path, str | None]:
    """Return files at and below the directory ``top`` with each bundle in the place of its files.

    ``files`` are absolute, with their names relative to ``top``; that of a bundle which is ``top`` itself is None.
    """
    ends = tuple(f"/{name}" for name in (*DOCUMENTS, STATE))
    documents = [f for f in files if os.fspath(f).endswith(ends)]  # of thousands of paths
    bundles = {f.parent for f in documents if f.name != STATE or f.with_name(INFO) in files}
    if not bundles:
        return dict(files)
    found: dict[Path, str | None] = {}
    for file, name in files.items():
        inside = [d for d in file.parents if d in bundles and (d == top or top in d.parents)]
        if not inside:
            found[file] = name
        elif inside[-1] not in found:
            found[inside[-1]] = below(inside[-1], top) if inside[-1] != top else None
    return found


def is_record(path: str) -> bool:
    """Return whether a file in a bundle is the record that a download has left beside the file ``path`` less .json."""
    return path.endswith(".json") and os.path.isfile(path.removesuffix(".json"))  # noqa: PTH113


def parts(bundle: Path) -> list[Path]:
    """Return the files of a bundle."""
    return [f for f in trees.files(bundle) if not is_record(os.fspath(f))]


def size_of(file: Path) -> int:
    """Return the bytes of a file of an archive."""
    found = os.stat(file)  # noqa: PTH116  (thousands of images)
    return sum(f.stat().st_size for f in parts(file)) if stat.S_ISDIR(found.st_mode) else found.st_size


def sha256_of(file: Path) -> str:
    """Return the sha256 of a file; that of a bundle is the one of a line ``sha256  name`` for each of its files."""
    if not file.is_dir():
        return sha256_of_file(file)
    names = sorted((f.relative_to(file).as_posix(), f) for f in parts(file))
    listing = "".join(f"{sha256_of_file(f)}  {name}\n" for name, f in names)
    return hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()


def content_of(file: Path) -> tuple[int, str]:
    """Return the bytes of a file of an archive and its sha256, as `size_of` and `sha256_of`; it is opened once."""
    try:
        return hashing.content_of(file)
    except IsADirectoryError:
        return size_of(file), sha256_of(file)


def contents_of(files: Iterable[Path]) -> Iterator[tuple[int, str]]:
    """Yield the bytes of files of an archive and their sha256, as `content_of`, in their order."""
    small = hashing.SmallFiles()
    for file in files:
        if small.take(file):
            continue
        yield from small.contents()
        if not small.take(file):
            yield content_of(file)
    yield from small.contents()


def is_file(path: Path) -> bool:
    """Return whether a path is a file of an archive that exists."""
    return path.is_file() or is_bundle(path)


def state_of(file: Path) -> tuple[int, int, int]:
    """Return three numbers that differ after a write: inode, size and modification time.

    Those of a bundle are number, size and the sum of the modification times of its files.
    """
    found = os.stat(file)  # noqa: PTH116  (thousands of images)
    if not (stat.S_ISDIR(found.st_mode) and is_bundle(file)):
        return found.st_ino, found.st_size, found.st_mtime_ns
    below = [e for e in trees.below(file) if not e.is_dir(follow_symlinks=False) and not is_record(e.path)]
    states = [e.stat(follow_symlinks=False) for e in below]
    return len(states), sum(s.st_size for s in states), sum(s.st_mtime_ns for s in states)
