"""The engine for rows of many episodes end to end: HDF5, npz, Parquet, CSV or JSON lines, a column for each field.

A family is a subclass of `Flat` with a diagram of its rows. It says what the columns of a file are (`Flat.layout`), and
where its episodes end (`Flat.episodes`); the engine does the rest. Two things differ between families::

    the last row of an episode            a step like any other               o0 o1 o2 | o3 o4 |
                                          the final observation, no step      o0 o1 o2 n2 | o3 o4 n4 |
    action and results of step t          in row t, or in row t+1 ("late", as dm_env logs them)

Rows are read block by block. A row of the file is a row of the store; an end without a final row repeats its last row,
which then takes the final observation: the one of a column of next observations, else the observation once more. Where
next observations are there, a step whose next observation is not the row after ends the episode, too, unless that
happens throughout: then they are a field of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds_cli.archives import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Archive,
    ArchivedStep,
    ArchivedValue,
    Part,
    Plan,
    Replan,
    every_file,
)
from rlds_cli.archives.names import differences
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import is_hdf5, reading
from rlds_cli.formats.hdf5_rows import components, nan_count
from rlds_cli.formats.tables import Readable, Table, open_flat
from rlds_cli.subset import Subset
from rlds_cli.ted import (
    CUT,
    FLAGS,
    TERMINATED,
    TRUNCATED,
    Array,
    BoolArray,
    Chunk,
    Column,
    EpisodeTable,
    Field,
    IntArray,
    Note,
)

PART_ROWS, PART_BYTES = 1 << 19, 512 << 20
SCAN_ROWS = 1 << 18
MIN_SPAN = 16
TEXT_BYTES = 64
FINAL, OWN = "final", "own"  # next observations: of the last step alone, or a field
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


def stops_of(last: BoolArray) -> IntArray:
    """Return the row after each last row of an episode; rows after the last flag are an episode, too. int64 [E]."""
    stops = np.flatnonzero(last).astype(np.int64) + 1
    return stops if not len(last) or last[-1] else np.append(stops, len(last))


def flag_fields() -> tuple[Field, ...]:
    """Return the two flags, which every dataset has."""
    return tuple(Field(flag, "bool", (), "next") for flag in FLAGS)


def nonzero(table: Table, keys: Sequence[str], rows: int) -> dict[str, BoolArray]:
    """Read flags of any number type, one value per row, as bool [rows].

    Raises
    ------
    CorruptArchive
        A column holds something else.
    """
    for key in keys:
        if table[key].shape[1:] not in ((), (1,)) or table[key].dtype.kind not in "biuf":
            raise CorruptArchive(f"{table.path.name}: {key} is {table[key].dtype} {list(table[key].shape)}.")
    found = {key: np.zeros(rows, bool) for key in keys}
    with table.rows(keys) as reader:
        for start in range(0, rows, SCAN_ROWS):
            for key, values in reader.read(start, min(start + SCAN_ROWS, rows)).items():
                found[key][start : start + SCAN_ROWS] = values.reshape(-1) != 0
    return found


def is_set(seen: Mapping[str, Array], key: str | None, rows: int) -> BoolArray:
    """Convert a flag of any number type, (N,) or (N, 1), to bool [rows]; NaN counts as False, and so does no column.

    Raises
    ------
    CorruptArchive
        The column holds something else: it is no flag.
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


def differs(a: Array, b: Array) -> BoolArray:
    """Mark the rows in which two columns differ; NaN equals itself."""
    if a.dtype.kind in "fc":
        return np.asarray((a != b) & ((a == a) | (b == b)))
    return np.asarray(a != b, bool)


# -- a family


class Flat:
    """A reader of a family whose files hold rows of many episodes end to end; see `Reader` for its functions.

    Attributes
    ----------
    name, title : str
        The name of the reader, and of the family in messages.
    rules : tuple of str
        What ``--episodes-by`` may say; ``no_rule`` is the message otherwise, and ``mapped`` says whether ``--map``
        applies.
    whole_files : bool
        A file is one part: parts of a compressed npz would each inflate what lies before them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    VERSION: ClassVar[int] = 1
    rules: ClassVar[tuple[str, ...]] = ("flags",)
    no_rule: ClassVar[str] = "the files say where their episodes end"
    mapped: ClassVar[bool] = False
    whole_files: ClassVar[bool] = False
    unlike: ClassVar[type[ArchiveError]] = UnknownLayout  # files that do not hold the same fields
    inside_notes: ClassVar[bool] = True  # a step that terminates inside an episode is noted

    # What a family says

    def is_file(self, path: Path) -> bool:
        """Tell by its first bytes whether a file may be of the family."""
        return is_hdf5(path)

    def open(
        self, path: Path, archive: Archive, facts: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Table]:
        """Open a file as a table; ``facts`` are those of the plan, if there is one."""
        return open_flat(path, check=facts is None)

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Describe the first file in two halves, between which the number of files stands; None for other files."""
        raise NotImplementedError

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign the columns of a file to fields."""
        raise NotImplementedError

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """Find the episodes of a file; reads its flags."""
        raise NotImplementedError

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Return the facts that the manifest records: by default those of the first file."""
        return seen[0].facts

    def notes(self, archive: Archive, index: int, found: FlatLayout, episodes: FlatEpisodes) -> Iterator[Note]:
        """Make the notes about a file."""
        yield from found.notes
        if empty := int(np.count_nonzero(episodes.length < 1)):
            yield Note("empty-episodes", "episodes without steps were left out", empty, archive.name_of(index))

    def splits(self, plan: Plan, file: int) -> Mapping[str, bool]:
        """Tell for each named split whether the episodes of a file are in it."""
        return {}

    def odd_values(self, f: Field, values: Array) -> tuple[str, str, BoolArray] | None:
        """Mark values that a note tells of [rows, ...], with the note's code and text."""
        return noted_nan(f, values)

    def has_final(self, table: Table, place: ArchivedStep) -> bool:
        """Tell whether the row after the last step of an episode holds its final observation."""
        return False

    # What the engine does

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """See `Reader`: all files."""
        return every_file(names, portion, read)

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """Describe files of the family in one line; None for other files."""
        if not paths or not all(map(self.is_file, paths)):
            return None
        with self.open(paths[0], Archive(paths[0].parent, tuple(paths))) as table:
            said = self.describe(table, paths)
        files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
        return f"{said[0]}: {files}{said[1]}" if said else None

    def plan(self, archive: Archive) -> Plan:
        """Find fields, parts and ends. Reads the flags, in blocks.

        Raises
        ------
        UnknownLayout
            A column that is needed and not there; a rule for ends, or a mapping, that does not apply; files that do
            not hold the same fields.
        CorruptArchive
            Columns of different lengths, flags that are none.
        """
        self.check(archive)
        seen, found, notes = [], [], []
        for index, path in enumerate(archive.files):
            with self.open(path, archive) as table:
                seen.append(self.layout(table, archive))
                found.append(self.episodes(table, seen[-1], archive))
            notes += self.notes(archive, index, seen[-1], found[-1])
        recorded = all(s.comparable or not s.next_columns for s in seen)
        mode = None if not any(s.next_columns for s in seen) else FINAL if recorded else OWN
        rule = archive.episodes_by or self.rules[0]
        schema = same_schema(archive, [self.schema(s, mode, rule) for s in seen], self.unlike)
        width = sum(f.row_bytes for f in seen[0].fields)
        parts = [p for i, e in enumerate(found) for p in self.parts(i, e, width, known=mode != FINAL)]
        facts = self.facts(archive, seen, found, mode)
        return Plan(self.name, archive, schema, tuple(parts), rule, facts=facts, notes=tuple(notes))

    def check(self, archive: Archive) -> None:
        """Refuse options that do not apply; raises UnknownLayout."""
        if archive.episodes_by not in (None, *self.rules):
            raise UnknownLayout(
                f'episodes_by="{archive.episodes_by}" does not apply: {self.no_rule}.', hint="leave it out"
            )
        if archive.fields and not self.mapped:
            raise UnknownLayout(
                f"{self.title}'s names are fixed; --map does not apply.", hint="--format plain takes any names"
            )

    def schema(self, found: FlatLayout, mode: str | None, rule: str) -> tuple[Field, ...]:
        """Return the fields of a file, sorted by name; timeouts that end nothing are one of them."""
        fields = [*found.fields, *flag_fields(), *(found.own_next if mode == OWN else ())]
        if found.timeouts_field and rule not in ("flags", "timeouts"):
            fields.append(found.timeouts_field)
        return tuple(sorted(fields, key=lambda f: f.name))

    def parts(self, file: int, episodes: FlatEpisodes, width: int, *, known: bool) -> Iterator[Part]:
        """Divide the episodes of a file into parts of about one size; ``known`` says that all ends are."""
        stops = episodes.stops
        total = int(stops[-1]) if len(stops) else 0
        number = 1 if self.whole_files else -(-total // max(1, min(PART_ROWS, PART_BYTES // max(width, 1))))
        marks = np.linspace(0, total, number + 1)[1:].astype(np.int64)
        bounds = np.unique(np.searchsorted(stops, marks)) + 1
        for a, b in pairwise([0, *np.minimum(bounds, len(stops)).tolist()]):
            steps = episodes.length[a:b]
            some = steps[steps > 0]
            if len(some):
                args: dict[str, Any] = {"file": file, "start": int(stops[a - 1]) if a else 0, "stops": stops[a:b]}
                args |= {"finals": np.flatnonzero(episodes.finals[a:b]), "episodes": len(some)}
                args |= {} if episodes.end is None else {"end": episodes.end[a:b]}
                yield Part(int((some + 1).sum()) if known else None, args)

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """Read the rows of one part, in chunks of bounded size however long the episodes are.

        Raises
        ------
        Replan
            Next observations differ from the rows after throughout.
        CorruptArchive
            A damaged chunk of the file.
        """
        source = int(part.args["file"])
        with self.open(plan.archive.files[source], plan.archive, plan.facts) as table:
            found = self.layout(table, plan.archive)
            stretch = self.stretch(plan, part, found)
            try:
                for chunk in stretch_chunks(table, stretch):
                    count = len(chunk.episodes)
                    chunk.episodes.splits = {n: np.full(count, v) for n, v in self.splits(plan, source).items()}
                    yield chunk
            except NextValuesDiffer:
                raise Replan(with_own_next(plan, found)) from None

    def stretch(self, plan: Plan, part: Part, found: FlatLayout) -> Stretch:
        """Say how a part of one file is read."""
        source = int(part.args["file"])
        return Stretch(
            name=plan.archive.name_of(source),
            total=found.rows,
            start=int(part.args["start"]),
            episodes=episodes_of(part),
            layout=found,
            fields=tuple(f for f in plan.schema if f.name not in FLAGS),
            cuts=plan.facts.get("next_observations") == FINAL and found.recorded,
            jumps=plan.episodes_by == "jumps",
            flagged=plan.episodes_by in ("flags", "timeouts"),
            odd_values=self.odd_values,
            inside_notes=self.inside_notes,
            places=lambda rows: (np.full(len(rows), source), rows),
        )

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """Read constants and attributes, below the file's name if there are several files."""
        several = len(plan.archive.files) > 1
        for index, path in enumerate(plan.archive.files):
            prefix = f"{plan.archive.name_of(index)}/" if several else ""
            with self.open(path, plan.archive, plan.facts) as table, reading(path, "its metadata"):
                for name, value in table.constants(self.layout(table, plan.archive).metadata):
                    yield prefix + name, value

    def look_up(self, place: ArchivedStep) -> Iterator[ArchivedValue]:
        """Look up the row of a step; next observations are in their own columns, or else in the row after it."""
        row = place.first + place.step
        archive = Archive(place.root, (place.file,), fields=place.fields)
        with self.open(place.file, archive, place.facts) as table:
            found = self.layout(table, archive)
            after = not place.is_last or self.has_final(table, place)
            fields = {f.name: f for f in found.fields}
            keys = {**found.columns, **({FLAGS[0]: found.terminals} if found.terminals else {})}
            for name, key in keys.items():
                both = name in fields and fields[name].placement == "both"
                values = next(iter(table.samples(key, [row], 2 if after or found.late else 1)))
                at = row + (found.late and not both)
                value = values[at - row]
                said = bool(np.all((value != 0) & (value == value))) if name == FLAGS[0] else value  # NaN is not set
                yield ArchivedValue(name, f"{key}[{at}]", said)
                if both and not found.next_columns and after:
                    yield ArchivedValue(f"next/{name}", f"{key}[{row + 1}]", values[1])
            for name, key in found.next_columns.items():
                yield ArchivedValue(f"next/{name}", f"{key}[{row}]", next(iter(table.samples(key, [row], 1)))[0])


def noted_nan(f: Field, values: Array) -> tuple[str, str, BoolArray] | None:
    """Mark the values that are NaN; see `Flat.odd_values`."""
    return ("nan", "values are NaN and kept", np.isnan(values)) if nan_count(values) else None


def same_schema(
    archive: Archive, schemas: Sequence[tuple[Field, ...]], error: type[ArchiveError] = UnknownLayout
) -> tuple[Field, ...]:
    """Return the fields of the first file; raises ``error`` if another file has others."""
    for index, schema in enumerate(schemas):
        if schema != schemas[0]:
            raise error(
                f"{archive.name_of(index)} and {archive.name_of(0)} do not hold the same fields: "
                + "; ".join(differences(schema, schemas[0])),
                hint="import them one by one, each with its own name",
            )
    return schemas[0]


def episodes_of(part: Part) -> FlatEpisodes:
    """Return the episodes of a part, in rows of the file."""
    stops = np.asarray(part.args["stops"], np.int64)
    finals = np.zeros(len(stops), bool)
    finals[np.asarray(part.args["finals"], np.int64)] = True
    return FlatEpisodes(stops, finals, part.args.get("end"))


def max_cuts(pairs: int) -> int:
    """Return how many of ``pairs`` may differ and still be single steps: 1 %, at least 16, at most a third."""
    return max(pairs // 100, min(16, -(-pairs // 3)))


def with_own_next(plan: Plan, found: FlatLayout) -> Plan:
    """Change a plan to keep next observations as a field of their own."""
    schema = tuple(sorted([*plan.schema, *found.own_next], key=lambda f: f.name))
    parts = tuple(replace(p, rows=_known_rows(p)) for p in plan.parts)
    note = Note(
        "next-observation",
        "next observations differ from the next rows throughout: kept as a separate field",
        1,
        "if episodes end there unflagged: --episodes-by jumps",
    )
    facts = {**plan.facts, "next_observations": OWN}
    return replace(plan, schema=schema, parts=parts, facts=facts, notes=(*plan.notes, note))


def _known_rows(part: Part) -> int:
    steps = np.diff(part.args["stops"], prepend=part.args["start"])
    steps[part.args["finals"]] -= 1
    return int((steps[steps > 0] + 1).sum())


# -- reading


class NextValuesDiffer(Exception):
    """Next observations differ from the rows after at more than single steps."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole episodes from row ``start`` on, and how their rows are read.

    Attributes
    ----------
    name : str
        The file, for notes.
    total : int
        The rows of the file, or of all files.
    cuts : bool
        Episodes end where a next observation is not the row after. With ``jumps`` this is the rule for ends; otherwise
        it may happen at single steps only.
    flagged : bool
        An end without a flag is noted.
    places : callable
        Maps rows to files, and to rows in them.
    """

    name: str
    total: int
    start: int
    episodes: FlatEpisodes
    layout: FlatLayout
    fields: tuple[Field, ...]
    cuts: bool
    jumps: bool
    flagged: bool
    odd_values: Callable[[Field, Array], tuple[str, str, BoolArray] | None]
    inside_notes: bool
    places: Places

    @property
    def stop(self) -> int:
        """The row after the last one."""
        return int(self.episodes.stops[-1])

    @property
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
        """Rows of the file in one block: with every end repeated, they still make one chunk."""
        width = sum(TEXT_BYTES if f.kind == "text" else f.row_bytes for f in self.fields) + len(FLAGS)
        rows = min(CHUNK_ROWS, CHUNK_BYTES // width)
        return max(2, rows) if self.episodes.finals.all() else max(1, rows // 2)


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
        """Copy rows of ``source``; with ``late`` those behind them. ``view`` allows rows that are all there as a view."""
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
        terminated = is_set(self.seen, layout.terminals, self.rows)
        timeouts = is_set(self.seen, layout.timeouts, self.rows)
        if coded:
            terminated = terminated | (self.last_steps & (self.code == TERMINATED))
            timeouts = timeouts | (self.last_steps & (self.code != TERMINATED))
        return terminated, timeouts

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
        values = self.seen[self.stretch.keys[f.name]]
        source = values.reshape(len(values), *f.shape)
        if odd := self.stretch.odd_values(f, source[: self.rows]):
            code, text, marks = odd
            rows = components(marks).any(axis=1)
            self._note(code, f"{text}, first in {f.name}", rows, count=int(np.count_nonzero(marks)))
        both = f.placement == "both"
        out = self.copy(source, late=self.stretch.layout.late and not both, view=both or not len(ends))
        if not both and len(ends):
            out[last] = None if f.kind == "text" else 0
        elif both and f.name in self.stretch.finals:
            out[last] = self.seen[self.stretch.finals[f.name]][ends].reshape(len(ends), *f.shape)
        return out.tolist() if f.kind == "text" else out.astype(f.dtype, copy=False)

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
        return EpisodeTable(length[some], end, observed, source, row), int(bounds[-1])

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
            self.notes.append(Note("open-end", text, 1, self.stretch.name))

    def _note(self, code: str, text: str, rows: BoolArray, *, count: int | None = None) -> None:
        where = np.flatnonzero(rows)
        if len(where):
            place = f"row {self.start + where[0]:,} of {self.stretch.name}"
            self.notes.append(Note(code, text, len(where) if count is None else count, place))
