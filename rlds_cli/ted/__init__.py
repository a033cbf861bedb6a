"""The TED schema of the store: fields, placements, rows, episodes.

An episode of T steps owns T+1 consecutive rows. Row t holds the ``observation`` at t, the ``action`` taken, and its
results (``next/reward``). The last row holds the final observation, and zeros elsewhere::

    row            0     1     2     3        T = 3 steps
    observation    o0    o1    o2    o3       placement "both": next/observation[t] is row t+1
    action         a0    a1    a2    0        placement "root"
    next/reward    r0    r1    r2    0        placement "next": result of the action of this row
    last           .     .     .     x

If the archive has no final observation, the last row repeats the one before in every field placed "both", and the
episode table has ``num_observed = T``.

`chunks` lays out episodes in this way, in chunks of bounded size; their columns may be in memory, or read when their
rows come (`LazyColumn`). `lay_out` makes one chunk of whole episodes. Readers that fill the rows of
several episodes at once share them out with `pieces`.

The modules `episodes`, which checks the episodes of users, and `spaces`, for those of Gymnasium, belong to the face.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.errors import InvalidEpisode

__all__ = [
    "Array",
    "CHUNK_BYTES",
    "CUT",
    "Chunk",
    "Column",
    "END_NAMES",
    "EPISODE_COLUMNS",
    "EncodedFrames",
    "EpisodeData",
    "EpisodePiece",
    "EpisodeTable",
    "FLAGS",
    "Field",
    "Kind",
    "LazyColumn",
    "Note",
    "Part",
    "Placement",
    "REWARD",
    "Repeated",
    "Scalar",
    "TASK",
    "TASK_AT",
    "TERMINATED",
    "TRUNCATED",
    "Text",
    "UNFIT",
    "VIDEO",
    "VideoFrames",
    "chunks",
    "episodes",
    "flags",
    "lay_out",
    "merge_notes",
    "pieces",
    "spaces",
]

T = TypeVar("T")
X = TypeVar("X", bound=np.generic)

Placement = Literal["root", "next", "both"]
Kind = Literal["array", "frames", "text"]

TERMINATED, TRUNCATED, CUT = 0, 1, 2
END_NAMES = ("terminated", "truncated", "cut")
VIDEO = "mp4"  # the codec of frames that are kept in videos

CHUNK_ROWS, CHUNK_BYTES = 1 << 16, 16 << 20  # approximate size of the pieces that are read and written
TEXT_BYTES = 8  # of a text in a column: a reference

REWARD, FLAGS = "next/reward", ("next/terminated", "next/truncated")
# What an episode is about, in words: an episode column. Where that changes within an episode, the column has the first
# text, and the field that of each step.
TASK, TASK_AT = "task", "task_at"
# TED's own columns of the episode table, and reserved names beside them on disk or in expressions.
EPISODE_COLUMNS = frozenset(
    """start length end num_observed num_transitions num_done num_terminated total_reward source row group seed has_seed
    options split splits missing episode id source_episode source_step""".split()  # noqa: SIM905
)
# Characters that the name of a user's own episode column does not have: ``where=`` quotes names by backquotes.
UNFIT = re.compile(r"[@`\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataset.

    Parameters
    ----------
    name : str
        Components joined by ``/``. Exactly the fields placed ``next`` have names that start with ``next/``.
    dtype : str
        NumPy name of the values: ``float32``, ``bool``, ... ``uint8`` for frames (``uint16`` for videos of
        depth), ``str`` for text.
    shape : tuple of int
        Of one row; ``()`` for scalars and text, ``(H, W, C)`` for frames.
    placement : {"root", "next", "both"}
    kind : {"array", "frames", "text"}
        ``frames`` are kept as published, encoded (``codec``); ``text`` is a string or None per row.
    codec : str or None
        ``jpeg`` or ``png`` for frames; ``mp4`` where they are in videos.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    placement: Placement = "root"
    kind: Kind = "array"
    codec: str | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded row; text counts its code."""
        return 4 if self.kind == "text" else int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def is_column(self) -> bool:
        """True if a scalar has an axis of one element in batches, [B, 1]: rewards, flags and floats.

        So the product of any two of them is [B, 1]; that of [B, 1] and [B] is [B, B]. Other scalars, which are ids,
        discrete actions and the like, stay [B].
        """
        if self.kind != "array" or self.shape != ():
            return False
        rewards = self.name == REWARD or self.name.startswith(f"{REWARD}/")
        return rewards or self.name in FLAGS or np.dtype(self.dtype).kind == "f"

    def of_batch(self, values: npt.NDArray[Any], lead: int = 1) -> npt.NDArray[Any]:
        """Return values of rows, [B, ...] with ``lead`` axes before those of the rows, in their shape in a batch."""
        return values[..., None] if self.is_column and values.ndim == lead else values

    def of_rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values of a batch [B, ...] in the shape of rows: the inverse of `of_batch`, which [B] passes, too."""
        return values[:, 0] if self.is_column and values.shape[1:] == (1,) else values


@dataclass(slots=True)
class EncodedFrames:
    """Encoded images, one per row: the rows' bytes end to end, and their lengths.

    Length 0 stands for no frame: only the last row of an episode, of a field that is not placed ``both``, has none.

    ``shape`` and ``codec`` are those of the field, and may be omitted if the field is known.
    """

    data: npt.NDArray[np.uint8]
    lengths: IntArray
    shape: tuple[int, ...] = ()
    codec: str | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return self.data.nbytes

    @property
    def spans(self) -> IntArray:
        """First byte of each image, and the byte behind it [n, 2]."""
        ends = np.cumsum(self.lengths)
        return np.stack([ends - self.lengths, ends], 1)


@dataclass(slots=True)
class VideoFrames:
    """Frames of videos, one per row: ``index`` [n, 2] is the number of a video in ``files`` and of the frame in it.

    Frames are counted in the order in which they are shown; (-1, -1) stands for a row without a frame.

    ``shape`` is that of the field, and may be omitted if the field is known. ``made`` are the bytes of those of
    ``files`` that are in no file yet.
    """

    files: tuple[str, ...]
    index: npt.NDArray[np.int32]
    shape: tuple[int, ...] = ()
    made: Mapping[str, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        return self.index.nbytes


Text = list[str | None]
Scalar = bool | int | float | str | None  # of one episode, in a column of the user's own
Column = Array | EncodedFrames | VideoFrames | Text


MOST_TEXTS = 32  # of notes with one code


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of a reader for the user; notes with equal codes and texts are added up."""

    FAILED: ClassVar[str] = "failed-episodes"  # the code of an episode that is left out, since a function failed on it
    code: str
    text: str
    count: int = 1
    where: str = ""


def merge_notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Add up notes with equal codes and texts, in order of first appearance; the first ``where`` is kept as an example.

    Notes beyond ``MOST_TEXTS`` texts of one code are added up with the last of these.
    """
    merged: dict[tuple[str, str], Note] = {}
    last: dict[str, list[str]] = {}
    for note in notes:
        texts = last.setdefault(note.code, [])
        if note.text not in texts and len(texts) < MOST_TEXTS:
            texts.append(note.text)
        key = note.code, note.text if note.text in texts else texts[-1]
        seen = merged.get(key)
        merged[key] = replace(seen, count=seen.count + note.count) if seen else note
    return tuple(merged.values())


class Repeated(Sequence[T]):
    """A column with one value for all episodes, which takes no memory."""

    __slots__ = ("_count", "value")

    def __init__(self, value: T, count: int) -> None:
        self.value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Repeated[T]: ...
    def __getitem__(self, index: int | slice) -> T | Repeated[T]:
        found = range(self._count)[index]
        return self.value if isinstance(found, int) else Repeated(self.value, len(found))

    def __iter__(self) -> Iterator[T]:
        return repeat(self.value, self._count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == self._count and all(v == self.value for v in other)

    __hash__ = None  # type: ignore[assignment]


def _compact(values: Sequence[T], nothing: T, count: int) -> Sequence[T]:
    """Replace a column of the episode table without any values by `Repeated`."""
    return values if any(v != nothing for v in values) else Repeated(nothing, count)


def _joined(columns: Sequence[Sequence[T]]) -> Sequence[T]:
    """Join columns; the result is empty if none of them has values."""
    return [] if all(isinstance(c, Repeated) for c in columns) else [v for c in columns for v in c]


def _all_or_none(columns: Sequence[npt.NDArray[X] | None], count: int) -> npt.NDArray[X] | None:
    """Join a column of ``count`` episodes; None if some episodes have no value."""
    known = [c for c in columns if c is not None]
    return np.concatenate(known) if sum(map(len, known)) == count and known else None


def _taken(values: Sequence[T], index: IntArray) -> Sequence[T]:
    return [] if isinstance(values, Repeated) else [values[i] for i in index.tolist()]


@dataclass(slots=True)
class EpisodeTable:
    """Columns over episodes, in order.

    ``length`` T; ``end`` one of TERMINATED, TRUNCATED, CUT; ``observed`` whether the final observation is recorded;
    ``source`` index of the archive file; ``row`` first row there; ``group`` its group there (``episode_12``);
    ``seed`` unsigned 64-bit or None; ``options`` JSON text or None; ``splits`` one bool array per named split;
    ``extra`` columns of the user's own, one value or None per episode (names and types: `episode_columns`);
    ``id`` uint8 [episodes, 16], or None where ids are yet to be given; ``origin`` which of the episodes that a function
    got it was made of, None where no function made them. The origin is not stored.
    """

    length: IntArray
    end: npt.NDArray[np.uint8]
    observed: BoolArray
    source: npt.NDArray[np.int32]
    row: IntArray
    group: Sequence[str] = ()
    seed: Sequence[int | None] = ()
    options: Sequence[str | None] = ()
    splits: dict[str, BoolArray] = field(default_factory=dict)
    extra: dict[str, list[Scalar]] = field(default_factory=dict)
    id: npt.NDArray[np.uint8] | None = None
    origin: IntArray | None = None

    def __post_init__(self) -> None:
        n = len(self.length)
        self.length = np.asarray(self.length, np.int64)
        self.end = np.asarray(self.end, np.uint8)
        self.observed = np.asarray(self.observed, bool)
        self.source = np.asarray(self.source, np.int32)
        self.row = np.asarray(self.row, np.int64)
        self.group = _compact(self.group, "", n)
        self.seed = _compact(self.seed, None, n)
        self.options = _compact(self.options, None, n)

    def __len__(self) -> int:
        return len(self.length)

    @property
    def num_observed(self) -> IntArray:
        """Observations per episode: T+1, or T if the final one is not recorded."""
        return self.length + self.observed

    @property
    def num_transitions(self) -> IntArray:
        """Steps per episode that a value-based learner may use (T, or T-1; see ``docs/ted.md``)."""
        unknown: BoolArray = ~self.observed & (self.end != TERMINATED)
        return self.length - unknown

    @property
    def start(self) -> IntArray:
        """First row of each episode, with episodes end to end from row 0."""
        start: IntArray = np.cumsum(self.length + 1)
        start -= self.length
        start -= 1
        return start

    @classmethod
    def empty(cls) -> EpisodeTable:
        """Return a table without episodes."""
        z = np.zeros(0, np.int64)
        return cls(z, z.astype(np.uint8), z.astype(bool), z.astype(np.int32), z)

    @classmethod
    def concat(cls, tables: Sequence[EpisodeTable]) -> EpisodeTable:
        """Return the episodes of ``tables`` one after the other."""
        if not tables:
            return cls.empty()
        names = {name: None for t in tables for name in t.splits}
        own = {name: None for t in tables for name in t.extra}
        return cls(
            np.concatenate([t.length for t in tables]),
            np.concatenate([t.end for t in tables]),
            np.concatenate([t.observed for t in tables]),
            np.concatenate([t.source for t in tables]),
            np.concatenate([t.row for t in tables]),
            group=_joined([t.group for t in tables]),
            seed=_joined([t.seed for t in tables]),
            options=_joined([t.options for t in tables]),
            splits={n: np.concatenate([t.splits.get(n, np.zeros(len(t), bool)) for t in tables]) for n in names},
            extra={n: [v for t in tables for v in t.extra.get(n, [None] * len(t))] for n in own},
            id=_all_or_none([t.id for t in tables], sum(map(len, tables))),
            origin=_all_or_none([t.origin for t in tables], sum(map(len, tables))),
        )

    def take(self, index: IntArray) -> EpisodeTable:
        """Return the episodes ``index``, in that order."""
        return EpisodeTable(
            self.length[index],
            self.end[index],
            self.observed[index],
            self.source[index],
            self.row[index],
            group=_taken(self.group, index),
            seed=_taken(self.seed, index),
            options=_taken(self.options, index),
            splits={n: v[index] for n, v in self.splits.items()},
            extra={n: [v[i] for i in index.tolist()] for n, v in self.extra.items()},
            id=None if self.id is None else self.id[index],
            origin=None if self.origin is None else self.origin[index],
        )


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


class LazyColumn:
    """A column of an episode whose rows are read or decoded when they are laid out.

    An episode of such columns may be larger than memory.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows in memory."""
        raise NotImplementedError

    def cut(self, start: int, stop: int) -> Any:
        """Read rows [start, stop): an array, of objects for text, or a list of the bytes of encoded images."""
        raise NotImplementedError


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


def flags(length: int, end: int) -> dict[str, BoolArray]:
    """Return ``next/terminated`` and ``next/truncated`` of an episode flagged at its end only; cuts are truncated."""
    terminated, truncated = np.zeros(length, bool), np.zeros(length, bool)
    if length:
        (terminated if end == TERMINATED else truncated)[-1] = True
    return {FLAGS[0]: terminated, FLAGS[1]: truncated}
