"""What a version has of an array: which entries, and in which segments. Where the segments are is not said here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.store import arrays

OFFSETS, BYTES, FILMS = "\0offsets", "\0bytes", "\0video"  # after the name of a field, in the key of a column


@dataclass(frozen=True, slots=True)
class Column:
    """An array of a version: entries [first, stop) of those that its files hold.

    Attributes
    ----------
    key : str
        The name of the field, and ``OFFSETS``, ``BYTES`` or ``FILMS``.
    directory : Path
        Below the dataset.
    dtype, shape
        Of an entry.
    segment_rows : int
        Entries of each segment of an array that a writer adds to; 0 if a document in ``directory`` names the segments.
    needed : tuple of int
        Numbers of the segments that hold entries of episodes, if a writer adds to them.
    """

    key: str
    directory: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    first: int
    stop: int
    segment_rows: int = 0
    needed: tuple[int, ...] = ()

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

    def file(self, number: int) -> Path:
        """Return the file of a segment that a writer adds to, below the dataset."""
        return arrays.data_file(self.directory, 1 + len(self.shape), number)
