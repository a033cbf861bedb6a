"""Lookups: arrays of the episode table, and of digests, whose rows are looked up in those of another dataset.

A selection has the values of its source, under other numbers. So its arrays are files of the source under second names,
and one array says which rows of them are meant::

    __lookups/0/                   [episodes] int32 or int64: numbers of rows
    episodes/length/lookup.json    {"array": "episodes/length", "index": "0", "data_type": "int64", "row": [],
                                    "parts": [["stored", 1000000], ["stored", 20]]}
    episodes/length/0/             [1000000] the array of the source
    episodes/length/1/             [20]      of episodes that have other values: here those that a trim has made shorter

Rows are counted through all parts, each of which begins at a multiple of 65,536, as segments do. Besides those that are
stored there are parts of zeros, and of numbers, each row of which holds its own number within the part. A growing
dataset has no arrays of episodes but logs with a record for each: in a part of records, which are the bytes of such a
log, a row has its place within each record. What is looked up lies in stored rows or records at once, however many
selections were made of each other: numbers are put together when one is made.

As with `references`, neither the manifest nor the list of digests knows of lookups: they describe the files that there
would be if the values were written, so that the version id does not depend on it. `read` and `read_strings` return the
values, and `files` the files as they would be. Rows of fields are never looked up.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays, mapping
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.arrays import Segment
from rlds_cli.base.files.hashing import sha256_of
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import files as store_files
from rlds_cli.store import layouts, paths, references, validation

MOST_PARTS = 16  # each is a file that is opened for a column
Kind = Literal["stored", "records", "numbers", "zeros"]
Indices = dict[str, "Index"]  # those that were read, by name
_LONGEST = 64 << 10  # bytes of a document
_LONGEST_RECORD = 1 << 20  # bytes
_LOG = re.compile("[a-z]{1,20}")  # its name
_PIECE = 1 << 16  # rows that are looked up at a time
_MAPPED = 4  # pieces of which the rows stay mapped
_HINT = "rlds verify ID shows all damage"
_TEXTS = ("bytes", "offsets")  # the arrays that texts are stored as


class Index(NamedTuple):
    """Numbers of rows [episodes], and the least and the greatest of them."""

    numbers: IntArray
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a lookup, as `Kind` says.

    In records of ``width`` bytes, which are those of a ``log`` beside the numbers of rows, each begins at byte ``at``.
    """

    kind: Kind
    rows: int
    at: int = 0
    width: int = 0
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The document of a lookup.

    Attributes
    ----------
    array : str
        Its path below the dataset.
    index : str
        The name of the numbers of its rows.
    dtype, row
        Type and shape of a row; no dtype if the rows are texts, as `arrays.write_strings` stores them.
    parts : tuple of Part
        Those that are stored are arrays ``0``, ``1``, ... in the directory of the lookup, by their numbers here. A log
        is an array of bytes [rows, width], whose file may have more records.
    """

    FILE: ClassVar[str] = paths.LOOKUP  # in the directory of the array

    array: str
    index: str
    dtype: np.dtype[Any] | None
    row: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def texts(self) -> bool:
        """Whether its rows are texts."""
        return self.dtype is None

    @property
    def numbers(self) -> str:
        """The array of the numbers of its rows, by its path below the dataset."""
        return f"{paths.LOOKUPS}/{self.index}"

    @property
    def documents(self) -> tuple[str, ...]:
        """The files that describe the arrays of its parts, and groups of them, by their paths below the dataset."""
        parts = [f"{self.array}/{k}" for k, part in enumerate(self.parts) if part.kind == "stored"]
        texts = [f"{part}/{name}" for part in parts for name in _TEXTS] if self.texts else []
        logs = [f"{paths.LOOKUPS}/{part.log}" for part in self.parts if part.kind == "records"]
        return tuple(f"{place}/zarr.json" for place in (*parts, *texts, *logs, self.numbers))

    def files(self, dataset: Path) -> dict[str, int | None]:
        """Return the files of these arrays, with sizes where they are known; the dataset has their documents.

        Raises
        ------
        DamagedDataset
            A document cannot be read.
        """
        found: dict[str, int | None] = dict(layouts.array_files(dataset, self.numbers))
        for k, part in enumerate(self.parts):
            place = f"{self.array}/{k}"
            if part.kind == "stored":
                arrays_of = [f"{place}/{name}" for name in _TEXTS] if self.texts else [place]
                found |= {name: size for a in arrays_of for name, size in layouts.array_files(dataset, a).items()}
            elif part.kind == "records":
                log = arrays.data_file(Path(paths.LOOKUPS, part.log), 2)
                found[log.as_posix()] = None  # its writer adds to it
        return found

    def write(self, dataset: Path) -> None:
        """Write the document of a lookup of a dataset in a directory."""
        parts = [[p.kind, p.rows, *((p.at, p.width, p.log) if p.kind == "records" else ())] for p in self.parts]
        kind = None if self.dtype is None else self.dtype.name
        values = {"array": self.array, "index": self.index, "data_type": kind, "row": self.row, "parts": parts}
        safe_files.make(dataset / self.array)
        safe_files.write_bytes(dataset / self.array / self.FILE, json.dumps(values).encode())

    @classmethod
    def of(cls, directory: Path) -> Lookup | None:
        """Return the lookup in a directory; None if there is none.

        Raises
        ------
        DamagedDataset
            Its document cannot be read, or is that of another array.
        """
        if not os.path.exists(f"{directory}/{cls.FILE}"):  # noqa: PTH110  (asked for every column)
            return None
        path = directory / cls.FILE
        try:
            found = _parsed(documents.loads(store_files.read_regular(path, _LONGEST)))
        except (OSError, KeyError, TypeError, ValueError) as e:
            raise DamagedDataset(f"{path} does not describe a lookup ({type(e).__name__}: {e}).", hint=_HINT) from e
        if directory.parts[-len(Path(found.array).parts) :] != Path(found.array).parts:
            raise DamagedDataset(f"{path} is that of {found.array}.", hint=_HINT)
        return found


def _parsed(values: Mapping[str, Any]) -> Lookup:
    array, index, kind, parts = (values[n] for n in ("array", "index", "data_type", "parts"))
    if not isinstance(array, str) or not paths.is_array_path(array):
        raise ValueError(f"{str(array)[:80]!r} is not the path of an array")
    if not isinstance(index, str) or not index.isdecimal() or not index.isascii():
        raise ValueError(f"index {str(index)[:40]!r}")
    if kind is not None and kind not in validation.NUMERIC:
        raise ValueError(f"data_type {str(kind)[:40]!r}")
    row = validation.shape([1, *values["row"]], "row", itemsize=validation.NUMERIC[kind] if kind else 1)[1:]
    if not isinstance(parts, list) or not 1 <= len(parts) <= MOST_PARTS:
        raise ValueError(f"at most {MOST_PARTS} parts are read")
    dtype = None if kind is None else np.dtype(kind)
    size = None if dtype is None else arrays.row_bytes((1, *row), dtype)
    computed = ("numbers", "zeros") if (kind, row) == ("int64", ()) else ()
    return Lookup(array=array, index=index, dtype=dtype, row=row, parts=tuple(_part(p, size, computed) for p in parts))


def _part(values: Any, size: int | None, computed: Collection[str]) -> Part:
    """Return a part whose rows have ``size`` bytes, None of texts; raises ValueError if it is of no kind."""
    what, rows, *record = values
    numbers = (rows, *record[:2])
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 48 for n in numbers)
    if whole and not record and (what == "stored" or what in computed):
        return Part(what, rows)
    if whole and what == "records" and size is not None:
        at, width, log = record
        if at + size <= width <= _LONGEST_RECORD and isinstance(log, str) and _LOG.fullmatch(log):
            return Part("records", rows, at, width, log)
    raise ValueError(f"{str(numbers)[:80]} rows of the kind {str(what)[:40]!r}")


# -- values


class LookedUp:
    """The rows of a lookup of numbers. Its files are mapped: they stay as they are when another version is published.

    Attributes
    ----------
    shape, dtype
        Of all rows.

    Raises
    ------
    DamagedDataset
        A part is not as the lookup says.
    """

    def __init__(self, directory: Path, lookup: Lookup, known: Indices) -> None:
        self._index = _index_of(directory, lookup, known)
        self.shape, self.dtype = (len(self._index), *lookup.row), np.dtype(lookup.dtype)
        self._numbers, segments, stop = list[tuple[int, int]](), list[Segment](), 0
        self._records = list[tuple[int, Records]]()  # with the number of the first row
        for k, (part, start) in enumerate(zip(lookup.parts, starts([p.rows for p in lookup.parts]), strict=True)):
            stop = start + part.rows
            if part.kind == "numbers":
                self._numbers.append((start, stop))
            elif part.kind == "records":
                self._records.append((start, Records.of(_dataset(directory, lookup), part, lookup)))
            elif part.kind == "stored":
                segments.append(_segment(directory / str(k), start, (part.rows, *lookup.row)))
        if any(s.dtype != self.dtype for s in segments):
            raise DamagedDataset(f"The parts of {directory} are not {self.dtype}.", hint=_HINT)
        self._stored = layouts.joined((stop, *lookup.row), self.dtype, segments)

    def between(self, first: int, stop: int) -> Array:
        """Return rows [first, stop)."""
        found: Array = np.empty((stop - first, *self.shape[1:]), self.dtype)
        for a in range(first, stop, _PIECE):  # pieces stay in the processor's cache
            index = self._index[a : min(a + _PIECE, stop)]
            values = found[a - first : a - first + len(index)]
            np.take(self._stored, index, axis=0, out=values, mode="clip")  # all are within: `_index_of` has looked
            for low, behind in self._numbers:
                at = (index >= low) & (index < behind)
                values[at] = index[at] - low
            for low, records in self._records:
                at = (index >= low) & (index < low + len(records.rows))
                values[at] = records.rows[index[at] - low]
        return found

    def read(self) -> Array:
        """Return all rows."""
        found = self.between(0, self.shape[0])
        found.flags.writeable = False
        return found

    def pieces(self, step: int) -> Iterator[Array]:
        """Yield all rows, ``step`` at a time, and let go of those that were read."""
        for a in range(0, self.shape[0], step):
            b = min(a + step, self.shape[0])
            yield self.between(a, b)
            if b == self.shape[0] or not b % (_MAPPED * step):
                mapped = [self._stored, *(records.bytes for _, records in self._records)]
                for array in (array for array in mapped if array.nbytes):
                    mapping.let_go(array.ctypes.data, array.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLog:
    """A file of ``rows`` records of ``width`` bytes, to which its writer adds others; lookups know it by its name."""

    name: str
    file: Path
    rows: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecords:
    """What the logs of a growing dataset hold of the episodes of a version.

    Attributes
    ----------
    places : int array [episodes]
        The number of the record of each episode.
    columns : mapping
        For arrays of the episode table and of digests, by their paths below a dataset, the log and the byte of its
        records at which a row begins.
    """

    places: IntArray
    columns: Mapping[str, tuple[RecordLog, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records of episodes, which are mapped: their ``bytes`` [rows, width], and the ``rows`` [rows, ...] in them."""

    bytes: Array
    rows: Array

    @classmethod
    def of(cls, dataset: Path, part: Part, lookup: Lookup) -> Records:
        """Return the records of a part of a lookup of a dataset; raises DamagedDataset if there are fewer."""
        return cls.mapped(arrays.data_file(references.place(index_in(dataset, part.log)), 2), part, lookup)

    @classmethod
    def mapped(cls, file: Path, part: Part, lookup: Lookup) -> Records:
        """Return the records of a part of a lookup that are in a file; raises as `of`."""
        assert lookup.dtype is not None
        count, width = part.rows, part.width
        raw: Array = np.zeros(0, np.uint8)
        try:
            with store_files.open_regular(file) as f:
                if count:
                    raw = np.frombuffer(mmap.mmap(f.fileno(), count * width, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError, OverflowError) as e:  # it is shorter
            raise DamagedDataset(f"{file} does not have {count:,} records: {e}.", hint=_HINT) from e
        strides = (width, *np.empty((1, *lookup.row), lookup.dtype).strides[1:])
        little = lookup.dtype.newbyteorder("<")
        rows: Array = np.ndarray((count, *lookup.row), little, raw.data, part.at, strides)
        return cls(bytes=raw.reshape(count, width), rows=rows)


def starts(rows: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the first rows of parts of so many rows, which are mapped side by side."""
    found = [0]
    for n in rows[:-1]:
        found.append(-(-(found[-1] + n) // layouts.SEGMENT_ROWS) * layouts.SEGMENT_ROWS)
    return tuple(found)


def _segment(directory: Path, start: int, shape: tuple[int, ...]) -> Segment:
    """Return the file of a part, whose rows have numbers from ``start`` on; raises DamagedDataset."""
    found = layouts.layout(directory)
    if found.compressed or found.segmented or found.shape != shape:
        raise DamagedDataset(f"{directory} is not an array of plain rows {list(shape)}.", hint=_HINT)
    return replace(found.segments[0], start=start)


class _LookedUpTexts:
    """The texts of a lookup, as their bytes."""

    def __init__(self, directory: Path, lookup: Lookup, known: Indices) -> None:
        index, begins = _index_of(directory, lookup, known), starts([p.rows for p in lookup.parts])
        self._part = np.searchsorted(begins, index, "right") - 1
        self._start, self._size = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
        self._bytes = list[Array]()
        for k, part in enumerate(lookup.parts):
            data, offsets = layouts.read(directory / str(k) / "bytes"), layouts.read(directory / str(k) / "offsets")
            layouts.check_offsets(directory / str(k) / "offsets", offsets, data)
            at = np.flatnonzero(self._part == k)
            rows = index[at] - begins[k]
            if len(offsets) != part.rows + 1 or (rows >= part.rows).any():
                raise DamagedDataset(f"Part {k} of {directory} has other rows.", hint=_HINT)
            self._bytes.append(data)
            self._start[at], self._size[at] = offsets[rows], offsets[rows + 1] - offsets[rows]

    @property
    def offsets(self) -> IntArray:
        """The first byte of each text, and the one behind the last, as `arrays.write_strings` has them."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self._size)])

    def bytes_of(self, first: int, stop: int) -> Array:
        """Return the bytes of texts [first, stop), end to end."""
        size, start, part = self._size[first:stop], self._start[first:stop], self._part[first:stop]
        behind = np.cumsum(size)
        places = np.arange(int(behind[-1]) if len(behind) else 0) + np.repeat(start - (behind - size), size)
        found, of = np.empty(len(places), np.uint8), np.repeat(part, size)
        for k, data in enumerate(self._bytes):
            found[of == k] = data[places[of == k]]
        return found

    def texts(self) -> list[str]:
        """Return the texts."""
        data, offsets = self.bytes_of(0, len(self._size)).tobytes(), self.offsets
        return [data[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(offsets.tolist())]


def _index_of(directory: Path, lookup: Lookup, known: Indices) -> IntArray:
    """Return the numbers of the rows; raises DamagedDataset if one is not there."""
    if lookup.index not in known:
        place = index_in(_dataset(directory, lookup), lookup.index)
        found = layouts.read(place)
        if found.ndim != 1 or found.dtype not in (np.int32, np.int64):
            raise DamagedDataset(f"{place} holds no numbers of rows.", hint=_HINT)
        numbers = found.astype(np.int64)  # as NumPy takes rows by it
        known[lookup.index] = Index(numbers, int(numbers.min(initial=0)), int(numbers.max(initial=0)))
    index, rows = known[lookup.index], [p.rows for p in lookup.parts]
    total = starts(rows)[-1] + rows[-1]
    if index.least < 0 or index.most >= max(1, total):
        raise DamagedDataset(f"{directory} looks up rows beyond its {total:,}.", hint=_HINT)
    return index.numbers


def index_in(dataset: Path, name: str) -> Path:
    """Return the directory of numbers of rows, or of a log."""
    return dataset / paths.LOOKUPS / name


def _dataset(directory: Path, lookup: Lookup) -> Path:
    """Return the dataset in which a directory has a lookup."""
    return directory.parents[len(Path(lookup.array).parts) - 1]


def opened(directory: Path, known: Indices) -> LookedUp | Array | None:
    """Return the array in a directory: mapped, or a lookup that has read no row; None if there is none.

    ``known`` holds the numbers of rows that were read, and gets those that are read.

    Raises
    ------
    DamagedDataset
    """
    lookup = Lookup.of(directory)
    if lookup is None:
        return layouts.find(directory)
    return None if lookup.texts else LookedUp(directory, lookup, known)


def read(directory: Path) -> Array:
    """Return the array in a directory, also if its rows are looked up; raises DamagedDataset."""
    found = opened(directory, {})
    if isinstance(found, LookedUp):
        return found.read()
    return layouts.read(directory) if found is None else found


def pieces(directory: Path) -> Iterator[Array]:
    """Yield the rows of the array in a directory, a few at a time; raises DamagedDataset."""
    found = opened(directory, {})
    if isinstance(found, LookedUp):
        yield from found.pieces(_PIECE)
    else:
        yield read(directory)


def read_strings(directory: Path) -> list[str]:
    """Return the texts that `arrays.write_strings` wrote, also if they are looked up; raises DamagedDataset."""
    lookup = Lookup.of(directory)
    if lookup is None:
        return layouts.read_strings(directory)
    if not lookup.texts:
        raise DamagedDataset(f"{directory} holds no texts.", hint=_HINT)
    return _LookedUpTexts(directory, lookup, {}).texts()


def is_array(directory: Path) -> bool:
    """Return whether a directory holds an array, also one whose rows are looked up; raises as `Lookup.of`."""
    lookup = Lookup.of(directory)
    return layouts.is_array(directory) if lookup is None else not lookup.texts


def is_strings(directory: Path) -> bool:
    """Return whether a directory holds texts, also if they are looked up; raises as `Lookup.of`."""
    lookup = Lookup.of(directory)
    return (directory / "offsets").is_dir() if lookup is None else lookup.texts


# -- files


@dataclass(frozen=True, slots=True)
class WholeFile:
    """A file that there would be if the values of a lookup were written. ``blocks`` yields its content."""

    size: int
    blocks: Callable[[], Iterator[bytes | memoryview]]

    def sha256(self) -> str:
        """Return the sha256 of the content."""
        h = hashlib.sha256()
        for block in self.blocks():
            h.update(block)
        return h.hexdigest()

    def content(self) -> bytes:
        """Return the content."""
        return b"".join(self.blocks())

    def write(self, file: Path) -> None:
        """Write the file, which must not exist."""
        safe_files.make(file.parent)
        with file.open("xb") as out:
            for block in self.blocks():
                out.write(block)


def files(directory: Path, *, damaged: dict[str, str] | None = None) -> dict[str, Path | WholeFile]:
    """Return the files of a dataset, or of a directory in it, by name: as if all of them were its own, in no order.

    Those of arrays that it refers to are among them, and what it looks up as it would be written.

    Parameters
    ----------
    damaged : dict, optional
        Gets what is wrong with lookups, by their names. Files of these are left out.

    Raises
    ------
    DatasetNotFound, DamagedDataset
        As `references.files` and `Lookup.of`.
    """
    there, known = references.files(directory), dict[str, Index]()
    found_here = [n for n in there if n.rpartition("/")[2] == Lookup.FILE and there[n] == directory / n]
    looked_up = [name.removesuffix(Lookup.FILE) for name in found_here]  # each with a slash at its end
    apart = (*looked_up, f"{paths.LOOKUPS}/")
    found: dict[str, Path | WholeFile] = {n: file for n, file in there.items() if not f"{n}/".startswith(apart)}
    for above in looked_up:
        try:
            found |= {above + name: file for name, file in _whole(directory / above, known).items()}
        except DamagedDataset as e:
            if damaged is None:
                raise
            damaged[Path(above).as_posix()] = e.message
    return found


def sha256_of_file(file: Path | WholeFile) -> str:
    """Return the sha256 of a file of `files`."""
    return file.sha256() if isinstance(file, WholeFile) else sha256_of(file)


def _whole(directory: Path, known: Indices) -> dict[str, WholeFile]:
    """Return the files that a lookup would be, by their names below its directory. Its parts are mapped now.

    Raises
    ------
    DamagedDataset
    """
    lookup = Lookup.of(directory)
    assert lookup is not None
    if not lookup.texts:
        rows = LookedUp(directory, lookup, known)
        return _array_files(rows.shape, rows.dtype, lambda: rows.pieces(_PIECE))
    texts = _LookedUpTexts(directory, lookup, known)
    offsets = texts.offsets

    def of_bytes() -> Iterator[Array]:
        for a in range(0, len(offsets) - 1, _PIECE):
            yield texts.bytes_of(a, min(a + _PIECE, len(offsets) - 1))

    found = {f"bytes/{n}": f for n, f in _array_files((int(offsets[-1]),), np.dtype(np.uint8), of_bytes).items()}
    of_offsets = _array_files(offsets.shape, offsets.dtype, lambda: iter((offsets,)))
    found |= {f"offsets/{name}": f for name, f in of_offsets.items()}
    return found | {"zarr.json": _of(arrays.group_document())}


def _array_files(
    shape: tuple[int, ...], dtype: np.dtype[Any], pieces: Callable[[], Iterator[Array]]
) -> dict[str, WholeFile]:
    """Return the files that `arrays.write` would write of an array whose rows are yielded by ``pieces``."""
    found = {"zarr.json": _of(json.dumps(arrays.document(shape, dtype)).encode())}
    size = arrays.file_size(shape, dtype)

    def blocks() -> Iterator[bytes | memoryview]:
        yield from (arrays.raw(arrays.little_endian(piece)) for piece in pieces())
        yield arrays.tail(shape, dtype)

    if size:
        found[arrays.data_file(Path(), len(shape)).as_posix()] = WholeFile(size, blocks)
    return found


def _of(content: bytes) -> WholeFile:
    return WholeFile(len(content), lambda: iter((content,)))
