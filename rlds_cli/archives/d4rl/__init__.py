"""D4RL's flat HDF5, and any other HDF5 file with one row per step (``--map FIELD=KEY``).

::

    observations       [N, ...]   or a group, one dataset per part       -> observation, observation/<key>
    actions            [N, ...]                                          -> action
    rewards            [N] or [N, 1], if any                             -> next/reward
    terminals          [N] or [N, 1], bool or number, if any             -> next/terminated
    timeouts           [N] or [N, 1], if any                             -> next/truncated
    next_observations  if any: final observations, and a check on ends
    infos              a group, or one flat dataset                      -> info/<key>, info
    metadata           a group, and every scalar                         -> metadata
    anything else      [N, ...]                                          -> a root field of its own name

Row t holds (o_t, a_t, r_t, d_t); the observation after the last step of an episode stands in ``next_observations`` or
nowhere. Files are read one after the other, and each ends its last episode.

Episodes end at ``terminals`` or ``timeouts`` (rule ``flags``), at ``timeouts`` only, where ``next_observations`` and
the row after differ (``jumps``), where a column changes (``field:KEY``), or nowhere (``file``). A flag inside an
episode is kept: as ``next/terminated``, and as a root field ``timeouts``.

Under every rule but ``jumps``, a next observation that is not the row after ends the episode too, and is its final
observation. If that happens at more than one step in a hundred of a part, next observations are no copies of the rows
after: they become a field of their own, ``next/observation``, and cut nothing. ``observation`` stays placed ``both``,
since the final observation is known there as well.

Files are read block by block. Every step is one row of the file; every end repeats its row, which then takes the final
observation::

    file    o0 o1 o2 o3 o4           ends at 2 and 4
    store   o0 o1 o2 n2 o3 o4 n4     n: the archive's next observation, else the observation once more
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
    once,
)
from rlds_cli.archives.d4rl import ends
from rlds_cli.archives.d4rl import ends as layouts
from rlds_cli.archives.d4rl.ends import D4RL_KEYS, DEFAULT, FlatLayout, Limits, Rule, differs, is_set, rule, scan
from rlds_cli.archives.names import differences, meaning, says_more
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import is_hdf5, open_file, reading
from rlds_cli.formats.hdf5_rows import components, nan_count
from rlds_cli.formats.tables import MISSING, Readable, Table, hdf5_table, no_rows, open_flat
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
from rlds_cli.text import is_below

VERSION = 1
choose = every_file
PART_ROWS = 1 << 19
PART_BYTES = 512 << 20
FINAL, OWN = "final", "own"
TEXT_BYTES = 64


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe files of D4RL's layout in one line; None for other files."""
    if not paths or not all(is_hdf5(p) for p in paths):
        return None
    with open_file(paths[0]) as f:
        if not {D4RL_KEYS["observation"], D4RL_KEYS["action"]} <= set(f):
            return None
        table = hdf5_table(paths[0], f)
        what = meaning(table.columns, {}, paths[0].name)
        if says_more(what) or not {k.partition("/")[0] for k in what.fields.values()} <= {*D4RL_KEYS.values()}:
            return None  # D4RL's names would not do
        try:
            found = layouts.of(table, paths[0].name, {})
        except UnknownLayout:  # observations of a row more, for one
            return None
        if _ends_without_action(table, found) or once.has_attributes(table):
            return None  # a final observation, or what arrived with it; columns of the episode table
    extras = [
        name for name, there in (("timeouts", found.timeouts), ("next_observations", found.next_columns)) if there
    ]
    files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
    return f"D4RL layout: {files}{found.rows:,} rows; " + ", ".join([f.name for f in found.fields] + extras)


def _ends_without_action(table: Table, found: FlatLayout) -> bool:
    """Tell whether the action of the last row is NaN."""
    missing = [MISSING + key for name, key in found.columns.items() if is_below(name, "action")]
    table.derive(missing)
    with table.rows(missing) as rows:
        seen = rows.read(found.rows - 1, found.rows) if found.rows else {}
    return bool(seen) and all(values.all() for values in seen.values())


def plan(archive: Archive) -> Plan:
    """Find fields, parts and ends. Reads the flags, in blocks, and the observations if jumps are found in them.

    Raises
    ------
    UnknownLayout
        A key that is needed and not there, or an episode rule that the file cannot serve.
    CorruptArchive
        Columns of different lengths, files of one archive that do not agree, damage.
    """
    notes: list[Note] = []
    seen: list[FlatLayout] = []
    spans: list[list[tuple[int, int, int]]] = []
    limits: list[Limits] = []
    dtypes: dict[str, str] = {}
    for index, path in enumerate(archive.files):
        with open_flat(path) as f:
            found = layouts.of(f, path.name, archive.fields)
            by = rule(archive.episodes_by, found, f, path)
            spans.append(_spans(found, scan(path, f, by), by))
            dtypes |= _flag_dtypes(f, found)
        seen.append(found)
        limits.append(by.limits)
        notes += [*found.notes, *([] if found.rows else [Note("empty-file", "has no rows", 1, archive.name_of(index))])]
    if not any(s.rows for s in seen):
        raise no_rows(archive.name_of(0))
    mode = None if not any(s.next_columns for s in seen) else FINAL if all(map(_can_cut, seen)) else OWN
    schema = _schema(archive, seen, mode, archive.episodes_by or DEFAULT)
    facts = {"next_observations": mode, "flags": dtypes, **({"jumps": limits} if any(limits) else {})}
    return Plan(
        "d4rl", archive, schema, _parts(spans, mode), archive.episodes_by or DEFAULT, facts=facts, notes=tuple(notes)
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part, in chunks of bounded size however long the episodes are.

    Raises
    ------
    Replan
        Next observations differ from the rows after throughout.
    CorruptArchive
        A damaged chunk of the file.
    """
    archive, source = plan.archive, int(part.args["file"])
    path = archive.files[source]
    with open_flat(path, check=False) as f:
        found = layouts.of(f, path.name, archive.fields)
        limits = plan.facts["jumps"][source] if "jumps" in plan.facts else None
        by = rule(archive.episodes_by, found, f, path, limits=limits)
        try:
            yield from stretch_chunks(f, _stretch(plan, part, by, found))
        except NextValuesDiffer:
            raise Replan(with_own_next(plan, found)) from None


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return policy weights, other constants and attributes, below the file's name if there are several files."""
    several = len(plan.archive.files) > 1
    for index, path in enumerate(plan.archive.files):
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        with open_flat(path, check=False) as f, reading(path, "its metadata"):
            for name, value in f.constants(layouts.of(f, path.name, plan.archive.fields).metadata):
                yield prefix + name, value


def _flag_dtypes(f: Table, found: FlatLayout) -> dict[str, str]:
    """Record the dtype of each flag of a file under D4RL's name, which D4RL's own helpers go by."""
    keys = {"terminals": found.terminals, "timeouts": found.timeouts}
    return {name: str(f[key].dtype) for name, key in keys.items() if key}


def _can_cut(found: FlatLayout) -> bool:
    return not found.next_columns or found.comparable


def _schema(archive: Archive, seen: Sequence[FlatLayout], mode: str | None, by: str) -> tuple[Field, ...]:
    schemas = [_file_schema(s, mode, by) for s in seen]
    for index, schema in enumerate(schemas):
        if schema != schemas[0]:
            raise CorruptArchive(
                f"{archive.name_of(index)} and {archive.name_of(0)} do not hold the same fields: "
                + "; ".join(differences(schema, schemas[0])),
                hint="import them one by one, each with its own name",
            )
    return schemas[0]


def _file_schema(found: FlatLayout, mode: str | None, by: str) -> tuple[Field, ...]:
    fields = [*found.fields, *layouts.flag_fields()]
    if mode == OWN:
        fields += found.own_next
    if found.timeouts_field and by not in ("flags", "timeouts"):
        fields.append(found.timeouts_field)
    return tuple(sorted(fields, key=lambda f: f.name))


def _spans(found: FlatLayout, ends: IntArray, by: Rule) -> list[tuple[int, int, int]]:
    """Divide a file into parts of about one size, of whole episodes: (first row, end row, episodes)."""
    if not found.rows:
        return []
    width = sum(f.row_bytes for f in found.fields)
    known = by.kind != "jumps" or bool(by.limits)
    wanted = 1 if not known else -(-found.rows // max(1, min(PART_ROWS, PART_BYTES // max(width, 1))))
    marks = np.linspace(0, found.rows, wanted + 1)[1:].astype(np.int64)
    stops = np.unique(np.searchsorted(ends, marks - 1))
    starts = np.concatenate([[0], stops[:-1] + 1])
    return [
        (int(ends[a - 1] + 1) if a else 0, int(ends[b] + 1), int(b - a + 1)) for a, b in zip(starts, stops, strict=True)
    ]


def _parts(spans: Sequence[Sequence[tuple[int, int, int]]], mode: str | None) -> tuple[Part, ...]:
    return tuple(
        Part(
            None if mode == FINAL else stop - start + episodes,
            {"file": index, "start": start, "stop": stop, "episodes": episodes},
        )
        for index, file_spans in enumerate(spans)
        for start, stop, episodes in file_spans
    )


def _stretch(plan: Plan, part: Part, by: Rule, found: FlatLayout) -> Stretch:
    source, start, stop = (int(part.args[k]) for k in ("file", "start", "stop"))
    keys = {**found.columns, **{f"next/{name}": key for name, key in found.next_columns.items()}}
    if found.timeouts_field and found.timeouts:
        keys[found.timeouts_field.name] = found.timeouts
    fields = tuple(f for f in plan.schema if f.name not in FLAGS)
    cuts = plan.facts["next_observations"] == FINAL and found.recorded
    single_steps = max_cuts(stop - start - int(part.args["episodes"]))
    return Stretch(
        path=plan.archive.files[source],
        name=plan.archive.name_of(source),
        source=source,
        start=start,
        stop=stop,
        rule=by,
        fields=fields,
        keys={f.name: keys[f.name] for f in fields},
        finals=found.next_columns if found.recorded else {},
        cuts=cuts,
        max_cuts=single_steps if cuts and by.kind != "jumps" else None,
    )


def max_cuts(pairs: int) -> int:
    """Return how many of ``pairs`` may differ and still be single steps: 1 %, at least 16, at most a third."""
    return max(pairs // 100, min(16, -(-pairs // 3)))


def with_own_next(plan: Plan, found: FlatLayout) -> Plan:
    """Change a plan to keep next observations as a field of their own."""
    schema = tuple(sorted([*plan.schema, *found.own_next], key=lambda f: f.name))
    parts = tuple(
        replace(p, rows=int(p.args["stop"]) - int(p.args["start"]) + int(p.args["episodes"])) for p in plan.parts
    )
    note = Note(
        "next-observation",
        "next observations differ from the next rows throughout: kept as a separate field",
        1,
        "if episodes end there unflagged: --episodes-by jumps",
    )
    return replace(
        plan,
        schema=schema,
        parts=parts,
        facts={**plan.facts, "next_observations": OWN},
        notes=(*plan.notes, note),
    )


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step; next observations are in their own columns, or else in the row after it."""
    row = place.first + place.step
    with open_file(place.file, check=False) as f:
        found = ends.of(f, place.name, place.fields)
        for field, key in found.columns.items():
            yield ArchivedValue(field, f"{key}[{row}]", f[key][row])
        if found.terminals:
            flag = f[found.terminals][row]
            yield ArchivedValue(FLAGS[0], f"{found.terminals}[{row}]", (flag != 0) & (flag == flag))  # NaN is not set
        for field, key in found.next_columns.items():
            yield ArchivedValue(f"next/{field}", f"{key}[{row}]", f[key][row])
        if not found.next_columns and not place.is_last:
            observations = (n for n in found.columns if n.split("/")[0] == "observation")
            for field in observations:
                key = found.columns[field]
                yield ArchivedValue(f"next/{field}", f"{key}[{row + 1}]", f[key][row + 1])


class NextValuesDiffer(Exception):
    """Next observations differ from the rows after at more than single steps."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows ``start`` to ``stop`` of a file, whole episodes, and how they are read.

    ``keys`` maps the fields to columns of the file, ``finals`` observation fields to the columns that hold the final
    observations. ``cuts`` ends episodes where these differ from the row after, at most ``max_cuts`` times (None: any
    number of times).
    """

    path: Path
    name: str
    source: int
    start: int
    stop: int
    rule: Rule
    fields: tuple[Field, ...]
    keys: Mapping[str, str]
    finals: Mapping[str, str]
    cuts: bool
    max_cuts: int | None

    @property
    def columns(self) -> set[str]:
        """All columns of the file that are read."""
        return {*self.keys.values(), *self.finals.values()} | self.rule.keys

    @property
    def block_rows(self) -> int:
        """Rows of the file in one block: twice as many, with every one an end, still make one chunk."""
        width = sum(TEXT_BYTES if f.kind == "text" else f.row_bytes for f in self.fields) + len(FLAGS)
        return max(1, min(CHUNK_ROWS, CHUNK_BYTES // width) // 2)


def stretch_chunks(f: Readable, stretch: Stretch) -> Iterator[Chunk]:
    """Read the rows of a stretch, in order.

    Raises
    ------
    NextValuesDiffer
        There are more than ``max_cuts`` mismatches between next observations and the rows after.
    """
    size, total, cuts, first = stretch.block_rows, stretch.rule.layout.rows, 0, stretch.start
    with f.rows(sorted(stretch.columns)) as reader:
        for start in range(stretch.start, stretch.stop, size):
            stop = min(start + size, stretch.stop)
            block = _Block(stretch, start, stop, reader.read(start, min(stop + 1, total)))
            cuts += block.cut() if stretch.cuts else 0
            if stretch.max_cuts is not None and cuts > stretch.max_cuts:
                raise NextValuesDiffer
            chunk = block.chunk(first)
            if len(chunk.episodes):
                first = int(chunk.episodes.row[-1] + chunk.episodes.length[-1])
            yield chunk


class _Block:
    """Some rows of a stretch, with the row after them if there is one."""

    def __init__(self, stretch: Stretch, start: int, stop: int, seen: Mapping[str, Array]) -> None:
        layout = stretch.rule.layout
        self.stretch, self.start, self.rows, self.seen = stretch, start, stop - start, seen
        self.ends = stretch.rule.ends(seen, self.rows, last=stop == layout.rows)
        self.terminated = is_set(seen, layout.terminals, self.rows)
        self.timeouts = is_set(seen, layout.timeouts, self.rows)
        self.notes: list[Note] = []

    def cut(self) -> int:
        """End episodes where the next observation is not the row after; return how many end so."""
        jumps = np.zeros(self.rows, bool)
        for name, key in self.stretch.finals.items():
            jumps |= self._jumps(self.seen[self.stretch.keys[name]], self.seen[key])
        jumps &= ~self.ends
        self.ends |= jumps
        if self.stretch.max_cuts is not None:
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

    def chunk(self, first: int) -> Chunk:
        """Lay out the block in rows of the store; the open episode starts at row ``first`` of the file."""
        ends = np.flatnonzero(self.ends)
        index = np.repeat(np.arange(self.rows), self.ends + 1)
        last = np.zeros(len(index), bool)
        last[ends + np.arange(len(ends)) + 1] = True
        columns = {f.name: self._column(f, ends, index, last) for f in self.stretch.fields}
        cut = self.ends & ~self.terminated & ~self.timeouts
        for name, flag in zip(FLAGS, (self.terminated, self.ends & self.timeouts | cut), strict=True):
            columns[name] = flag[index] & ~last
        table = self._episodes(first, ends)
        self._report(cut, table)
        return Chunk(columns, last, table, tuple(self.notes))

    def _column(self, f: Field, ends: IntArray, index: IntArray, last: BoolArray) -> Column:
        source = self.seen[self.stretch.keys[f.name]][: self.rows].reshape(self.rows, *f.shape)
        self._count_nan(f, source)
        out = source.take(index, axis=0)
        if f.placement != "both":
            out[last] = None if f.kind == "text" else 0
        elif f.name in self.stretch.finals:
            out[last] = self.seen[self.stretch.finals[f.name]][ends].reshape(len(ends), *f.shape)
        return out.tolist() if f.kind == "text" else out.astype(f.dtype, copy=False)

    def _episodes(self, first: int, ends: IntArray) -> EpisodeTable:
        stops = self.start + ends + 1
        starts = np.concatenate([[first], stops[:-1]])[: len(ends)].astype(np.int64)
        return EpisodeTable(
            length=stops - starts,
            end=np.where(self.terminated[ends], TERMINATED, np.where(self.timeouts[ends], TRUNCATED, CUT)),
            observed=np.full(len(ends), bool(self.stretch.finals)),
            source=np.full(len(ends), self.stretch.source),
            row=starts,
        )

    def _report(self, cut: BoolArray, table: EpisodeTable) -> None:
        self._note("terminated-inside", "steps are terminated inside an episode", self.terminated & ~self.ends)
        flagged = self.stretch.rule.kind in ("flags", "timeouts")  # else no end has a flag
        if flagged and self.start + self.rows == self.stretch.rule.layout.rows and cut[-1:].any():
            text = f"the last episode ({table.length[-1]:,} steps) is cut short by the file"
            self.notes.append(Note("open-end", text, 1, self.stretch.name))

    def _count_nan(self, f: Field, source: Array) -> None:
        if count := nan_count(source):
            rows: BoolArray = np.asarray(components(np.isnan(source)).any(axis=1))
            self._note("nan", f"values are NaN and kept, first in {f.name}", rows, count=count)

    def _note(self, code: str, text: str, rows: BoolArray, *, count: int | None = None) -> None:
        where = np.flatnonzero(rows)
        if len(where):
            place = f"row {self.start + where[0]:,} of {self.stretch.name}"
            self.notes.append(Note(code, text, len(where) if count is None else count, place))
