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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from rlds_cli.array_types import Array as Array
from rlds_cli.array_types import BoolArray as BoolArray
from rlds_cli.array_types import IntArray as IntArray
from rlds_cli.errors import InvalidEpisode

T = TypeVar("T")

Placement = Literal["root", "next", "both"]
Kind = Literal["array", "frames", "text"]

TERMINATED, TRUNCATED, CUT = 0, 1, 2
END_NAMES = ("terminated", "truncated", "cut")
VIDEO = "mp4"  # the codec of frames that are kept in videos

CHUNK_ROWS, CHUNK_BYTES = 1 << 16, 16 << 20  # approximate size of the pieces that are read and written

REWARD, FLAGS = "next/reward", ("next/terminated", "next/truncated")


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


@dataclass(slots=True)
class EncodedFrames:
    """Encoded images, one per row: the rows' bytes end to end, and their lengths (0: no frame).

    ``shape`` and ``codec`` are those of the field, and may be omitted if the field is known.
    """

    data: npt.NDArray[np.uint8]
    lengths: IntArray
    shape: tuple[int, ...] = ()
    codec: str | None = None

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(slots=True)
class VideoFrames:
    """Frames of videos, one per row: ``index`` [n, 2] is the number of a video in ``files`` and of the frame in it.

    Frames are counted in the order in which they are shown; (-1, -1) stands for a row without a frame.
    """

    files: tuple[str, ...]
    index: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.index)


# TED's own columns of the episode table, and reserved names beside them on disk or in expressions.
EPISODE_COLUMNS = frozenset(
    """start length end num_observed num_transitions num_done num_terminated total_reward source row group seed has_seed
    options split splits missing episode""".split()  # noqa: SIM905
)

Text = list[str | None]
Scalar = bool | int | float | str | None  # of one episode, in a column of the user's own
Column = Array | EncodedFrames | VideoFrames | Text


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of a reader for the user; notes with equal codes are added up."""

    code: str
    text: str
    count: int = 1
    where: str = ""


def merge_notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Add up notes with equal codes, in order of first appearance; the first ``where`` is kept as an example."""
    merged: dict[str, Note] = {}
    for note in notes:
        seen = merged.get(note.code)
        merged[note.code] = replace(seen, count=seen.count + note.count) if seen else note
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


def _taken(values: Sequence[T], index: IntArray) -> Sequence[T]:
    return [] if isinstance(values, Repeated) else [values[i] for i in index.tolist()]


@dataclass(slots=True)
class EpisodeTable:
    """Columns over episodes, in order.

    ``length`` T; ``end`` one of TERMINATED, TRUNCATED, CUT; ``observed`` whether the final observation is recorded;
    ``source`` index of the archive file; ``row`` first row there; ``group`` its group there (``episode_12``);
    ``seed`` unsigned 64-bit or None; ``options`` JSON text or None; ``splits`` one bool array per named split;
    ``extra`` columns of the user's own, one value or None per episode (names and types: `episode_columns`).
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


@dataclass(slots=True)
class EpisodeData:
    """One whole episode, by field name, before it is laid out in rows.

    Fields placed ``both`` have T+1 rows, or T if the final observation is not recorded; other fields have T rows.
    Without a field placed ``both``, ``observed`` says whether the final observation is recorded.
    """

    columns: Mapping[str, Column]
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


def lay_out(schema: Sequence[Field], episodes: Sequence[EpisodeData]) -> Chunk:
    """Put whole episodes into rows, one after the other.

    Raises
    ------
    InvalidEpisode
        A field is missing or unknown, or has a wrong number of rows or row shape.
    """
    names = {f.name for f in schema}
    observed = [_check_rows(schema, names, e) for e in episodes]
    columns = {f.name: _lay_out_field(f, episodes) for f in schema}
    length = np.array([e.length for e in episodes], np.int64)
    last = np.zeros(int((length + 1).sum()), bool)
    last[np.cumsum(length + 1) - 1] = True
    splits = {s: None for e in episodes for s in e.splits}
    own = {name: None for e in episodes for name in e.extra}
    table = EpisodeTable(
        length,
        np.array([e.end for e in episodes], np.uint8),
        np.array(observed, bool),
        np.array([e.source for e in episodes], np.int32),
        np.array([e.row for e in episodes], np.int64),
        group=[e.group for e in episodes],
        seed=[e.seed for e in episodes],
        options=[e.options for e in episodes],
        splits={s: np.array([s in e.splits for e in episodes], bool) for s in splits},
        extra={n: [_python(e.extra.get(n)) for e in episodes] for n in own},
    )
    return Chunk(columns, last, table)


def _python(value: Scalar) -> Scalar:
    """Convert a NumPy scalar to Python, since journals are JSON."""
    return value.item() if isinstance(value, np.generic) else value


def _check_rows(schema: Sequence[Field], names: set[str], e: EpisodeData) -> bool:
    """Check the rows of every field, and return whether the final observation is recorded."""
    where = f"episode {e.group or e.row}"
    if set(e.columns) != names:
        missing, extra = sorted(names - set(e.columns)), sorted(set(e.columns) - names)
        raise InvalidEpisode(
            f"{where}: "
            + "; ".join(
                f"{what} {', '.join(which)}"
                for what, which in (("lacks", missing), ("has, unlike the first,", extra))
                if which
            )
        )
    both = {f.name: len(e.columns[f.name]) for f in schema if f.placement == "both"}
    wanted_both = (e.length, e.length + 1)
    for f in schema:
        rows = len(e.columns[f.name])
        allowed = wanted_both if f.placement == "both" else (e.length,)
        if rows not in allowed:
            raise InvalidEpisode(f"{where}: {f.name} has {rows} rows; expected {' or '.join(map(str, allowed))}.")
        column = e.columns[f.name]
        if isinstance(column, np.ndarray) and column.shape[1:] != f.shape:
            raise InvalidEpisode(
                f"{where}: a row of {f.name} has shape {list(column.shape[1:])}; others have {list(f.shape)}."
            )
    if len(set(both.values())) > 1:
        raise InvalidEpisode(
            f"{where}: fields disagree on the final row: " + ", ".join(f"{k} has {v}" for k, v in both.items())
        )
    return next(iter(both.values())) == e.length + 1 if both else e.observed


def _lay_out_field(f: Field, episodes: Sequence[EpisodeData]) -> Column:
    if f.kind == "text":
        return [value for e in episodes for value in _text_rows(f, e)]
    if f.codec == VIDEO:
        return _video_rows(f, episodes)
    if f.kind == "frames":
        return _frame_rows(f, episodes)
    rows = sum(e.length + 1 for e in episodes)
    out = np.zeros((rows, *f.shape), f.dtype)
    at = 0
    for e in episodes:
        column = e.columns[f.name]
        assert isinstance(column, np.ndarray)
        out[at : at + len(column)] = column
        if f.placement == "both" and len(column) == e.length and e.length:
            out[at + e.length] = column[-1]
        at += e.length + 1
    return out


def _text_rows(f: Field, e: EpisodeData) -> Text:
    column = e.columns[f.name]
    assert isinstance(column, list)
    if len(column) == e.length + 1:
        return column
    return [*column, column[-1] if f.placement == "both" and column else None]


def _video_rows(f: Field, episodes: Sequence[EpisodeData]) -> VideoFrames:
    numbers: dict[str, int] = {}
    rows = []
    for e in episodes:
        column = e.columns[f.name]
        assert isinstance(column, VideoFrames)
        number = np.array([*(numbers.setdefault(v, len(numbers)) for v in column.files), -1], np.int32)
        index = column.index.copy()
        index[:, 0] = number[index[:, 0]]
        rows.append(index)
        if len(index) == e.length:
            repeated = f.placement == "both" and e.length
            rows.append(index[-1:] if repeated else np.full((1, 2), -1, np.int32))
    return VideoFrames(tuple(numbers), np.concatenate([np.zeros((0, 2), np.int32), *rows]))


def _frame_rows(f: Field, episodes: Sequence[EpisodeData]) -> EncodedFrames:
    data, lengths = [], []
    for e in episodes:
        column = e.columns[f.name]
        assert isinstance(column, EncodedFrames)
        data.append(column.data)
        lengths.append(column.lengths)
        if len(column) == e.length:
            repeat = int(column.lengths[-1]) if f.placement == "both" and e.length else 0
            data.append(column.data[len(column.data) - repeat :])
            lengths.append(np.array([repeat], np.int64))
    return EncodedFrames(
        np.concatenate(data) if data else np.zeros(0, np.uint8),
        np.concatenate(lengths) if lengths else np.zeros(0, np.int64),
    )


def flags(length: int, end: int) -> dict[str, BoolArray]:
    """Return ``next/terminated`` and ``next/truncated`` of an episode flagged at its end only; cuts are truncated."""
    terminated, truncated = np.zeros(length, bool), np.zeros(length, bool)
    if length:
        (terminated if end == TERMINATED else truncated)[-1] = True
    return {FLAGS[0]: terminated, FLAGS[1]: truncated}


def split_name(key: str | tuple[str, ...]) -> tuple[str, ...]:
    """Split a field name into components; a tuple means the same as a name with ``/``."""
    return tuple(key.split("/")) if isinstance(key, str) else tuple(key)


def join_name(key: str | tuple[str, ...]) -> str:
    """Return the field name of ``key``."""
    return key if isinstance(key, str) else "/".join(key)
