"""The files of one version of a dataset, as they are sent."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rlds_cli.errors import DamagedDataset
from rlds_cli.files import safe as safe_files
from rlds_cli.store import arrays, paths, references, tags
from rlds_cli.store import files as store_files


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
        On the disk; None if ``data`` is the content.
    identity : optional
        Of the file on the disk, if it never changes.
    growing : bool
        Rows or records are still added behind the last extent.
    """

    path: str
    size: int
    extents: tuple[tuple[int, int], ...]
    file: Path | None = None
    data: bytes = b""
    identity: tuple[int, int, int] | None = None
    growing: bool = False

    def open(self) -> BinaryIO:
        """Open the content.

        Raises
        ------
        DamagedDataset
            Another file has taken its place.
        """
        if self.file is None:
            return io.BytesIO(self.data)
        try:
            opened = safe_files.reading(self.file)
        except OSError as e:
            raise DamagedDataset(
                f"{self.file} cannot be read: {e.strerror}. The push did not end.", hint="the same command goes on"
            ) from e
        if self.identity is not None and _identity(os.fstat(opened.fileno())) != self.identity:
            opened.close()
            raise DamagedDataset(
                f"{self.file} was replaced while it was pushed. The push did not end.", hint="the same command again"
            )
        return opened


def of_directory(path: Path, arrays_of_rows: Iterable[Path]) -> Iterator[LocalFile]:
    """Yield the files of a version that is a directory of its own, and files that rows of it are in."""
    store_files.check_tree(path)
    segments = (s for place in arrays_of_rows if arrays.is_segmented(place) for s in arrays.layout(place).segments)
    rows = {s.file: arrays.row_bytes(s.shape, s.dtype) * s.rows for s in segments if s.chunk}  # of longer files
    for name, file in sorted(references.files(path).items()):
        own = name == tags.FILE or paths.INDEXED.fullmatch(name)
        if "/." in f"/{name}" or own:  # of a file system or a desktop; of this directory
            continue
        status = file.lstat()
        size = rows.get(file, status.st_size)
        extents = ((0, size),) if size else ()
        yield LocalFile(name, status.st_size, extents, file, identity=_identity(status))


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns
