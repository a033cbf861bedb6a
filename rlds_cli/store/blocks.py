"""Files of rows that arrive by blocks: where bytes lie in them, and how blocks are asked for and held.

Files at an address have such blocks: `rlds_cli.places.remote.cache.BlockFiles`. A loader asks for them before it reads
the files as those of a disk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.repeated import distinct

_FAR = 1 << 62

Wanted = list[tuple[int, IntArray]]  # number of a file, ascending numbers of its blocks


class Hold(Protocol):
    """Blocks that stay until they are released."""

    @property
    def is_here(self) -> bool:
        """True if all blocks are cached."""
        ...

    def wait(self) -> None:
        """Wait until all blocks are cached; raises DownloadFailed naming the block."""
        ...

    def release(self) -> None:
        """Let the blocks go."""
        ...


class BlockCounts(Protocol):
    """Counts of the blocks of one dataset in this process."""

    requests: int
    fetched: int
    evicted: int
    filled: int


class BackgroundFill(Protocol):
    """The wish that blocks arrive in the background; it ends when this object is forgotten."""

    @property
    def state(self) -> str:
        """How the filling stands, in words; empty once all blocks are cached."""
        ...

    @property
    def goes_on(self) -> bool:
        """True while the rest arrives, in this process or another one."""
        ...


class Blocks(Protocol):
    """The blocks of the files of rows of one dataset at an address."""

    fills: bool  # whether loaders may have blocks arrive in the background

    @property
    def stats(self) -> BlockCounts:
        """What was fetched so far."""
        ...

    @property
    def block(self) -> int:
        """Bytes of a block."""
        ...

    @property
    def group(self) -> int:
        """Bytes of a group of blocks."""
        ...

    @property
    def stay(self) -> bool:
        """True if cached blocks are never evicted."""
        ...

    def number(self, path: Path) -> int:
        """Return the number of a file."""
        ...

    def state(self, file: int) -> Array:
        """Return the state of each block of a file: nonzero where it is cached."""
        ...

    def announce(self, wanted: Wanted, scattered: Collection[int] = ()) -> Hold:
        """Hold blocks, and begin to fetch those that are missing. Files that are ``scattered`` are read in no order."""
        ...

    def fill(self, ranges: Sequence[tuple[int, int, int]]) -> BackgroundFill:
        """Have blocks [start, stop) of files arrive in the background, after all that is announced."""
        ...


@dataclass(frozen=True, slots=True)
class BytePlace:
    """Place of the bytes of an array in files of rows.

    Files of equal size lie end to end: byte p of the array is byte ``(p + skip) % file_bytes`` of file
    ``files[(p + skip) // file_bytes]``. Segments begin at whole blocks, with anything between them: file k then has the
    blocks ``first[k]`` to ``first[k] + count[k]`` of the array.

    Attributes
    ----------
    files : int array
        Numbers of files; -1 for one that nothing is read from.
    block : int
        Bytes of a block.
    file_bytes : int
        Bytes of each file but the last.
    skip : int
        Bytes of the first file before the array.
    first, count : int array, optional
        First block and number of blocks of each file, if they are segments.
    """

    files: IntArray
    block: int
    file_bytes: int = _FAR
    skip: int = 0
    first: IntArray | None = None
    count: IntArray | None = None

    def by_file(self, blocks: IntArray) -> Wanted:
        """Return ascending blocks of the array by file; those between segments are left out."""
        assert self.first is not None and self.count is not None
        edges = np.searchsorted(blocks, np.stack([self.first, self.first + self.count], 1))
        found = zip(self.files.tolist(), self.first.tolist(), edges.tolist(), strict=True)
        return [(file, blocks[a:b] - first) for file, first, (a, b) in found if b > a]

    def wanted(self, starts: IntArray, stops: IntArray) -> Wanted:
        """Return the blocks that hold ranges of bytes [n] of the array."""
        starts, stops = starts + self.skip, stops + self.skip
        found: Wanted = []
        if not len(starts):
            return found
        if self.first is not None:
            some = stops > starts
            if some.any():
                found = self.by_file(_union(starts[some] // self.block, (stops[some] - 1) // self.block))
            return found
        for k in range(int(starts.min() // self.file_bytes), int((stops.max() - 1) // self.file_bytes) + 1):
            base = k * self.file_bytes
            inside = (starts < base + self.file_bytes) & (stops > base) & (stops > starts)
            if not inside.any() or self.files[k] < 0:
                continue
            first = (np.maximum(starts[inside], base) - base) // self.block
            last = (np.minimum(stops[inside], base + self.file_bytes) - base - 1) // self.block
            found.append((int(self.files[k]), _union(first, last)))
        return found


def _union(first: IntArray, last: IntArray) -> IntArray:
    """Return the numbers of all blocks in ranges, distinct and ascending."""
    if (first == last).all():
        return distinct(first)
    low = int(first.min())
    marks = np.zeros(int(last.max()) - low + 2, np.int64)
    np.add.at(marks, first - low, 1)
    np.add.at(marks, last - low + 1, -1)
    return np.flatnonzero(np.cumsum(marks)[:-1] > 0) + low
