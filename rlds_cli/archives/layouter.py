"""The layouter: it puts episodes into rows of the store, in chunks of bounded size.

`chunks` lays out episodes whose columns are read when their rows come (`LazyColumn`, `EncodedImages`): such an episode
may be larger than memory. `whole_chunks` lays out episodes that are in memory, and checks them. Readers that read
straight from the rows of a file share these out with `pieces`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np

from rlds_cli.formats.tfrecord import Content
from rlds_cli.ted import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Array,
    Chunk,
    Column,
    EncodedFrames,
    EpisodeData,
    EpisodeTable,
    Field,
    IntArray,
    Note,
    Text,
    lay_out,
)

TEXT_BYTES = 8  # of a row: a reference


class LazyColumn:
    """A column whose rows are read or decoded when they are asked for."""

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows in memory."""
        raise NotImplementedError

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop)."""
        raise NotImplementedError


@dataclass(slots=True)
class EncodedImages:
    """Encoded images that lie in ``data``: row i is ``data[starts[i]:stops[i]]``."""

    data: Content
    starts: IntArray
    stops: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return int((self.stops - self.starts).sum())

    def views(self, rows: slice) -> Iterator[memoryview]:
        """Iterate over the images of some rows."""
        view = memoryview(self.data)
        for a, b in zip(self.starts[rows].tolist(), self.stops[rows].tolist(), strict=True):
            yield view[a:b]


@dataclass(slots=True)
class LazyEpisode:
    """One episode. Fields placed ``both`` have T+1 rows, or T without a final observation; others have T."""

    columns: Mapping[str, Array | Text | LazyColumn | EncodedImages]
    length: int
    end: int
    observed: bool
    source: int
    group: str
    options: str | None = None
    seed: int | None = None
    splits: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    row: int = 0

    @property
    def nbytes(self) -> int:
        """The approximate bytes of its rows in memory."""
        return sum(TEXT_BYTES * len(c) if isinstance(c, list) else c.nbytes for c in self.columns.values())


class HasLength(Protocol):
    """An episode of ``length`` steps."""

    @property
    def length(self) -> int:
        """The steps T; the episode takes T+1 rows."""


E = TypeVar("E", bound=HasLength)


@dataclass(frozen=True, slots=True)
class EpisodePiece(Generic[E]):
    """Rows [start, stop) of the T+1 rows of an episode."""

    episode: E
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def ends(self) -> bool:
        """True if the piece holds the last row of the episode."""
        return self.stop == self.episode.length + 1


def pieces(episodes: Iterable[E], budget: int) -> Iterator[list[EpisodePiece[E]]]:
    """Share the rows of episodes out to chunks of at most ``budget`` rows, and at least 2.

    A long episode is divided evenly, so that its last row comes with the step before it.
    """
    budget = max(budget, 2)
    chunk: list[EpisodePiece[E]] = []
    size = 0
    for e in episodes:
        rows = e.length + 1
        if chunk and size + rows > budget:
            yield chunk
            chunk, size = [], 0
        if rows > budget:
            number = -(-rows // budget)
            bounds = [rows * i // number for i in range(number + 1)]
            yield from ([EpisodePiece(e, a, b)] for a, b in pairwise(bounds))
        else:
            chunk.append(EpisodePiece(e, 0, rows))
            size += rows
    if chunk:
        yield chunk


def whole_chunks(schema: Sequence[Field], episodes: Iterable[tuple[EpisodeData, Sequence[Note]]]) -> Iterator[Chunk]:
    """Lay out episodes that are in memory, as many to a chunk as fit, with the notes about them."""
    width = max(1, sum(f.row_bytes for f in schema))
    budget = min(CHUNK_ROWS, CHUNK_BYTES // width)
    todo: list[EpisodeData] = []
    notes: list[Note] = []
    size = 0
    for episode, remarks in episodes:
        if todo and size + episode.length + 1 > budget:
            yield replace(lay_out(schema, todo), notes=tuple(notes))
            todo, notes, size = [], [], 0
        todo.append(episode)
        notes += remarks
        size += episode.length + 1
    if todo:
        yield replace(lay_out(schema, todo), notes=tuple(notes))


_Piece = EpisodePiece[LazyEpisode]


def chunks(
    schema: Sequence[Field], episodes: Iterable[LazyEpisode], *, rows: int = CHUNK_ROWS, size: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Lay episodes out in rows, in chunks of about ``size`` bytes and at most ``rows`` rows each."""
    todo: list[_Piece] = []
    count = taken = 0
    for e in episodes:
        whole = e.length + 1
        if todo and (count + whole > rows or taken + e.nbytes > size):
            yield _chunk(schema, todo)
            todo, count, taken = [], 0, 0
        number = max(-(-whole // rows), -(-e.nbytes // size))
        bounds = [whole * i // number for i in range(number + 1)] if 1 < number <= whole else [0, whole]
        for a, b in pairwise(bounds[:-1]):
            yield _chunk(schema, [EpisodePiece(e, a, b)])
        todo.append(EpisodePiece(e, bounds[-2], whole))
        count, taken = count + whole - bounds[-2], taken + e.nbytes // number
    if todo:
        yield _chunk(schema, todo)


def _chunk(schema: Sequence[Field], todo: Sequence[_Piece]) -> Chunk:
    last = np.zeros(sum(len(p) for p in todo), bool)
    ends = np.cumsum([len(p) for p in todo]) - 1
    last[ends[[p.ends for p in todo]]] = True
    done = [p.episode for p in todo if p.ends]
    notes = tuple(note for e in done for note in e.notes)
    return Chunk({f.name: _column(f, todo) for f in schema}, last, _table(done), notes)


def _table(done: Sequence[LazyEpisode]) -> EpisodeTable:
    splits = {s: None for e in done for s in e.splits}
    return EpisodeTable(
        length=np.array([e.length for e in done], np.int64),
        end=np.array([e.end for e in done], np.uint8),
        observed=np.array([e.observed for e in done], bool),
        source=np.array([e.source for e in done], np.int32),
        row=np.array([e.row for e in done], np.int64),
        group=[e.group for e in done],
        seed=[e.seed for e in done],
        options=[e.options for e in done],
        splits={s: np.array([s in e.splits for e in done], bool) for s in splits},
    )


def _column(f: Field, todo: Sequence[_Piece]) -> Column:
    if f.kind == "text":
        return [value for p in todo for value in _texts(f, p)]
    if f.kind == "frames":
        images = [image for p in todo for image in _images(f, p)]
        data = np.frombuffer(b"".join(images), np.uint8)
        return EncodedFrames(data, np.array([len(image) for image in images], np.int64))
    out = np.zeros((sum(len(p) for p in todo), *f.shape), f.dtype)
    at = 0
    for p in todo:
        column = p.episode.columns[f.name]
        assert isinstance(column, (np.ndarray, LazyColumn))
        stop = min(p.stop, len(column))
        out[at : at + stop - p.start] = _values(column, p.start, stop)
        if f.placement == "both" and p.stop > stop:
            out[at + stop - p.start] = _values(column, stop - 1, stop)[0]
        at += p.stop - p.start
    return out


def _values(column: Array | LazyColumn, start: int, stop: int) -> Array:
    return column.cut(start, stop) if isinstance(column, LazyColumn) else column[start:stop]


def _texts(f: Field, p: _Piece) -> Text:
    column = p.episode.columns[f.name]
    assert isinstance(column, list)
    rows: Text = column[p.start : p.stop]
    return rows if len(rows) == p.stop - p.start else [*rows, column[-1] if f.placement == "both" else None]


def _images(f: Field, p: _Piece) -> Iterator[memoryview]:
    column = p.episode.columns[f.name]
    assert isinstance(column, EncodedImages)
    yield from column.views(slice(p.start, p.stop))
    if p.stop > len(column):
        yield from column.views(slice(-1, None)) if f.placement == "both" else (memoryview(b""),)
