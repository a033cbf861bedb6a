"""The files of a version whose rows are at an address: small ones are fetched whole, rows by blocks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files.arrays import Segment
from rlds_cli.base.files.mapping import Addresses
from rlds_cli.base.media.mp4 import Extent
from rlds_cli.base.progress import Progress
from rlds_cli.errors import DamagedDataset
from rlds_cli.places.remote import waiting
from rlds_cli.places.remote.cache import BlockFiles
from rlds_cli.places.remote.columns import RemoteColumn
from rlds_cli.places.remote.decoding import Encoded
from rlds_cli.store import Files, read_regular
from rlds_cli.store.blocks import Hold
from rlds_cli.store.columns import Column
from rlds_cli.store.layouts import ArrayLayout

if TYPE_CHECKING:
    from rlds_cli.places.remote.access import Access, RemoteAccess

_HINT = "rlds verify ID where it was pushed from"
_LONGEST_TABLE = 1 << 28


class FetchedFiles(Files):
    """Files of which some lie in blocks.

    Attributes
    ----------
    access : RemoteAccess
        How blocks are fetched.
    """

    blocks: BlockFiles
    access: RemoteAccess

    def __init__(self, path: Path, access: RemoteAccess) -> None:
        super().__init__(path)
        self.access, self.address = access, str(access.address)
        self._side_by_side: dict[Path, Array] = {}

    @property
    def unproved(self) -> str:
        """The name of the directory of what was seen, which holds the hash of its index."""
        return self.access.name

    @property
    def stats(self) -> Any:
        """Figures of this process: what it fetched, and how long it waited."""
        return self.access.stats

    @property
    def fetched(self) -> tuple[int, int]:
        """Bytes that this process has fetched of them, and its requests."""
        return self.access.stats.fetched, self.access.stats.requests

    def watched(self, progress: Progress) -> Progress:
        """Return a progress whose events also say what arrived, and for how long it was waited for."""
        return waiting.beside(progress, self.access.row_blocks.map, self.blocks.map)

    def array(self, c: Column, keep: object = None) -> Array:
        """Return the entries of a column as a `RemoteColumn`: what is read of it is fetched."""
        raw, place = self.mapped(c, keep), self.place(c)
        if place is None:
            return raw
        there: Any = RemoteColumn(raw, self.blocks, place)
        array: Array = there
        return array

    @contextmanager
    def hold(self, data: Array, starts: IntArray, stops: IntArray) -> Iterator[Array]:
        """Have ranges of entries [n] here while a block of code runs; nothing where some are out of bounds."""
        there: Any = data
        fits = not len(starts) or 0 <= starts.min() <= stops.max() <= len(data)
        if not isinstance(there, RemoteColumn) or not fits:
            yield data
            return
        with there.hold(starts, stops):
            there = there.held(starts, stops)
            yield there

    def window(self, data: Array, start: int, stop: int) -> Array:
        """Return a part of an array without reading it."""
        there: Any = data
        if isinstance(there, RemoteColumn):
            there = there.window(start, stop)
        else:
            there = data[start:stop]
        found: Array = there
        return found

    def extent(self, c: Column, start: int, stop: int, keep: list[Hold]) -> Extent:
        """Return the files with bytes [start, stop) of a column, cached as long as what ``keep`` gets exists."""
        of, place = super().extent(c, start, stop, keep), self.place(c)
        if place is None:
            return of
        if stop > start:
            keep.append(self.blocks.hold(place.wanted(np.array([start - c.first]), np.array([stop - c.first]))))
        here = ((self.blocks.number(file.relative_to(self.path)), first, size) for file, first, size in of.parts)
        return Extent(tuple((self.blocks.path_of(number), first, size) for number, first, size in here))

    def reopened(self, version_id: str) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Return how to open the same version in another process."""
        return self.access.reopened(version_id)


class PushedFiles(FetchedFiles):
    """The files of a version that was pushed."""

    access: Access

    def __init__(self, access: Access) -> None:
        super().__init__(access.path, access)
        self.claimed = access.pinned.index.fingerprint
        self.why_fixed = "its address pins a fingerprint" if access.is_proved else ""

    def beside(self, *parts: str) -> Path:
        """Return the path of a small file, or of a directory of these, fetched if needed."""
        name = "/".join(parts)
        self.access.content.need(name, f"{name}/")
        return self.path.joinpath(*parts)

    def documents(self, directory: Path) -> Path:
        """Return the path of a directory; the documents of the arrays in it are fetched."""
        below = self.access.content.below(f"{directory.as_posix()}/")
        self.access.content.need(*(f.path for f in below if f.path.endswith("/zarr.json")))
        return self.path / directory

    def table_of(self, file: Path) -> bytes | None:
        """Return the table of a video, if it was sent; of what is proved, tables are read from the videos."""
        if self.access.is_proved or not self.access.content.below(file.as_posix()):
            return None
        self.access.content.need_one(file.as_posix())
        return read_regular(self.path / file, _LONGEST_TABLE)

    def size_of(self, *parts: str) -> int:
        """Return the bytes of all files below a directory of the dataset, at the address; of all without parts."""
        return self.access.content.size("".join(f"{part}/" for part in parts))

    def admit(self, columns: Iterable[Column], *, check: bool) -> None:
        """Set up the blocks of the files of columns; refuse files of other sizes than a version says."""
        encoded, shards, plain = dict[str, Encoded](), list[str](), list[str]()
        for c in columns:
            if c.compressed:
                layout = self._check_layout(c)
                if not layout.compressed:
                    raise DamagedDataset(f"{self.address}: {c.directory} is not compressed.", hint=_HINT)
                encoded[c.directory.as_posix()] = Encoded(c.directory, layout)
                shards += self._shards(encoded[c.directory.as_posix()])
                continue
            for s in self.segments(c) if c.part != "digests" else ():  # these are small files
                plain.append(self._name(s))
                found = self.access.content.file(plain[-1]).size
                if found != s.size:
                    raise DamagedDataset(
                        f"{self.address}: {plain[-1]} has {found:,} bytes; {s.size:,} expected.", hint=_HINT
                    )
        access = self.access
        self.blocks = access.decoded(encoded, [*plain, *shards], plain) if encoded else access.blocks(plain)

    def _shards(self, e: Encoded) -> list[str]:
        """Return the files of a compressed array; raises DamagedDataset for one that is larger than its rows can be."""
        wanted = []
        for f in self.access.content.below(f"{e.directory.as_posix()}/c/"):
            number = f.path.removeprefix(f"{e.directory.as_posix()}/c/").partition("/")[0]
            if not number.isdecimal() or int(number) >= e.layout.shards or f.path != e.shard(int(number)):
                continue  # no reader asks for it
            if f.size > e.longest:
                raise DamagedDataset(
                    f"{self.address}: {f.path} has {f.size:,} bytes; {e.longest:,} at most are expected.", hint=_HINT
                )
            wanted.append(f.path)
        return wanted

    def segments(self, c: Column) -> tuple[Segment, ...]:
        """Return the files of a column of plain rows; of one file, no document is fetched."""
        below = self.access.content.below(f"{c.directory.as_posix()}/")
        if c.segment_rows or sum(f.path.endswith("/zarr.json") for f in below) > 1:
            return super().segments(c)
        one = Segment(0, self.path / c.directory, c.whole, c.dtype)
        return (one,) if one.size else ()

    def _check_layout(self, c: Column) -> ArrayLayout:
        found = self._layout(c)
        if (found.shape, found.dtype) != (c.whole, c.dtype):
            raise DamagedDataset(f"{self.address}: {c.directory}/zarr.json does not fit the manifest.", hint=_HINT)
        return found

    def _name(self, s: Segment) -> str:
        return s.file.relative_to(self.path).as_posix()

    def mapped(self, c: Column, keep: object = None) -> Array:
        """Return a column as it is mapped: of blocks that are not held, its values are anything."""
        place = self.place(c)
        if place is None:
            empty: Array = np.zeros(c.whole, c.dtype)
            empty.flags.writeable = False
            return empty
        if c.segment_rows:
            return self.entries(c, c.first, c.stop, keep)
        if place.first is not None:
            return self._segmented(c)
        raw = self.blocks.mapped(int(place.files[0]))[: c.nbytes]
        found: Array = raw.view(c.dtype.newbyteorder("<")).reshape(c.whole)
        return found

    def _segmented(self, c: Column) -> Array:
        """Map the segments of a column side by side."""
        if c.directory not in self._side_by_side:
            addresses = Addresses(c.whole[0] * c.width)
            for s in self.segments(c):
                descriptor = self.blocks.map.open_rows(self.blocks.number(self._name(s)))
                try:
                    addresses.map(s.start * c.width, s.rows * c.width, descriptor)
                finally:
                    os.close(descriptor)
            whole = np.frombuffer(addresses.view(), c.dtype.newbyteorder("<"), math.prod(c.whole)).reshape(c.whole)
            whole.flags.writeable = False
            self._side_by_side[c.directory] = whole
        return self._side_by_side[c.directory]

    def _opener(self, c: Column) -> Callable[[int], int]:
        blocks, here = self.blocks, super()._opener(c)

        def opened(number: int) -> int:
            try:
                return blocks.map.open_rows(blocks.number(c.file(number)))
            except KeyError:
                return here(number)  # a small file, such as digests of rows

        return opened
