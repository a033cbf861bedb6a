"""tianshou's replay buffers (``ReplayBuffer.save_hdf5``): rings of rows, read in the order of time.

::

    _meta/obs, act, rew, terminated, truncated, done, obs_next    [maxsize, ...]
    _size, _index (since 2.0 _insertion_idx)    attributes: how many rows are filled, and which is written next
    _offset, _lengths, last_index               [n], of n environments: where the ring of each begins, how many of its
                                                rows are filled, and which was written last

    place    0  1  2  3  4  5  6  7             _size 8, _index 3: row 3 is the oldest
    step     8  9 10  3  4  5  6  7
    read     3  4  5  6  7  8  9 10

An episode ends where a flag is set, and with the newest row of its ring. Pickled members are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.formats.hdf5 import Contents, attribute, datasets, whole
from rlds_cli.archives.formats.hdf5_rows import RowReader
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import CorruptArchive, UnknownLayout

ROWS = "_meta"
ENDS = "episode_ends"  # a list of the ends of episodes, which no file holds
NEXT = ("_index", "_insertion_idx")
RINGS = ("_offset", "_lengths", "last_index")
FLAGS = ("terminated", "truncated", "done")
OF_RINGS = ("maxsize", "_size", *NEXT, *RINGS)  # attributes and lists
STORED = ("ndarray", "Tensor")  # values of ``__data_type__`` of members that are no pickles
MAX_RINGS = 1 << 16
_TYPE = "__data_type__"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``start`` to ``stop`` of the file, which follow one another in time."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer as the file describes it: its pieces in the order of time, of which ``last`` end a ring.

    ``overwritten`` counts the rings that are full, whose oldest episodes may have lost steps.
    """

    capacity: int
    pieces: tuple[Piece, ...]
    last: tuple[bool, ...]
    overwritten: int

    @property
    def rows(self) -> int:
        """The number of filled rows."""
        return sum(p.stop - p.start for p in self.pieces)


def is_buffer(f: h5py.File, found: Contents) -> bool:
    """Tell whether an HDF5 file, which holds what was found, is a replay buffer of tianshou."""
    known = {"@maxsize", "@_size"} <= set(found.attributes) and isinstance(f.get(ROWS), h5py.Group)
    return known and (any(f"@{key}" in found.attributes for key in NEXT) or all(key in f for key in RINGS))


def is_of_buffer(found: Contents) -> bool:
    """Tell by what an HDF5 file holds whether it is a replay buffer of tianshou."""
    there = {"@maxsize", "@_size"} <= set(found.attributes) and any(n.startswith(f"{ROWS}/") for n in found.datasets)
    return there and (any(f"@{key}" in found.attributes for key in NEXT) or set(RINGS) <= set(found.datasets))


def read(path: Path, f: h5py.File) -> Buffer:
    """Read which rows of a buffer are filled, and their order.

    Raises
    ------
    CorruptArchive
        The counts of the file contradict each other.
    """
    capacity, where = _count(f, "maxsize"), path.name
    if all(isinstance(f.get(key), h5py.Dataset) for key in RINGS):
        rings = _rings(f, capacity, where)
    else:
        key = next(key for key in NEXT if key in f.attrs)
        rings = [_ring(0, capacity, _count(f, "_size"), _count(f, key), where)]
    pieces = [(p, i + 1 == len(ring)) for ring in rings for i, p in enumerate(ring)]
    full = sum(
        sum(p.stop - p.start for p in ring) == size for ring, size in zip(rings, _sizes(f, capacity), strict=True)
    )
    return Buffer(capacity, tuple(p for p, _ in pieces), tuple(last for _, last in pieces), full)


def _count(f: h5py.File, key: str) -> int:
    value = np.asarray(attribute(f, key))
    if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(-1)[0]) < 0:
        raise CorruptArchive(f"{Path(f.filename).name}: the attribute {key} is not a number of rows.")
    return int(value.reshape(-1)[0])


def _list(f: h5py.File, key: str) -> IntArray:
    d = f[key]
    if d.dtype.kind not in "iu" or d.ndim != 1 or not 0 < len(d) <= MAX_RINGS:
        raise CorruptArchive(
            f"{Path(f.filename).name}: {key} is {d.dtype} {list(d.shape)}; a list of rows is expected."
        )
    return np.asarray(whole(d)).astype(np.int64)


def _sizes(f: h5py.File, capacity: int) -> list[int]:
    """Return how many rows each ring has room for."""
    if not all(isinstance(f.get(key), h5py.Dataset) for key in RINGS):
        return [capacity]
    return [int(n) for n in np.diff(_list(f, RINGS[0]), append=capacity)]


def _rings(f: h5py.File, capacity: int, where: str) -> list[list[Piece]]:
    offsets, lengths, newest = (_list(f, key) for key in RINGS)
    sizes = _sizes(f, capacity)
    if not len(offsets) == len(lengths) == len(newest) or offsets[0] != 0 or min(sizes) < 0:
        raise CorruptArchive(f"{where}: {', '.join(RINGS)} do not describe the rings of {capacity:,} rows.")
    return [
        _ring(int(a), size, int(n), (int(last) - int(a) + 1) % max(size, 1) if n else 0, where)
        for a, size, n, last in zip(offsets, sizes, lengths, newest, strict=True)
    ]


def _ring(offset: int, size: int, filled: int, following: int, where: str) -> list[Piece]:
    """Return the pieces of one ring in the order of time; ``following`` is the row that is written next."""
    if filled > size or following > size or (filled < size and following != filled):
        raise CorruptArchive(
            f"{where}: a ring of {size:,} rows has {filled:,} filled ones, and its next row to be written is "
            f"{following:,}: these contradict each other.",
            hint="load it with tianshou, and save it again",
        )
    following = following % size if filled == size and size else 0
    parts = [(following, filled), (0, following)]
    return [Piece(offset + a, offset + b) for a, b in parts if b > a]


def columns(f: h5py.File, found: Buffer) -> tuple[dict[str, h5py.Dataset], tuple[str, ...]]:
    """Return the columns of a buffer by their names below ``_meta``, and those that are left out, with the reason."""
    kept, left_out = {}, []
    for name, d in datasets(f[ROWS]).items():
        kind = attribute(d, _TYPE) if _TYPE in d.attrs else STORED[0]
        kind = kind.decode("utf-8", "replace") if isinstance(kind, bytes) else str(kind)
        if kind not in STORED:
            left_out.append(f"{name} (pickled)")
        elif d.shape[:1] != (found.capacity,):
            left_out.append(f"{name} ({list(d.shape or ())})")
        else:
            kept[name] = d
    return kept, tuple(left_out)


class RingRows:
    """Rows of some columns of a buffer in the order of time."""

    def __init__(self, path: Path, columns: Mapping[str, h5py.Dataset], pieces: Sequence[Piece]) -> None:
        self._path, self._columns, self._pieces = path, columns, pieces
        self._stack = ExitStack()
        self._readers: dict[int, RowReader] = {}
        self._starts = np.cumsum([0, *(p.stop - p.start for p in pieces)])

    def __enter__(self) -> RingRows:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read rows ``start`` to ``stop`` of every column, forward."""
        found: dict[str, list[Array]] = {name: [] for name in self._columns}
        for k, p in enumerate(self._pieces):
            first = int(self._starts[k])
            a, b = max(start - first, 0), min(stop - first, p.stop - p.start)
            if a < b:
                for name, values in self._reader(k).read(p.start + a, p.start + b).items():
                    found[name].append(values)
        return {
            name: np.concatenate(parts) if parts else np.zeros((0, *d.shape[1:]), d.dtype)
            for (name, parts), d in zip(found.items(), self._columns.values(), strict=True)
        }

    def _reader(self, k: int) -> RowReader:
        if k not in self._readers:
            self._readers[k] = self._stack.enter_context(RowReader(self._path, self._columns))
        return self._readers[k]


class RingSource:
    """An open buffer as a source of rows."""

    def __init__(self, path: Path, columns: Mapping[str, h5py.Dataset], buffer: Buffer) -> None:
        self.path, self.columns, self.buffer = path, columns, buffer
        self.ends = _ends(path, columns, buffer)

    def rows(self, names: Collection[str]) -> RingRows:
        """Return a reader of the rows of some columns."""
        return RingRows(self.path, {n: self.columns[n] for n in sorted(names)}, self.buffer.pieces)

    def array(self, name: str, *, most: int = 0) -> Array:
        """Read a whole column."""
        if name == ENDS:
            return self.ends
        with self.rows([name]) as rows:
            return rows.read(0, self.buffer.rows)[name]


def _ends(path: Path, columns: Mapping[str, h5py.Dataset], found: Buffer) -> IntArray:
    """Return the row after the last one of each episode, in the order of time."""
    flags = {n: columns[n] for n in FLAGS if n in columns}
    if not flags:
        raise UnknownLayout(f"{path.name} is a replay buffer of tianshou without any of {', '.join(FLAGS)}.")
    if odd := next((n for n, d in flags.items() if d.dtype.kind not in "biuf" or d.shape[1:] not in ((), (1,))), None):
        raise UnknownLayout(
            f"{path.name}: {odd} is {flags[odd].dtype} {list(flags[odd].shape)}; a flag for each row is needed.",
            hint="rows of several agents are read one agent at a time: rlds_cli.create takes episodes from Python",
        )
    ends = np.zeros(found.rows, bool)
    with RingRows(path, flags, found.pieces) as rows:
        for values in rows.read(0, found.rows).values():
            ends |= values.reshape(-1) != 0
    stops = np.cumsum([p.stop - p.start for p in found.pieces])
    ends[stops[np.array(found.last, bool)] - 1] = True
    return np.flatnonzero(ends) + 1


def remarks(found: Buffer) -> Iterator[tuple[str, str]]:
    """Say how a buffer was read: the code and the text of each note."""
    yield (
        "ring",
        f"a replay buffer of tianshou: {found.rows:,} filled rows of {found.capacity:,}, in the order of time; what it "
        "keeps for itself (counts, indices, pickled objects) is left out",
    )
    if found.overwritten:
        yield "overwritten", "the oldest episode of a full buffer may have lost its first steps"
