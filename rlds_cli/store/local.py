"""Where the files of a version are: here in a directory. `rlds_cli.places.remote.files` has those at an address."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import disk
from rlds_cli.base.files.arrays import Segment
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.errors import DamagedDataset, DatasetNotFound
from rlds_cli.store import compression, layouts, references
from rlds_cli.store import files as store_files
from rlds_cli.store.columns import Column
from rlds_cli.store.history import History
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.segment_map import SegmentMap

if TYPE_CHECKING:
    from rlds_cli.base.media.mp4 import Extent
    from rlds_cli.base.progress import Progress
    from rlds_cli.store.blocks import Blocks, BytePlace, Hold

T = TypeVar("T")
_HINT = "rlds verify ID shows all damage"


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file with plain rows of a field, from row ``first`` on.

    ``id`` identifies it by whichever name. It is taken from the file, and not from the manifest, which could claim
    anything.
    """

    first: int
    rows: int
    id: str


class Files:
    """The files of a version. They know no episode.

    Attributes
    ----------
    address : str
        Where the rows are fetched from, without credentials; empty if they are in files of this disk.
    claimed : str
        The fingerprint that the address names; empty for files of this disk.
    blocks : Blocks or None
        The files of rows, by blocks, if they are at an address.
    elsewhere : object or None
        Where newer versions of a growing dataset are looked for; None for its own directory.
    why_fixed : str
        Why loaders take up no later versions of one that grows; empty if they can.
    refers_to : tuple of ReferencedVersion
        Versions of other datasets that rows of this one are stored in.
    """

    address = claimed = why_fixed = ""
    blocks: Blocks | None = None
    elsewhere: Any = None
    refers_to: tuple[references.ReferencedVersion, ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._maps: dict[Path, SegmentMap] = {}

    @property
    def path(self) -> Path:
        """The directory with the small files."""
        return self._path

    @property
    def identity(self) -> references.ReferencedVersion | None:
        """What others say of this version that refer to its files; None if these cannot be referred to."""
        return None

    @property
    def fetched(self) -> tuple[int, int]:
        """Bytes that this process has fetched of them, and its requests."""
        return 0, 0

    def watched(self, progress: Progress) -> Progress:
        """Return a progress whose events also say what arrived of files at an address; that of other files as it is.

        All processes of this machine that read them count, and seconds of readers that wait at the same time are added
        up.
        """
        return progress

    @property
    def unproved(self) -> str:
        """The name of what was seen where fingerprint, version id and digests are a claim; empty for those of a home.

        It belongs to the key of everything that is derived from the rows and kept.
        """
        raise NotImplementedError

    def reads(self, m: Manifest, version_id: str) -> None:
        """Note which version it is that is read."""

    def guarded(self, read: Callable[[], T]) -> T:
        """Return what ``read`` reads of files below `path`, which are opened on first use: those of this version.

        Raises
        ------
        DatasetNotFound
            This version was removed since it was opened, by `rlds compact` or with its dataset; or the dataset was
            replaced; or one that it refers to. Arrays that are mapped already stay valid.
        """
        return read()

    def check_readable(self) -> None:
        """Refuse a version that was removed or replaced since it was opened; raises as `guarded`."""

    def beside(self, *parts: str) -> Path:
        """Return the path of a small file, or of a directory of these, fetched first if it is elsewhere."""
        return self.path.joinpath(*parts)

    def documents(self, directory: Path) -> Path:
        """Return the path of a directory below the dataset; the documents of its arrays are fetched first."""
        return self.path / directory

    def size_of(self, *parts: str) -> int:
        """Return the bytes of all files below a directory of the dataset: on this disk, or at the address."""
        return size_on_disk(self.path.joinpath(*parts))

    def size_with_others(self, *parts: str) -> int:
        """Return `size_of` with the files of other datasets that this one refers to."""
        if not self.refers_to:
            return self.size_of(*parts)
        return sum(size_on_disk(file) for file in references.files(self.path.joinpath(*parts)).values())

    def admit(self, columns: Iterable[Column], *, check: bool) -> None:
        """Prepare to read columns; ``check`` that their files have the sizes that a version says."""
        raise NotImplementedError

    def _check_sizes(self, columns: Iterable[Column]) -> None:
        """Refuse files on this disk of other sizes than a version says."""
        for c in columns:
            if c.compressed:
                self._check_layout(c)
                compression.check_shards(self.path / c.directory)
            elif c.segment_rows:
                for s in self.segments(c):
                    layouts.check_size(s.file, s.size)
            else:
                layouts.check_files(self.path / c.directory, c.whole, c.dtype)

    def segments(self, c: Column) -> tuple[Segment, ...]:
        """Return the files of a column of plain rows, in order; `Segment.start` is as the files count entries."""
        if c.segment_rows:
            shape, size = (c.segment_rows, *c.shape), c.segment_rows
            numbers = c.needed if c.width else ()
            return tuple(Segment(n * size, self.path / c.directory, shape, c.dtype, size, n) for n in numbers)
        return tuple(s for s in self._check_layout(c).segments if s.size)

    def _layout(self, c: Column) -> layouts.ArrayLayout:
        return layouts.layout(self.documents(c.directory))

    def _check_layout(self, c: Column) -> layouts.ArrayLayout:
        found = self._layout(c)
        if (found.shape, found.dtype) != (c.whole, c.dtype):
            said = f"{found.dtype} {list(found.shape)}"
            raise DamagedDataset(
                f"{self.path / c.directory / 'zarr.json'} says {said}; the manifest says {c.dtype} {list(c.whole)}.",
                hint=_HINT,
            )
        return found

    def _table_of_films(self, c: Column, name: str) -> Array:
        """Return a table that lies beside the bytes ``c`` of videos, on this disk: ``spans`` or ``sha256``."""
        return layouts.read(self.path / c.directory.parent / name)

    def is_segmented(self, c: Column) -> bool:
        """Return whether a column is in segments that are arrays of their own, as those of a merge are."""
        return layouts.is_segmented(self.path / c.directory)

    def array(self, c: Column, keep: object = None) -> Array:
        """Return the entries of a column: mapped, decoded once, or fetched where they are read.

        The array keeps ``keep``, which is what keeps rows from being freed.
        """
        if c.segment_rows:
            return self.entries(c, c.first, c.stop, keep)
        found, path = self._check_layout(c), self.path / c.directory
        return compression.open_column(path) if found.compressed else layouts.mapped(path, found)

    def sliced(self, c: Column) -> Array | compression.Compressed:
        """Return the entries of a column that no writer adds to, for slicing: mapped, or decoded slice by slice."""
        return compression.open_rows(self.path / c.directory)

    def entries(self, c: Column, start: int, stop: int, keep: object = None) -> Array:
        """Return entries of an array that a writer adds to, by their numbers since the first that was ever written."""
        found = self._maps.get(c.directory)
        if found is None or not found.fits(c.first, c.stop):
            found = self._maps[c.directory] = SegmentMap(c, self._opener(c))
        return found.rows(start, stop, c.needed, keep)

    def _opener(self, c: Column) -> Callable[[int], int]:
        """Return how the segments of a column are opened; it does not refer to this object, which refers to it."""
        path = self.path
        return lambda number: layouts.descriptor(path / c.file(number), c.size)

    def small(self, c: Column, keep: object = None) -> Array:
        """Return the entries of a column whose files are small ones: of digests."""
        path = self.beside(*c.directory.parts)
        return self.entries(c, c.first, c.stop, keep) if c.segment_rows else layouts.read(path)

    def mapped(self, c: Column, keep: object = None) -> Array:
        """Return a column as it is mapped, for the loader: of blocks that are not held, its values are anything."""
        return self.array(c, keep)

    def place(self, c: Column) -> BytePlace | None:
        """Return where the bytes of a column lie in `blocks`; None for one without bytes, or on this disk."""
        blocks = self.blocks
        if blocks is None or not c.nbytes:
            return None
        from rlds_cli.store.blocks import BytePlace

        if c.compressed:
            return BytePlace(np.array([blocks.number(c.directory)]), blocks.block)
        if c.segment_rows:
            first = c.first // c.segment_rows
            files = np.full(-(-c.stop // c.segment_rows) - first, -1, np.int64)
            for number in c.needed:
                files[number - first] = blocks.number(c.file(number))
            return BytePlace(files, blocks.block, c.size, (c.first - first * c.segment_rows) * c.width)
        segments = self.segments(c)
        files = np.array([blocks.number(s.file.relative_to(self.path)) for s in segments])
        if len(segments) == 1 and not segments[0].start:
            return BytePlace(files, blocks.block)
        begin = np.array([s.start * c.width // blocks.block for s in segments])
        count = np.array([-(-s.rows * c.width // blocks.block) for s in segments])
        return BytePlace(files, blocks.block, first=begin, count=count)

    def hold(self, data: Array, starts: IntArray, stops: IntArray) -> AbstractContextManager[Array]:
        """Have ranges of entries [n] of an array of `array` here while a block of code runs; it reads what it gets."""
        return nullcontext(data)

    def window(self, data: Array, start: int, stop: int) -> Array:
        """Return a part of an array of `array` without reading it."""
        found: Array = data[start:stop]
        return found

    def extent(self, c: Column, start: int, stop: int, keep: list[Hold]) -> Extent:
        """Return the files with bytes [start, stop) of a column, as files count; ``keep`` gets what holds them."""
        from rlds_cli.base.media.mp4 import Extent

        parts = list[tuple[Path, int, int]]()
        for s in self.segments(c):
            first, behind = max(start, s.start), min(stop, s.start + s.rows)
            if first < behind or (start == stop and not parts):
                parts.append((s.file, max(0, first - s.start), max(0, behind - first)))
        return Extent(tuple(parts) or ((self.path / c.directory, 0, 0),))

    def table_of(self, file: Path) -> bytes | None:
        """Return the table of a video, of a growing dataset at an address; None if it is read from the video."""
        return None

    def file_of(self, c: Column) -> Path | None:
        """Return the one file that has all plain rows of a column; None if they are in several, or compressed."""
        return None

    def ids(self, c: Column) -> tuple[RowFile, ...]:
        """Return the files of a column of plain rows that never change, in order; none for other ones."""
        return ()

    def can_link(self, columns: Iterable[Column], home: Path) -> bool:
        """Return whether rows of columns can get second names in a home: plain files, of this disk and this user.

        The disk must have hard links.
        """
        return False

    def reopened(self, version_id: str) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Return how to open the same version in another process; None if path and number say it."""
        return None


class LocalFiles(Files):
    """The files of a version in a directory of this disk.

    Parameters
    ----------
    path : Path
    moves : bool
        The directory becomes another one when the dataset gets a newer version; those of a growing dataset share one.
    """

    def __init__(self, path: Path, *, moves: bool) -> None:
        super().__init__(path)
        self._moves = moves
        # before the manifest is read: one that replaces it meanwhile is noticed at the next use
        self._seen = identify(path) if moves and (path / "zarr.json").exists() else (0, 0)
        self._id, self._version, self._version_id = "", 0, ""
        self._admitted: tuple[Column, ...] = ()

    @property
    def path(self) -> Path:
        """The directory in which this version is now: another one since its dataset has a newer version."""
        with suppress(DatasetNotFound, DamagedDataset):
            self._follow()
        return self._path

    @property
    def unproved(self) -> str:
        """The name of a directory outside of a home, which may be anybody's; see `Files.unproved`.

        A dataset gets into a home after its content was compared.
        """
        path = self.path
        if any(parent.name in ("datasets", "versions") for parent in list(path.absolute().parents)[1:4]):
            return ""
        seen = " ".join(map(str, (path.resolve(), *identify(path))))
        return f"directory-{hashlib.sha256(seen.encode()).hexdigest()[:16]}"

    def reads(self, m: Manifest, version_id: str) -> None:
        """Note which version it is that is read, and which others it refers to."""
        self._id, self._version, self._version_id = m.id, m.version, version_id
        if self._moves:
            self.refers_to = references.sources(self._path)

    @property
    def identity(self) -> references.ReferencedVersion | None:
        """What others say of this version that refer to its files; None if these cannot be referred to."""
        if not self._moves:
            return None
        newest = History.of(self.path).path
        return references.ReferencedVersion(str(newest), self._id, self._version, self._version_id)

    def guarded(self, read: Callable[[], T]) -> T:
        """Return what ``read`` reads; once more if the version moved meanwhile. See `Files.guarded`."""
        while True:
            places = self._places()
            try:
                found = read()
            except Exception:
                if self._places() == places:
                    raise
            else:
                if self._places() == places:
                    return found

    def can_link(self, columns: Iterable[Column], home: Path) -> bool:
        """Return whether the rows can get second names in a home; see `Files.can_link`."""
        if self.refers_to or any(c.compressed for c in columns):
            return False
        status = self.path.stat()
        own = status.st_dev == disk.existing(home).stat().st_dev and status.st_uid == os.geteuid()
        return own and disk.takes_links(home)

    def check_readable(self) -> None:
        """Refuse a version that was removed or replaced since it was opened; raises as `guarded`."""
        self._places()

    def _places(self) -> list[Path]:
        """Return where this version is now, and those that it refers to; raises as `guarded`."""
        return [self._follow(), *(source.place(self._id, self.path) for source in self.refers_to)]

    def _follow(self) -> Path:
        """Return where this version is now; raises as `guarded`."""
        if not self._moves or not self._version_id:  # rows of a version of a log stay while it is held
            return self._path
        try:
            now = identify(self._path)
            if now == self._seen:
                return self._path
            place, (newest, version_id) = self._path, Manifest.read_with_version_id(self._path)
            if version_id != self._version_id and newest.version > self._version:
                place = History(self._path).at(self._version)
                now, (_, version_id) = identify(place), Manifest.read_with_version_id(place)
        except (OSError, DamagedDataset, DatasetNotFound):
            raise self._removed() from None
        if version_id != self._version_id:
            raise replaced(self._id, self._path, "opened")
        self._path, self._seen = place, now
        self._check_references()
        self._check_sizes(self._admitted)
        return place

    def _removed(self) -> DatasetNotFound:
        """Return the error for a version that is not on the disk any more."""
        history = History.of(self._path)
        if not (history.path / "zarr.json").exists():
            return DatasetNotFound(
                f"{self._id} was removed since it was opened: {self._path}.",
                hint="download or import it, and open it again",
            )
        return version_removed(self._id, self._version, history, "opened")

    def admit(self, columns: Iterable[Column], *, check: bool) -> None:
        """Refuse files of other sizes than a version says, now and where it moves to."""
        self._check_references()
        self._admitted = tuple(columns) if check else ()
        self._check_sizes(self._admitted)

    def _check_references(self) -> None:
        for source in self.refers_to:
            store_files.check_tree(source.place(self._id, self.path))

    def file_of(self, c: Column) -> Path | None:
        """Return the one file that has all plain rows of a column; None if they are in several, or compressed."""
        if c.segment_rows or (found := layouts.layout(self.path / c.directory)).compressed or self.is_segmented(c):
            return None
        return found.segments[0].file

    def ids(self, c: Column) -> tuple[RowFile, ...]:
        """Return the files of a column of plain rows that never change, in order; none for other ones."""
        if c.segment_rows or c.compressed:
            return ()
        try:
            segments = [s for s in layouts.layout(self.path / c.directory).segments if s.size]
            found = [(s, s.file.stat()) for s in segments]
        except (FileNotFoundError, DamagedDataset):
            return ()
        return tuple(RowFile(s.start, s.rows, f"{x.st_ino} {x.st_size} {x.st_mtime_ns}") for s, x in found)


def identify(path: Path) -> tuple[int, int]:
    """Return what tells the file of a manifest from one that takes its place."""
    status = os.stat(f"{path}/zarr.json")  # noqa: PTH116  (asked at every read)
    return status.st_ino, status.st_mtime_ns


def replaced(id: str, path: Path, since: str) -> DatasetNotFound:
    """Return the error for a dataset that another one has taken the place of since it was ``opened`` or ``pickled``."""
    return DatasetNotFound(f"{id} was replaced since it was {since}, in {path}.", hint="open it again")


def version_removed(id: str, number: int, history: History, since: str) -> DatasetNotFound:
    """Return the error for a version that `rlds compact` removed since it was ``opened`` or ``pickled``."""
    return DatasetNotFound(
        f"{id}#v{number} was removed since it was {since}: rlds compact removes earlier versions without a tag.",
        hint=f"open {id} again, at v{history.newest}; rlds tag {id}#v{number} NAME keeps a version while it is in use",
    )
