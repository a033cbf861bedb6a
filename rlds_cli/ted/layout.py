"""Lay out episodes in rows, in chunks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.errors import InvalidEpisode
from rlds_cli.ted.columns import Column, EncodedFrames, LazyColumn, Scalar, Text, VideoFrames
from rlds_cli.ted.fields import VIDEO, Field
from rlds_cli.ted.notes import Note
from rlds_cli.ted.subtasks import Subtasks
from rlds_cli.ted.tables import EpisodeTable

CHUNK_ROWS, CHUNK_BYTES = 1 << 16, 16 << 20  # approximate size of the pieces that are read and written
TEXT_BYTES = 8  # of a text in a column: a reference


@dataclass(slots=True)
class Chunk:
    """Consecutive rows of the store, of bounded size.

    ``columns[name]`` has R rows for every field of the schema; ``last`` [R] marks the last row of each episode;
    ``episodes`` describes the episodes that end in the chunk; a long episode may span several chunks.
    """

    columns: dict[str, Column]
    last: BoolArray
    episodes: EpisodeTable
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.last)


@dataclass(frozen=True, slots=True)
class Part:
    """Whole episodes that one worker reads at a time.

    ``rows`` is the number of store rows (T+1 per episode), None if it is not known ahead. ``args`` tells the reader how
    to find the part, in plain JSON values, or arrays for long lists.
    """

    rows: int | None
    args: Mapping[str, Any]


@dataclass(slots=True)
class EpisodeData:
    """One whole episode, by field name, before it is laid out in rows.

    Fields placed ``both`` have T+1 rows, or T if the final observation is not recorded; other fields have T rows.
    Without a field placed ``both``, ``observed`` says whether the final observation is recorded.
    """

    columns: Mapping[str, Column | LazyColumn]
    length: int
    end: int
    source: int = 0
    row: int = 0
    group: str = ""
    seed: int | None = None
    options: str | None = None
    splits: tuple[str, ...] = ()
    extra: Mapping[str, Scalar] = field(default_factory=dict)
    observed: bool = True
    notes: tuple[Note, ...] = ()
    id: bytes | None = None  # 16 bytes, where it has one
    origin: int | None = None  # see `EpisodeTable`


class HasLength(Protocol):
    """An episode of ``length`` steps."""

    @property
    def length(self) -> int:
        """The steps T; the episode takes T+1 rows."""


E = TypeVar("E", bound=HasLength)


@dataclass(slots=True)
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


def pieces(
    episodes: Iterable[E], rows: int, size: int = CHUNK_BYTES, *, nbytes: Callable[[E], int] = lambda _: 0
) -> Iterator[list[EpisodePiece[E]]]:
    """Share the rows of episodes out to chunks of at most ``rows`` rows, and at least 2, and about ``size`` bytes.

    A long episode is divided evenly, so that its last row comes with the step before it.
    """
    rows = max(rows, 2)
    todo: list[EpisodePiece[E]] = []
    count = taken = 0
    for e in episodes:
        whole, held = e.length + 1, nbytes(e)
        if todo and (count + whole > rows or taken + held > size):
            yield todo
            todo, count, taken = [], 0, 0
        number = max(1, min(max(-(-whole // rows), -(-held // size)), whole - 1))
        bounds = [whole * i // number for i in range(number + 1)]
        yield from ([EpisodePiece(e, a, b)] for a, b in pairwise(bounds[:-1]))
        todo.append(EpisodePiece(e, bounds[-2], whole))
        count, taken = count + whole - bounds[-2], taken + held // number
    if todo:
        yield todo


def chunks(
    schema: Sequence[Field], episodes: Iterable[EpisodeData], *, rows: int = CHUNK_ROWS, size: int = CHUNK_BYTES
) -> Iterator[Chunk]:
    """Lay episodes out in rows, in chunks of about ``size`` bytes and at most ``rows`` rows each.

    Raises
    ------
    InvalidEpisode
        A field is missing or unknown, or has a wrong number of rows or row shape.
    """
    names = {f.name for f in schema}

    def checked() -> Iterator[EpisodeData]:
        for e in episodes:
            _check_rows(schema, names, e)
            yield e

    for todo in pieces(checked(), rows, size, nbytes=_nbytes):
        yield _lay_out(schema, todo)


def lay_out(schema: Sequence[Field], episodes: Sequence[EpisodeData]) -> Chunk:
    """Put whole episodes into rows, one after the other, in one chunk.

    Raises
    ------
    InvalidEpisode
        As in `chunks`.
    """
    names = {f.name for f in schema}
    for e in episodes:
        _check_rows(schema, names, e)
    return _lay_out(schema, [EpisodePiece(e, 0, e.length + 1) for e in episodes])


def _check_rows(schema: Sequence[Field], names: set[str], e: EpisodeData) -> None:
    where = f"episode {e.group or e.row}"
    if e.columns.keys() != names:
        missing, extra = sorted(names - set(e.columns)), sorted(set(e.columns) - names)
        raise InvalidEpisode(
            f"{where}: "
            + "; ".join(
                f"{what} {', '.join(which)}"
                for what, which in (("lacks", missing), ("has, unlike the first,", extra))
                if which
            )
        )
    length = e.length
    if not isinstance(e.options, str | None):
        raise InvalidEpisode(f"{where}: options is a {type(e.options).__name__}.", hint="a JSON text: json.dumps(...)")
    if (told := e.extra.get(Subtasks.COLUMN)) is not None:
        Subtasks.of(told, where, length)
    both: dict[str, int] = {}
    for f in schema:
        column = e.columns[f.name]
        rows = len(column)
        if f.placement == "both":
            both[f.name] = rows
        if rows != length and not (f.placement == "both" and rows == length + 1):
            expected = f"{length} or {length + 1}" if f.placement == "both" else str(length)
            raise InvalidEpisode(f"{where}: {f.name} has {rows} rows; expected {expected}.")
        if isinstance(column, np.ndarray) and column.shape[1:] != f.shape:
            raise InvalidEpisode(
                f"{where}: a row of {f.name} has shape {list(column.shape[1:])}; others have {list(f.shape)}."
            )
    if len(set(both.values())) > 1:
        raise InvalidEpisode(
            f"{where}: fields disagree on the final row: " + ", ".join(f"{k} has {v}" for k, v in both.items())
        )


def _nbytes(e: EpisodeData) -> int:
    """Return the approximate bytes of an episode's rows in memory."""
    return sum(TEXT_BYTES * len(c) if isinstance(c, list) else c.nbytes for c in e.columns.values())


_Pieces = Sequence[EpisodePiece[EpisodeData]]


def _lay_out(schema: Sequence[Field], todo: _Pieces) -> Chunk:
    stops = np.cumsum([p.stop - p.start for p in todo], dtype=np.int64)
    done = [p.episode for p in todo if p.ends]
    last = np.zeros(int(stops[-1]) if todo else 0, bool)
    last[stops[[p.ends for p in todo]] - 1 if len(done) < len(todo) else stops - 1] = True
    columns = {f.name: _lay_out_field(f, todo, len(last)) for f in schema}
    both = next((f.name for f in schema if f.placement == "both"), None)
    return Chunk(columns, last, _table(done, both), tuple(note for e in done for note in e.notes))


def _table(done: Sequence[EpisodeData], both: str | None) -> EpisodeTable:
    """Describe episodes; the rows of ``both``, a field placed so, tell whether final observations are recorded."""
    splits = {s: None for e in done for s in e.splits}
    own = {name: None for e in done for name in e.extra}
    observed = [e.observed if both is None else len(e.columns[both]) > e.length for e in done]
    return EpisodeTable(
        np.array([e.length for e in done], np.int64),
        np.array([e.end for e in done], np.uint8),
        np.array(observed, bool),
        np.array([e.source for e in done], np.int32),
        np.array([e.row for e in done], np.int64),
        group=[e.group for e in done],
        seed=[e.seed for e in done],
        options=[e.options for e in done],
        splits={s: np.array([s in e.splits for e in done], bool) for s in splits},
        extra={n: [_python(e.extra.get(n)) for e in done] for n in own},
        id=_ids(done),
        origin=_origins(done),
    )


def _ids(done: Sequence[EpisodeData]) -> npt.NDArray[np.uint8] | None:
    """Return the ids of episodes [episodes, 16]; None if some have none."""
    known = [e.id for e in done if e.id is not None]
    return np.frombuffer(b"".join(known), np.uint8).reshape(-1, 16) if len(known) == len(done) else None


def _origins(done: Sequence[EpisodeData]) -> IntArray | None:
    known = [e.origin for e in done if e.origin is not None]
    return np.array(known, np.int64) if len(known) == len(done) else None


def _python(value: Scalar) -> Scalar:
    """Convert a NumPy scalar to Python, since journals are JSON."""
    return value.item() if isinstance(value, np.generic) else value


def _lay_out_field(f: Field, todo: _Pieces, rows: int) -> Column:
    if f.kind == "text":
        return [value for p in todo for value in _texts(f, p)]
    if f.codec == VIDEO:
        return _videos(f, todo)
    if f.kind == "frames":
        return _frames(f, todo)
    out = np.zeros((rows, *f.shape), f.dtype)
    name, both, at = f.name, f.placement == "both", 0
    for p in todo:
        column, start, stop = p.episode.columns[name], p.start, p.stop
        known = len(column)  # rows, of which those up to ``stop`` are wanted
        if isinstance(column, np.ndarray):
            values = column if not start and known <= stop else column[start:stop]
        else:
            assert isinstance(column, LazyColumn)
            values = column.cut(start, min(stop, known))
        out[at : at + len(values)] = values
        at += stop - start
        if both and start < known < stop:
            out[at - 1] = out[at - 2]  # a piece that ends an episode has the row before, too
    return out


def _texts(f: Field, p: EpisodePiece[EpisodeData]) -> Text:
    column = p.episode.columns[f.name]
    stop = min(p.stop, len(column))
    if isinstance(column, LazyColumn):
        rows: Text = column.cut(p.start, stop).tolist()
    else:
        assert isinstance(column, list)
        rows = column[p.start : stop]
    return rows if stop == p.stop else [*rows, rows[-1] if f.placement == "both" and rows else None]


def _videos(f: Field, todo: _Pieces) -> VideoFrames:
    numbers, made = dict[str, int](), dict[str, bytes]()
    rows = []
    for p in todo:
        column = p.episode.columns[f.name]
        assert isinstance(column, VideoFrames)
        made.update(column.made)
        number = np.array([*(numbers.setdefault(v, len(numbers)) for v in column.files), -1], np.int32)
        index = column.index[p.start : p.stop].copy()
        index[:, 0] = number[index[:, 0]]
        rows.append(index)
        if len(index) < len(p):
            repeated = f.placement == "both" and len(index)
            rows.append(index[-1:] if repeated else np.full((1, 2), -1, np.int32))
    return VideoFrames(tuple(numbers), np.concatenate([np.zeros((0, 2), np.int32), *rows]), made=made)


def _frames(f: Field, todo: _Pieces) -> EncodedFrames:
    data: list[Any] = []
    lengths: list[IntArray] = []
    for p in todo:
        column = p.episode.columns[f.name]
        if isinstance(column, LazyColumn):
            images = column.cut(p.start, min(p.stop, len(column)))
            data += images
            found = np.array([len(image) for image in images], np.int64)
        else:
            assert isinstance(column, EncodedFrames)
            found = column.lengths[p.start : p.stop]
            first = int(column.lengths[: p.start].sum())
            data.append(column.data[first : first + int(found.sum())])
        if not found.all():
            e, step = p.episode, p.start + int(np.argmin(found))
            raise InvalidEpisode(f"episode {e.group or e.row}: {f.name} has no frame at step {step:,}: 0 bytes.")
        lengths.append(found)
        if len(found) < len(p):
            repeat = int(found[-1]) if f.placement == "both" and len(found) else 0
            data.append(data[-1][len(data[-1]) - repeat :] if repeat else b"")
            lengths.append(np.array([repeat], np.int64))
    return EncodedFrames(np.frombuffer(b"".join(data), np.uint8), np.concatenate([np.zeros(0, np.int64), *lengths]))
