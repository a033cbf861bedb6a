"""Rows of episodes, wherever they are stored: the one reader of them.

`Rows` numbers the rows of the episodes of a dataset or a selection from 0, in the order of its table, T+1 for an
episode of T steps. Where they are stored is up to the table: with gaps, in any order, overlapping by last rows::

    row              0    1    2    3  |  4    5    6         start [0, 4], final [3, 6]
    stored in row   90   91   92   93  | 11   12   13         "start" of the episode table [90, 11]
    observation     o0   o1   o2   o3  | o0   o1   o1         the final observation of the second is not recorded
    action          a0   a1   a2    0  | a0   a1    0

Last rows that hold nothing recorded are not read. They are what `rlds_cli.ted` lays out: the row before in a field
placed ``both``, else zeros, no text (code -1) and no frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import mapping
from rlds_cli.store import Store, check_frames, decode_frame
from rlds_cli.store.columns import Part
from rlds_cli.ted import VIDEO, EncodedFrames, Field

_LONG = 32  # rows of a run, on average, from which copying slices is faster than indexing rows
_DECODED_BYTES = 1 << 24  # bytes of a compressed array that are decoded at a time
_TILE_BYTES = 1 << 20  # fits the cache of a core


class _Episodes(Protocol):
    """Columns of an episode table [episodes], and the numbers of the episodes in that of the store."""

    @property
    def index(self) -> IntArray: ...
    def __getitem__(self, name: str, /) -> Array: ...


class _HasRows(Protocol):
    """A dataset, a selection, or other episodes in the rows of a store."""

    @property
    def store(self) -> Store: ...
    @property
    def episodes(self) -> _Episodes: ...


class Rows:
    """The rows of the episodes of a dataset, end to end.

    Parameters
    ----------
    dataset : Dataset
        A dataset or a selection. The rows are those of its store, which is kept open.

    Attributes
    ----------
    index : int array [episodes]
        Numbers of the episodes in the episode table of the store.
    start, final : int array [episodes]
        First and last row of each episode. The last one is that of the final observation, and not a step.
    length : int array [episodes]
        Number of steps.
    observed : bool array [episodes]
        True where the final observation is recorded.
    """

    def __init__(self, dataset: _HasRows) -> None:
        self.dataset: Any = dataset
        self.store = dataset.store
        columns = dataset.episodes
        self.index: IntArray = columns.index
        self.length: IntArray = np.asarray(columns["length"], np.int64)
        self.observed: BoolArray = np.asarray(columns["num_observed"]) > self.length
        self.final: IntArray = np.cumsum(self.length + 1) - 1
        self.start: IntArray = self.final - self.length
        shift = np.asarray(columns["start"], np.int64) - self.start
        begins = np.flatnonzero(np.r_[True, shift[1:] != shift[:-1]]) if len(shift) else np.zeros(0, np.int64)
        self._first, self._shift = self.start[begins], shift[begins]  # of runs of rows that are stored end to end
        self._unobserved: IntArray = self.final[~self.observed]
        self._opened: dict[tuple[str, str], Any] = {}
        self._recent: dict[tuple[str, str], tuple[int, int]] = {}  # address and bytes of the rows that were read last

    def __reduce__(self) -> tuple[object, ...]:
        return Rows, (self.dataset,)

    def __len__(self) -> int:
        return int(self.final[-1]) + 1 if len(self.final) else 0

    # -- places

    @property
    def is_dense(self) -> bool:
        """True if these are all rows of the store, in order."""
        return len(self) == self.store.manifest.counts.rows and not self._shift.any()

    @property
    def is_apart(self) -> bool:
        """True if no row of the store belongs to two episodes: as the last one of the first, and a step of the next."""
        start, stop = self.stored(self.start), self.stored(self.final)
        order = np.argsort(start, kind="stable")
        return bool((start[order][1:] > stop[order][:-1]).all())

    @property
    def is_ordered(self) -> bool:
        """True if the episodes lie in the store in the order of the table."""
        return bool((np.diff(self.stored(self.start)) > 0).all())

    @property
    def end(self) -> Array:
        """How each episode ends, as a code: TERMINATED, TRUNCATED or CUT [episodes]."""
        return np.asarray(self.store.episodes["end"])[self.index]

    def episodes_at(self, rows: IntArray) -> IntArray:
        """Return the number of the episode of each row [n], counted as `start` does."""
        return np.asarray(np.searchsorted(self.start, rows, "right") - 1)

    def of_steps(self, numbers: IntArray) -> IntArray:
        """Return the rows of steps [n], which are numbered over all episodes, without final observations."""
        return np.asarray(numbers + np.searchsorted(np.cumsum(self.length), numbers, "right"))

    def last_rows(self, start: int, stop: int) -> IntArray:
        """Return the last rows of episodes among rows ``start`` to ``stop``."""
        return _between(self.final, start, stop)

    def count(self, f: Field) -> IntArray:
        """Return how many rows of each episode hold a recorded value of a field: T+1 or T [episodes]."""
        return self.length + self.observed if f.placement == "both" else self.length

    def stored(self, rows: IntArray) -> IntArray:
        """Return the rows of the store in which ``rows`` [n] are stored."""
        if len(self._first) == 1:
            return np.asarray(rows + self._shift[0])
        return np.asarray(rows + self._shift[np.searchsorted(self._first, rows, "right") - 1])

    def _runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the rows of the store in which rows ``start`` to ``stop`` are stored, as runs (first, end)."""
        if start >= stop:
            return []
        a, b = int(np.searchsorted(self._first, start, "right")), int(np.searchsorted(self._first, stop))
        edges, shift = np.r_[start, self._first[a:b], stop], self._shift[a - 1 : b]
        return list(zip((edges[:-1] + shift).tolist(), (edges[1:] + shift).tolist(), strict=True))

    def _sources(self, f: Field, rows: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the rows of the store that hold the values of ``rows`` [n], and a mask of those without a value."""
        episode = self.episodes_at(rows)
        filler = rows == self.final[episode]
        if f.placement == "both":
            filler &= ~self.observed[episode]
        return self.stored(rows - filler), filler & (f.placement != "both")

    # -- values

    def between(self, name: str, start: int, stop: int) -> Array:
        """Return rows ``start`` to ``stop`` of a field as they are stored [n, ...].

        Values of an array field, codes of a text field, or (video, frame) of a field in videos. They are a read-only
        view of the mapped file where they are stored end to end.
        """
        f = self.store.fields[name]
        column, runs = self._column(name), self._runs(start, stop)
        if len(runs) <= 1:
            a, b = runs[0] if runs else (0, 0)
            values = self._release(name, "rows", np.asarray(column[a:b]))
        elif stop - start >= _LONG * len(runs):
            values = np.concatenate([column[a:b] for a, b in runs])
        else:
            values = self._picked(column, self.stored(np.arange(start, stop)))
        fillers = _between(self._unobserved if f.placement == "both" else self.final, start, stop)
        if not len(fillers):
            return values
        expected, at = self.at(name, fillers), fillers - start
        if values[at].tobytes() != expected.tobytes():
            values = values if values.flags.writeable else values.copy()
            values[at] = expected
        return values

    def at(self, name: str, rows: IntArray) -> Array:
        """Return ``rows`` [n], in any order, of a field as `between` does; a copy."""
        f = self.store.fields[name]
        stored, without = self._sources(f, rows)
        values = self._picked(self._column(name), stored)
        if without.any():
            values[without] = 0 if f.kind == "array" else -1
        return values

    def window(self, name: str, first: int, stop: int) -> Array:
        """Return rows ``first`` to ``stop`` of the store, of a plain array; the ones before may be unmapped then."""
        return self._release(name, "", np.asarray(self._column(name)[first:stop]))

    def blocks(self, name: str, *, more: int = 0) -> Iterator[tuple[int, Array]]:
        """Yield all rows of a field as `between` returns them, about 1 MiB at a time: (first row, values).

        Each block also has the first ``more`` rows of the next one, as far as there are any.
        """
        rows, width = len(self), max(1, _row_bytes(self._column(name)))
        tile = max(1, _TILE_BYTES // width)
        at_once = tile if self.store.slices else max(tile, _DECODED_BYTES // width)
        for a in range(0, rows, at_once):
            values = self.between(name, a, min(a + at_once + more, rows))
            for b in range(0, min(at_once, rows - a), tile):
                end = min(b + tile, at_once)  # the rows behind `at_once` are of the next block
                yield a + b, values[b : end + more]

    def values(self, name: str, rows: IntArray) -> Array:
        """Return the values of any field at ``rows`` [n, ...]: frames decoded, texts as strings or None.

        Raises
        ------
        FrameError
            A step has no frame, or one does not decode.
        """
        f = self.store.fields[name]
        if f.kind == "text":
            return self.store.texts(name, self.at(name, rows))
        if f.kind == "array":
            return self.at(name, rows)
        stored, without = self._sources(f, rows)
        if f.codec == VIDEO:
            index = self.at(name, rows)
            self.store.check_absent(f, stored[(index[:, 0] < 0) & ~without])
            return self.store.videos(name).gather(f, index)
        if not self.store.slices:
            return self._decoded(f, rows, stored, without)
        if not without.any():
            return self.store.gather(name, stored)
        out: Array = np.zeros((len(rows), *f.shape), f.dtype)
        out[~without] = self.store.gather(name, stored[~without])
        return out

    def _decoded(self, f: Field, rows: IntArray, stored: IntArray, without: BoolArray) -> Array:
        """Decode the frames of a compressed column, of which only these are read."""
        frames = self.encoded(f.name, rows)
        self.store.check_absent(f, stored[(frames.lengths == 0) & ~without])
        out, ends = np.zeros((len(rows), *f.shape), f.dtype), np.cumsum(frames.lengths)
        for i in np.flatnonzero(frames.lengths).tolist():
            data = frames.data[ends[i] - frames.lengths[i] : ends[i]]
            out[i] = decode_frame(data.tobytes(), f, int(stored[i]))
        return out

    def sizes(self, name: str, rows: IntArray) -> IntArray:
        """Return the bytes of the encoded frames at ``rows`` [n]; 0 for rows without one."""
        f = self.store.fields[name]
        if f.codec == VIDEO:
            return self.store.videos(name).sizes(self.at(name, rows))
        stored, without = self._sources(f, rows)
        starts, ends = self._frame_spans(name, stored)
        sizes: IntArray = np.asarray(ends - starts)
        sizes[without] = 0
        return sizes

    def encoded(self, name: str, rows: IntArray) -> EncodedFrames:
        """Return the encoded frames at ``rows`` [n] end to end, of a field of images that are not in videos.

        Their bytes are a read-only view of the mapped file where they are stored end to end.
        """
        f = self.store.fields[name]
        stored, without = self._sources(f, rows)
        whole, (starts, ends) = self._column(name, "frames"), self._frame_spans(name, stored[~without])
        edges = [0, *(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), len(starts)]
        data = list[Array]()
        for a, b in pairwise(edges if len(starts) else ()):
            check_frames(starts[a:b], ends[a:b], len(whole), name)
            data.append(self._release(name, "frames", np.asarray(whole[int(starts[a]) : int(ends[b - 1])])))
        lengths = np.zeros(len(rows), np.int64)
        lengths[~without] = ends - starts
        return EncodedFrames(data[0] if len(data) == 1 else np.concatenate([np.zeros(0, np.uint8), *data]), lengths)

    def frames(self, name: str, rows: IntArray) -> list[bytes]:
        """Return the encoded frame of each of ``rows`` [n]; empty for rows without one."""
        if self.store.fields[name].codec == VIDEO:
            videos = self.store.videos(name)
            return [videos.packet(v, i) if v >= 0 else b"" for v, i in self.at(name, rows).tolist()]
        found = self.encoded(name, rows)
        held, ends = found.data.tobytes(), np.cumsum(found.lengths)
        return [held[a:b] for a, b in zip((ends - found.lengths).tolist(), ends.tolist(), strict=True)]

    # -- reading

    def _frame_spans(self, name: str, stored: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first byte of the encoded frames at rows of the store [n], and the byte behind each."""
        if self.store.slices:
            return self.store.frames(name).spans(stored)
        edges = np.asarray(self._picked(self._column(name), stored), np.int64)
        return edges[:, 0], edges[:, 1]

    def _column(self, name: str, part: Part = "rows") -> Any:
        """Return all rows of the store of a field, mapped, fetched or decoded where they are read."""
        if (name, part) not in self._opened:
            if not self.store.slices:
                opened: Any = self.store.files.sliced(self.store.table.column(name, part))
            else:
                opened = self.store.frames(name).data if part == "frames" else self.store.rows(name)
            self._opened[name, part] = opened
        return self._opened[name, part]

    def _picked(self, column: Any, rows: IntArray) -> Array:
        """Return ``rows`` [n] of a column, in any order; of a compressed one, a part is decoded at a time."""
        if self.store.slices:
            return np.asarray(column[rows])
        if not len(rows):
            return np.asarray(column[0:0])
        at_once = max(1, _DECODED_BYTES // max(1, _row_bytes(column)))
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        out: Array = np.empty((len(rows), *column.shape[1:]), column.dtype)
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(ordered // at_once)) + 1):
            wanted = ordered[part]
            first = int(wanted[0])
            out[order[part]] = column[first : int(wanted[-1]) + 1][wanted - first]
        return out

    def let_go(self) -> None:
        """Unmap the pages of the rows that were read last."""
        for at, size in self._recent.values():
            if size:
                mapping.let_go(at, size)
        self._recent.clear()

    def _release(self, name: str, part: str, values: Array) -> Array:
        """Unmap the pages of the rows that were read before: mapped files of any size would count as memory in use."""
        if self.store.manifest.encoding == "memmap" and not values.flags.writeable:
            at, size = self._recent.get((name, part), (0, 0))
            if size:
                mapping.let_go(at, size)
            self._recent[name, part] = values.ctypes.data, values.nbytes
        return values


def _between(rows: IntArray, start: int, stop: int) -> IntArray:
    """Return the part of ascending ``rows`` from ``start`` to ``stop``."""
    first, end = np.searchsorted(rows, (start, stop))
    return rows[first:end]


def _row_bytes(column: Any) -> int:
    size: int = math.prod(column.shape[1:]) * np.dtype(column.dtype).itemsize
    return size
