"""The files of one version of a dataset, as they are sent.

Rows of no episode, which a selection, a trim or a version with fewer episodes has in its files, stay behind if there
are many of them in one place.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.arrays import Segment
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import files as store_files
from rlds_cli.store import layouts, lookups, paths
from rlds_cli.store.lookups import WholeFile

Extents = tuple[tuple[int, int], ...]  # first byte, and the one behind the last, of parts of a file, in order
_GAP = 1 << 20  # bytes of rows of no episode, from which on they are left out


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a snapshot.

    Attributes
    ----------
    path : str
        Below the dataset.
    size : int
        Of the file, with holes.
    extents : sequence of (int, int)
        First byte, and the one behind the last, of the parts that belong to the snapshot.
    file : Path, optional
        On the disk; None if ``data`` is the content, or ``whole`` has it.
    identity : optional
        Of the file on the disk, if it never changes.
    growing : bool
        Rows or records are still added behind the last extent.
    """

    path: str
    size: int
    extents: Extents
    file: Path | None = None
    data: bytes = b""
    identity: tuple[int, int, int] | None = None
    growing: bool = False
    whole: WholeFile | None = None

    def open(self) -> BinaryIO:
        """Open the content.

        Raises
        ------
        DamagedDataset
            Another file has taken its place.
        """
        if self.file is None:
            return io.BytesIO(self.data if self.whole is None else self.whole.content())
        try:
            opened = safe_files.reading(self.file)
        except OSError as e:
            raise DamagedDataset(
                f"{self.file} cannot be read: {e.strerror}. The push did not end.", hint="the same command continues"
            ) from e
        if self.identity is not None and _identity(os.fstat(opened.fileno())) != self.identity:
            opened.close()
            raise DamagedDataset(
                f"{self.file} was replaced while it was pushed. The push did not end.", hint="the same command again"
            )
        return opened


def of_directory(path: Path, needed: Mapping[Path, IntArray | None]) -> Iterator[LocalFile]:
    """Yield the files of a version that is a directory of its own, and files that rows of it are in.

    Parameters
    ----------
    path : Path
        Of the dataset.
    needed : mapping
        Its arrays of rows, and the rows of each [first, stop) that the episodes have [episodes, 2], by their first
        rows; None for all rows.
    """
    store_files.check_tree(path)
    parts: dict[Path, list[tuple[int, int]]] = {}
    for place, spans in needed.items():
        if spans is not None or layouts.is_segmented(place):
            for s in layouts.layout(place).segments:
                parts.setdefault(s.file, []).extend(_extents(s, spans))  # two segments may be of one file
    for name, file in sorted(lookups.files(path).items(), key=itemgetter(0)):
        own = name == paths.TAGS or paths.is_indexed(name)
        if "/." in f"/{name}" or own:  # of a file system or a desktop; of this directory
            continue
        if isinstance(file, WholeFile):
            yield LocalFile(name, file.size, ((0, file.size),), whole=file)
            continue
        status = file.lstat()
        extents = parts.get(file, [(0, status.st_size)])
        yield LocalFile(name, status.st_size, _joined(extents), file, identity=_identity(status))


def runs(spans: IntArray, width: int) -> list[tuple[int, int]]:
    """Join the rows [first, stop) of episodes [episodes, 2], of ``width`` bytes, where little lies between them."""
    start, stop = spans[spans[:, 1] > spans[:, 0]].T
    if not len(start):
        return []
    apart = np.flatnonzero(start[1:] - stop[:-1] > _GAP // max(1, width)) + 1
    firsts, lasts = np.concatenate([[0], apart]), np.concatenate([apart, [len(start)]]) - 1
    return list(zip(start[firsts].tolist(), stop[lasts].tolist(), strict=True))


def rows_between(place: Path, spans: IntArray) -> int:
    """Return how many rows of no episode an array of a snapshot has, since they lie between rows of episodes."""
    found = 0
    for s in layouts.layout(place).segments:
        within = np.clip(spans - s.start, 0, s.rows)
        sent = runs(within, arrays.row_bytes(s.shape, s.dtype))
        found += sum(stop - first for first, stop in sent) - covered(within)
    return found


def covered(spans: IntArray) -> int:
    """Return how many rows the rows [first, stop) of episodes [episodes, 2] are, by their first rows."""
    return sum(stop - first for first, stop in runs(spans, _GAP + 1))


def _extents(s: Segment, spans: IntArray | None) -> Iterator[tuple[int, int]]:
    """Yield the parts of the file of a segment that hold rows of episodes, and what stands behind its rows."""
    width = arrays.row_bytes(s.shape, s.dtype)
    within = np.array([[0, s.rows]]) if spans is None else np.clip(spans - s.start, 0, s.rows)
    yield from ((a * width, b * width) for a, b in runs(within, width))
    yield s.rows * width, s.rows * width if s.chunk else s.size


def _joined(extents: list[tuple[int, int]]) -> Extents:
    """Return extents in order, as one where they meet."""
    found: list[tuple[int, int]] = []
    for first, stop in sorted(e for e in extents if e[0] < e[1]):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((first, stop))
    return tuple(found)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
