"""The arrays of fields, and what a version has of one: which entries, in which segments. Files are not read here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli.base.files import arrays
from rlds_cli.store.manifest import StoredField
from rlds_cli.ted import VIDEO, Field

Part = Literal["rows", "frames", "films", "digests"]
VIDEOS = "video"  # the directory of arrays of videos, below the dataset
_LARGE_ROW = 4096  # bytes from which on a row has a digest of its own: 32 bytes are 0.8 % of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """An array of a field: entries [first, stop) of those that its files hold; none where no version is meant.

    Attributes
    ----------
    field : str
        Its name.
    part : {"rows", "frames", "films", "digests"}
        ``rows`` has an entry for each row: its value, the code of its text, its frame in videos (video, frame), or the
        first byte of its image and the byte behind it. ``frames`` are the bytes of images, end to end, ``films`` those
        of video files, and ``digests`` the sha256 of rows.
    directory : Path
        Below the dataset.
    dtype, shape
        Of an entry.
    segment_rows : int
        Entries of each segment of an array that a writer adds to; 0 if a document in ``directory`` names the segments.
    needed : tuple of int
        Numbers of the segments that hold entries of episodes, if a writer adds to them.
    compressed : bool
        By Zarr.
    """

    field: str
    part: Part
    directory: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    first: int = 0
    stop: int = 0
    segment_rows: int = 0
    needed: tuple[int, ...] = ()
    compressed: bool = False

    @property
    def by_row(self) -> bool:
        """Whether it has an entry for each row; else its entries are bytes of images or videos."""
        return self.part in ("rows", "digests")

    @property
    def width(self) -> int:
        """Bytes of an entry."""
        return arrays.row_bytes((0, *self.shape), self.dtype)

    @property
    def size(self) -> int:
        """Bytes of a segment that a writer adds to."""
        return self.segment_rows * self.width

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of all entries."""
        return (self.stop - self.first, *self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return math.prod(self.whole) * self.dtype.itemsize

    @property
    def document(self) -> dict[str, Any]:
        """The ``zarr.json`` of an array that a writer adds to."""
        return arrays.chunk_document((self.stop, *self.shape), self.dtype, self.segment_rows)

    def file(self, number: int) -> Path:
        """Return the file of a segment that a writer adds to, below the dataset."""
        return arrays.data_file(self.directory, 1 + len(self.shape), number)


def stored_row(f: Field | StoredField) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a row on disk: one code for text, the numbers of video and frame for videos."""
    if f.kind == "text":
        return np.dtype("int32"), ()
    return (np.dtype("int32"), (2,)) if f.codec == VIDEO else (np.dtype(f.dtype), f.shape)


def has_row_digests(f: Field | StoredField) -> bool:
    """Return whether the rows of a field have digests of their own."""
    if f.kind == "frames":
        return f.codec != VIDEO
    return f.kind == "array" and arrays.row_bytes((0, *f.shape), f.dtype) >= _LARGE_ROW


def has_statistics(f: Field) -> bool:
    """Return whether a field has statistics: one of real numbers."""
    return f.kind == "array" and "complex" not in f.dtype
