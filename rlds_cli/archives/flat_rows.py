"""Rows of many episodes end to end, as chunks: the reading half of the engine `archives.flat`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from rlds_cli.archives.formats import image_columns
from rlds_cli.archives.formats.hdf5_rows import components, nan_count
from rlds_cli.archives.formats.image_columns import EncodedColumn
from rlds_cli.archives.formats.tables import Readable
from rlds_cli.archives.readers import CHUNK_BYTES, CHUNK_ROWS
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.errors import CorruptArchive, ReaderError
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    VIDEO,
    Chunk,
    Column,
    EncodedFrames,
    EpisodeTable,
    Field,
    Note,
    VideoFrames,
)

MIN_SPAN = 16
TEXT_BYTES = 64
_SMALLER = 4
Places = Callable[[IntArray], tuple[IntArray, IntArray]]


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """One file.

    Attributes
    ----------
    columns : mapping of str to str
        Keys by the names of ``fields``.
    next_columns : mapping of str to str
        The keys of next observations, by the names of observations; ``own_next`` are the fields of these.
    terminals, timeouts : str or None
        Flags of the steps. ``timeouts_field`` is the field of timeouts that end nothing.
    metadata : tuple of str
        Keys that are not per row.
    late : bool
        The action and the results of a step stand in the row after its observation.
    facts : mapping
        What the manifest records about the file.
    """

    rows: int
    fields: tuple[Field, ...]
    columns: Mapping[str, str]
    next_columns: Mapping[str, str] = field(default_factory=dict)
    terminals: str | None = None
    timeouts: str | None = None
    timeouts_field: Field | None = None
    metadata: tuple[str, ...] = ()
    own_next: tuple[Field, ...] = ()
    notes: tuple[Note, ...] = ()
    late: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, str]:
        """The keys of fields, of next observations and of flags, by name."""
        flags = {FLAGS[0]: self.terminals, FLAGS[1]: self.timeouts}
        following = {f"next/{n}": k for n, k in self.next_columns.items()}
        return {**self.columns, **following, **{n: k for n, k in flags.items() if k}}

    def sources(self, *, inside: bool) -> dict[str, str]:
        """Return the keys of `named`, and with ``inside`` that of the field of timeouts that end nothing."""
        kept = self.timeouts_field if inside else None
        return {**self.named, **({kept.name: self.timeouts} if kept and self.timeouts else {})}

    @property
    def recorded(self) -> bool:
        """True if there are next observations with the fields and shapes of the observations."""
        return bool(self.own_next) and {f.name: f.shape for f in self._observations} == {
            f.name.removeprefix("next/"): f.shape for f in self.own_next
        }

    @property
    def comparable(self) -> bool:
        """True if next observations have the dtypes of the observations, too, and so can be compared with them."""
        return self.recorded and {f.name: f.dtype for f in self._observations} == {
            f.name.removeprefix("next/"): f.dtype for f in self.own_next
        }

    @property
    def _observations(self) -> list[Field]:
        return [f for f in self.fields if f.placement == "both"]


@dataclass(frozen=True, slots=True)
class FlatEpisodes:
    """Episodes in the rows of a file, or of several files end to end.

    Attributes
    ----------
    stops : int array [E]
        The row after the last one of each.
    finals : bool array [E]
        True if that last row holds the final observation, and no step.
    end : uint8 array [E] or None
        How each ends; None where the flags of the steps tell.
    about : mapping
        What a family's ``facts`` record of them.
    """

    stops: IntArray
    finals: BoolArray
    end: Array | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> IntArray:
        """The steps of each. int64 [E]."""
        return np.asarray(np.diff(self.stops, prepend=0) - self.finals)

    def check(self, rows: int, name: str) -> None:
        """Refuse episodes that are not those of all ``rows`` rows of the file ``name``; raises ReaderError."""
        stops, finals = np.asarray(self.stops), np.asarray(self.finals)
        end = np.zeros(stops.shape, np.uint8) if self.end is None else np.asarray(self.end)
        if stops.ndim != 1 or (stops.dtype.kind not in "iu" and len(stops)):
            wrong = f"stops is {stops.dtype} {list(stops.shape)}; row numbers are expected, as int64 [episodes]"
        elif not finals.shape == end.shape == stops.shape:
            wrong = f"stops has {len(stops)} episodes, finals {list(finals.shape)} and end {list(end.shape)}"
        elif finals.dtype != bool:
            wrong = f"finals is {finals.dtype}; bool is expected"
        elif len(back := np.flatnonzero(np.diff(stops, prepend=0) <= 0)):
            wrong = f"stops[{back[0]}] is {stops[back[0]]}, which is not after {stops[back[0] - 1] if back[0] else 0}"
        elif (last := int(stops[-1]) if len(stops) else 0) != rows:
            wrong = f"the last stop is {last}, and the file has {rows} rows: each row belongs to an episode"
        elif len(unknown := np.flatnonzero(~np.isin(end, (CUT, TERMINATED, TRUNCATED)))):
            wrong = f"end[{unknown[0]}] is {end[unknown[0]]}; TERMINATED, TRUNCATED and CUT of rlds_cli.ted are known"
        else:
            return
        raise ReaderError(f"{name}: the reader's episodes are invalid: {wrong}.")


def is_set(seen: Mapping[str, Array], key: str | None, rows: int) -> BoolArray:
    """Convert a flag of any number type, (N,) or (N, 1), to bool [rows]; NaN counts as False, and so does no column.

    Raises
    ------
    CorruptArchive
        The column holds something else: it is not a flag.
    """
    if key is None:
        return np.zeros(rows, bool)
    value = seen[key][:rows].reshape(-1)
    if value.dtype.kind == "b":
        return value
    is_set = (value != 0) & (value == value)
    strange = is_set & (value != 1)
    if strange.any():
        raise CorruptArchive(
            f"{key} holds {value[strange][0]}; flags are 0 or 1.",
            hint="--map terminated=KEY or truncated=KEY names another",
        )
    return np.asarray(is_set)


def frames_of(images: Sequence[bytes | None]) -> EncodedFrames:
    """Join encoded images; None stands for no frame."""
    lengths = np.array([len(image or b"") for image in images], np.int64)
    return EncodedFrames(np.frombuffer(b"".join(image for image in images if image), np.uint8), lengths)


def differs(a: Array, b: Array) -> BoolArray:
    """Mark the rows in which two columns differ; NaN equals itself."""
    if a.dtype.kind in "fc":
        return np.asarray((a != b) & ((a == a) | (b == b)))
    return np.asarray(a != b, bool)


def noted_nan(f: Field, values: Array, start: int) -> tuple[str, str, BoolArray] | None:
    """Mark the values that are NaN; see `Flat.odd_values`."""
    return ("nan", "values are NaN and kept", np.isnan(values)) if nan_count(values) else None


def max_cuts(pairs: int) -> int:
    """Return how many of ``pairs`` may differ and still be single steps: 1 %, at least 16, at most a third."""
    return max(pairs // 100, min(16, -(-pairs // 3)))


class NextValuesDiffer(Exception):
    """Next observations differ from the rows after at more than single steps."""


@dataclass(frozen=True)
class Stretch:
    """Whole episodes from row ``start`` on, and how their rows are read.

    Attributes
    ----------
    name_of : callable
        Returns the name of a file by its number, for notes.
    total : int
        The rows of the file, or of all files.
    cuts : bool
        Episodes end where a next observation is not the row after. With ``jumps`` this is the rule for ends; otherwise
        it may happen at single steps only.
    flagged : bool
        An end without a flag is noted.
    odd_values : callable
        Marks the values of a field, from a row on, that a note tells of; see `Flat.odd_values`.
    places : callable
        Maps rows to the numbers of files, and to rows in them, for the episode table.
    said_places : callable, optional
        The same for messages, where ``places`` leaves rows as they are counted through all files.
    videos : callable, optional
        Returns the frames of some rows, by the column of the video.
    """

    name_of: Callable[[int], str]
    places: Places
    total: int
    start: int
    episodes: FlatEpisodes
    layout: FlatLayout
    fields: tuple[Field, ...]
    cuts: bool = False
    jumps: bool = False
    flagged: bool = False
    odd_values: Callable[[Field, Array, int], tuple[str, str, BoolArray] | None] = noted_nan
    inside_notes: bool = True
    said_places: Places | None = None
    videos: Callable[[str, IntArray], VideoFrames] | None = None

    def where(self, row: int) -> tuple[str, int]:
        """Return the name of the file of a row, and its number there, for messages."""
        source, at = (self.said_places or self.places)(np.array([row]))
        return self.name_of(int(source[0])), int(at[0])

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return int(self.episodes.stops[-1])

    @cached_property
    def keys(self) -> dict[str, str]:
        """The column of each field."""
        found = {**self.layout.columns, **{f"next/{n}": key for n, key in self.layout.next_columns.items()}}
        if self.layout.timeouts_field and self.layout.timeouts:
            found[self.layout.timeouts_field.name] = self.layout.timeouts
        return {f.name: found[f.name] for f in self.fields}

    @property
    def finals(self) -> Mapping[str, str]:
        """The columns of final observations, by field."""
        return self.layout.next_columns if self.layout.recorded else {}

    @property
    def max_cuts(self) -> int | None:
        """The steps whose next observation may differ from the row after; None for any number."""
        pairs = self.stop - self.start - len(self.episodes.stops)
        return max_cuts(pairs) if self.cuts and not self.jumps else None

    @property
    def block_rows(self) -> int:
        """Rows of the file in one block: with every end repeated, they still make one chunk.

        Encoded images count as a quarter of their pixels, which few of them exceed.
        """
        width = sum(_bytes_of(f) for f in self.fields) + len(FLAGS)
        rows = min(CHUNK_ROWS, CHUNK_BYTES // width)
        return max(2, rows) if self.episodes.finals.all() else max(1, rows // 2)


def _bytes_of(f: Field) -> int:
    if f.kind == "text":
        return TEXT_BYTES
    return -(-f.row_bytes // _SMALLER) if f.kind == "frames" else f.row_bytes


def stretch_chunks(f: Readable, stretch: Stretch) -> Iterator[Chunk]:
    """Read the rows of a stretch, in order.

    Raises
    ------
    NextValuesDiffer
        More next observations differ from the rows after than single steps.
    """
    flags = {k for k in (stretch.layout.terminals, stretch.layout.timeouts) if k is not None}
    columns = sorted({*stretch.keys.values(), *stretch.finals.values()} | flags)
    size, most, cuts, state = stretch.block_rows, stretch.max_cuts, 0, _Open(stretch.start)
    with f.rows(columns) as reader:
        for start in range(stretch.start, stretch.stop, size):
            stop = min(start + size, stretch.stop)
            block = _Block(stretch, start, stop, state, reader.read(start, min(stop + 1, stretch.total)))
            cuts += block.cut(most is not None) if stretch.cuts else 0
            if most is not None and cuts > most:
                raise NextValuesDiffer
            chunk, state = block.chunk()
            if len(chunk):
                yield chunk


@dataclass(frozen=True, slots=True)
class _Open:
    """The episode that is open before a block: its first row, and the flags of its last row so far."""

    first: int
    terminated: bool = False
    timeout: bool = False


class _Copies:
    """Copies rows of a block, some of them twice, and some not at all.

    ``copies`` counts those of each row; ``twice`` are the repeated rows of a block of which all rows are copied.
    """

    def __init__(self, copies: IntArray, twice: IntArray | None) -> None:
        self._rows, self._copies = len(copies), copies
        self._spans: list[tuple[int, int]] | None = None
        if twice is not None and MIN_SPAN * len(twice) < self._rows:  # long runs of rows are copied whole
            self._spans = [*zip([0, *twice.tolist()], [*(twice + 1).tolist(), self._rows], strict=True)]

    @cached_property
    def _index(self) -> IntArray:
        return np.repeat(np.arange(self._rows), self._copies)

    def __call__(self, source: Array, *, late: bool = False, view: bool = False) -> Array:
        """Copy rows of ``source``; with ``late`` those behind them. with ``view`` it may be no copy."""
        if late:
            return source.take(self._index + 1, axis=0, mode="clip")
        if self._spans is None:
            return source.take(self._index, axis=0)
        if view and len(self._spans) == 1:
            return source[: self._rows]
        return np.concatenate([source[a:b] for a, b in self._spans])


class _Block:
    """Some rows of a stretch, with the row after them if there is one."""

    def __init__(self, stretch: Stretch, start: int, stop: int, before: _Open, seen: Mapping[str, Array]) -> None:
        self.stretch, self.start, self.rows, self.before, self.seen = stretch, start, stop - start, before, seen
        e = stretch.episodes
        here = slice(*np.searchsorted(e.stops, (start, stop + 1), "right"))  # with an end in the row after
        at = e.stops[here] - 1 - start
        ends, final, code = (np.zeros(self.rows + 1, dtype) for dtype in (bool, bool, np.uint8))
        ends[at], final[at] = True, e.finals[here]
        if e.end is not None:
            code[at] = e.end[here]
        self.final, self.ends = final[:-1], ends[:-1]
        steps = ~final
        behind = final[1:] & ~ends[:-1]  # the row after holds the final observation of this step
        self.last_steps = (self.ends & steps[:-1]) | behind
        self.code = np.where(behind, code[1:], code[:-1])
        self.keep = ~(self.final & np.append(start == before.first, self.ends[:-1]))  # a final row alone is no episode
        self.terminated, self.timeouts = self._flags()
        self.notes: list[Note] = []

    def _flags(self) -> tuple[BoolArray, BoolArray]:
        """Read the flags of the steps; how an episode ends tells that of its last step."""
        layout, coded = self.stretch.layout, self.stretch.episodes.end is not None
        terminated, timeouts = (self._flag(key) for key in (layout.terminals, layout.timeouts))
        if coded:
            terminated = terminated | (self.last_steps & (self.code == TERMINATED))
            timeouts = timeouts | (self.last_steps & (self.code != TERMINATED))
        return terminated, timeouts

    def _flag(self, key: str | None) -> BoolArray:
        """Read a flag of the steps; of late rows it stands in the row after."""
        if not self.stretch.layout.late:
            return is_set(self.seen, key, self.rows)
        after = np.append(is_set(self.seen, key, self.rows + 1), False)[1 : self.rows + 1]
        return after & ~self.final

    def cut(self, noted: bool) -> int:
        """End episodes where the next observation is not the row after; return how many end so."""
        jumps = np.zeros(self.rows, bool)
        keys = self.stretch.keys
        for name, key in self.stretch.finals.items():
            jumps |= self._jumps(self.seen[keys[name]], self.seen[key])
        jumps &= ~self.ends
        self.ends |= jumps
        self.last_steps |= jumps
        if noted:
            self._note("unflagged-end", "a next observation is not the row after: the episode is cut there", jumps)
        return int(np.count_nonzero(jumps))

    def _jumps(self, now: Array, after: Array) -> BoolArray:
        pairs = min(self.rows, len(now) - 1)
        a, b = components(after[:pairs]), components(now[1 : pairs + 1])
        out = np.zeros(self.rows, bool)
        # Few differ in all files but those that stop here, so only they are looked at twice, for NaN.
        row, column = np.divmod(np.flatnonzero(a != b), max(a.shape[1], 1))
        out[row[differs(a[row, column], b[row, column])]] = True
        return out

    def chunk(self) -> tuple[Chunk, _Open]:
        """Lay out the block in rows of the store; also return the episode that is open behind it."""
        ends = np.flatnonzero(self.ends & self.keep)
        twice = ends[~self.final[ends]]  # rows that are repeated
        copies = self.keep.astype(np.int64)
        copies[twice] = 2
        stops = np.cumsum(copies)
        last = np.zeros(int(stops[-1]), bool)
        last[stops[ends] - 1] = True
        self.copy = _Copies(copies, twice if self.keep.all() else None)
        columns = {f.name: self._column(f, ends, last) for f in self.stretch.fields}
        truncated = self.last_steps & (self.timeouts | ~self.terminated)
        for name, flag in zip(FLAGS, (self.terminated, truncated), strict=True):
            columns[name] = self.copy(flag, view=True) & ~last
        table, first = self._episodes()
        self._report(table)
        after = _Open(first, bool(self.terminated[-1]), bool(self.timeouts[-1]))
        return Chunk(columns, last, table, tuple(self.notes)), after

    def _column(self, f: Field, ends: IntArray, last: BoolArray) -> Column:
        if f.codec == VIDEO:
            return self._frames_of_videos(f, last)
        values = self.seen[self.stretch.keys[f.name]]
        is_array = f.kind == "array"
        source = values.reshape(len(values), *f.shape) if is_array else values.reshape(-1)
        if f.kind == "frames":
            self._check_images(f, source)
        if odd := self.stretch.odd_values(f, source[: self.rows], self.start):
            code, text, marks = odd
            rows: BoolArray = np.asarray(components(marks).any(axis=1))
            self._note(code, f"{text}, first in {f.name}", rows, count=int(np.count_nonzero(marks)))
        both = f.placement == "both"
        out = self.copy(source, late=self.stretch.layout.late and not both, view=both or not len(ends))
        if not both and len(ends):
            out[last] = 0 if is_array else None
        elif both and f.name in self.stretch.finals:
            final = self.seen[self.stretch.finals[f.name]][ends]
            out[last] = final.reshape(len(ends), *f.shape) if is_array else final.reshape(-1)
        if f.kind == "frames":
            return frames_of(out.tolist())
        return out.astype(f.dtype, copy=False) if is_array else out.tolist()

    def _frames_of_videos(self, f: Field, last: BoolArray) -> VideoFrames:
        assert self.stretch.videos is not None
        rows = self.copy(np.arange(self.start, self.start + self.rows))
        found = self.stretch.videos(self.stretch.keys[f.name], rows)
        if f.placement != "both":
            found.index[last] = -1
        return found

    @cached_property
    def _runs(self) -> list[tuple[slice, str, int]]:
        """The rows of each file, its name, and the number of the first row there; more where rows were sorted."""
        stretch, rows = self.stretch, np.arange(self.start, self.start + self.rows)
        source, row = (stretch.said_places or stretch.places)(rows)
        edges = 1 + np.flatnonzero((np.diff(source) != 0) | (np.diff(row) != 1))
        spans = pairwise([0, *edges.tolist(), self.rows] if self.rows else [])
        return [(slice(a, b), stretch.name_of(int(source[a])), int(row[a])) for a, b in spans]

    def _check_images(self, f: Field, images: Array) -> None:
        expected, key = EncodedColumn(f.codec, f.shape, f.dtype), self.stretch.keys[f.name]
        for rows, name, first in self._runs:
            image_columns.check(images[rows].tolist(), expected, f"{name}: {key}", first)

    def _episodes(self) -> tuple[EpisodeTable, int]:
        at = np.flatnonzero(self.ends)
        stops = self.start + at + 1
        bounds = np.concatenate([[self.before.first], stops]).astype(np.int64)
        final = self.final[at]
        length = np.diff(bounds) - final
        some = length > 0
        step = (at - final)[some] + 1  # the last step may be the last row of the block before
        terminated = np.append(self.before.terminated, self.terminated)[step]
        timeouts = np.append(self.before.timeout, self.timeouts)[step]
        end = np.where(terminated, TERMINATED, np.where(timeouts, TRUNCATED, CUT)).astype(np.uint8)
        if self.stretch.episodes.end is not None:
            code = self._codes(stops[some])
            end = np.where((end == TERMINATED) | (code == TERMINATED), TERMINATED, code).astype(np.uint8)
        source, row = self.stretch.places(bounds[:-1][some])
        observed = final[some] | bool(self.stretch.finals)
        return EpisodeTable(length[some], end, observed, source.astype(np.int32), row), int(bounds[-1])

    def _codes(self, stops: IntArray) -> Array:
        e = self.stretch.episodes
        assert e.end is not None
        return np.asarray(e.end[np.searchsorted(e.stops, stops)])

    def _report(self, table: EpisodeTable) -> None:
        if self.stretch.inside_notes:
            inside = self.terminated & ~self.last_steps
            self._note("terminated-inside", "steps are terminated inside an episode", inside)
        whole_file = self.start + self.rows == self.stretch.total
        if self.stretch.flagged and whole_file and len(table) and table.end[-1] == CUT and self.ends[-1]:
            text = f"the last episode ({table.length[-1]:,} steps) is cut short by the file"
            file, _ = self.stretch.where(self.stretch.total - 1)
            self.notes.append(Note("open-end", text, 1, file))

    def _note(self, code: str, text: str, rows: BoolArray, *, count: int | None = None) -> None:
        where = np.flatnonzero(rows)
        if len(where):
            file, row = self.stretch.where(self.start + int(where[0]))
            place = f"row {row:,} of {file}"
            self.notes.append(Note(code, text, len(where) if count is None else count, place))
