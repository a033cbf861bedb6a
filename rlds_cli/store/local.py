"""Where the files of a version are: a directory of this disk. `places.remote.files` has those at an address."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rlds_cli.base.media.mp4 import Extent
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import arrays, compression
from rlds_cli.store.arrays import Segment
from rlds_cli.store.columns import Column
from rlds_cli.store.segment_map import SegmentMap
from rlds_cli.ted import Array, IntArray

_HINT = "rlds verify ID shows all damage"


class Files:
    """The files of a version, in a directory of this disk.

    Parameters
    ----------
    path : Path
    moves : bool
        Another version takes its place when one is published: a version whose rows are in directories.

    Attributes
    ----------
    path : Path
        The directory with its small files.
    address : str
        Where the rows are fetched from, without credentials; empty if they are in files of this disk.
    claimed : str
        The fingerprint that the address names; empty for files of this machine.
    blocks : BlockFiles or None
        The files of rows, by blocks.
    versions : Followed or None
        Where newer versions of a growing dataset are looked for; None for its own directory.
    why_fixed : str
        Why loaders take up no later versions; empty if they can.
    """

    address = claimed = ""
    blocks: Any = None
    versions: Any = None
    why_fixed = ""

    def __init__(self, path: Path, *, moves: bool = False) -> None:
        self.path, self.moves = path, moves
        self._maps: dict[str, SegmentMap] = {}

    @property
    def unproved(self) -> str:
        """The name of what was seen where fingerprint, version id and digests are a claim; empty for those of a home.

        They are one at an address, and in a plain directory, which may be anybody's: a dataset gets into a home after
        its content was compared. It belongs to the key of everything that is derived from the rows and kept.
        """
        if any(parent.name in ("datasets", "versions") for parent in list(self.path.absolute().parents)[1:4]):
            return ""
        seen = " ".join(map(str, (self.path.resolve(), *identify(self.path))))
        return f"directory-{hashlib.sha256(seen.encode()).hexdigest()[:16]}"

    def beside(self, *parts: str) -> Path:
        """Return the path of a small file, or of a directory of these, which is here then if it exists."""
        return self.path.joinpath(*parts)

    def documents(self, directory: Path) -> Path:
        """Return the path of a directory below the dataset; the documents of the arrays in it are here then."""
        return self.path / directory

    def size_of(self, *parts: str) -> int | None:
        """Return the bytes of all files below a directory of the dataset if they are at an address; else None."""
        return None

    def open(self, columns: Callable[[], Iterable[Column]], *, compressed: bool, check: bool) -> None:
        """Prepare to read columns; ``check`` that their files have the sizes that a version says."""
        for c in columns() if check else ():
            if compressed and not c.key.endswith("\0video"):
                self._check_layout(c)
                compression.check_shards(self.path / c.directory)
            elif c.segment_rows:
                for s in self.segments(c):
                    arrays.check_size(s.file, s.size)
            else:
                arrays.check_files(self.path / c.directory, c.whole, c.dtype)

    def segments(self, c: Column) -> tuple[Segment, ...]:
        """Return the files of a column of plain rows, in order; `Segment.start` is as the files count entries."""
        if c.segment_rows:
            shape, size = (c.segment_rows, *c.shape), c.segment_rows
            numbers = c.needed if c.width else ()
            return tuple(Segment(n * size, self.path / c.directory, shape, c.dtype, size, n) for n in numbers)
        return tuple(s for s in self._check_layout(c).segments if s.size)

    def _check_layout(self, c: Column) -> arrays.ArrayLayout:
        found = arrays.layout(self.documents(c.directory))
        if (found.shape, found.dtype) != (c.whole, c.dtype):
            said = f"{found.dtype} {list(found.shape)}"
            raise DamagedDataset(
                f"{self.path / c.directory / 'zarr.json'} says {said}; the manifest says {c.dtype} {list(c.whole)}.",
                hint=_HINT,
            )
        return found

    def array(self, c: Column, hold: object = None) -> Array:
        """Return the entries of a column: mapped, decoded once and kept, or fetched where they are read."""
        if c.segment_rows:
            return self.entries(c, c.first, c.stop, hold)
        self._check_layout(c)
        return compression.open_column(self.path / c.directory)

    def entries(self, c: Column, start: int, stop: int, hold: object = None) -> Array:
        """Return entries of an array that a writer adds to, by their numbers since the first that was ever written."""
        key = c.directory.as_posix()
        found = self._maps.get(key)
        if found is None or not found.fits(c.first, c.stop):
            found = self._maps[key] = SegmentMap(c, c.first, c.stop, self._opener(c))
        return found.rows(start, stop, c.needed, hold)

    def _opener(self, c: Column) -> Callable[[int], int]:
        """Return how the segments of a column are opened; it does not refer to this object, which refers to it."""
        path = self.path
        return lambda number: arrays.descriptor(path / c.file(number), c.size)

    def mapped(self, c: Column, hold: object = None) -> Array:
        """Return a column as it is mapped, for the loader: of blocks that are not held, its values are anything."""
        return self.array(c, hold)

    def place(self, c: Column) -> Any:
        """Return where the bytes of a column lie in `blocks`; None for one without bytes, or on this disk."""
        return None

    def hold(self, data: Array, starts: IntArray, stops: IntArray) -> AbstractContextManager[Any]:
        """Have ranges of entries [n] of an array of `array` here while a block of code runs."""
        return nullcontext()

    def window(self, data: Array, start: int, stop: int) -> Array:
        """Return a part of an array of `array` without reading it."""
        found: Array = data[start:stop]
        return found

    def extent(self, c: Column, start: int, stop: int, keep: list[Any]) -> Extent:
        """Return the files with bytes [start, stop) of a column, as files count; ``keep`` gets what holds them."""
        parts = list[tuple[Path, int, int]]()
        for s in self.segments(c):
            first, behind = max(start, s.start), min(stop, s.start + s.rows)
            if first < behind or (start == stop and not parts):
                parts.append((s.file, max(0, first - s.start), max(0, behind - first)))
        return Extent(tuple(parts) or ((self.path / c.directory, 0, 0),))

    def reopened(self, version_id: str) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Return how to open the same version in another process; None if path and number say it."""
        return None


def identify(path: Path) -> tuple[int, int]:
    """Return what tells the file of a manifest from one that takes its place."""
    status = (path / "zarr.json").stat()
    return status.st_ino, status.st_mtime_ns
