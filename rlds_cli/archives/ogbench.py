"""OGBench's npz: all trajectories one after the other, each with one row more than it has steps.

::

    row              0    1    2    3    4    5    6         two trajectories, of 3 and 2 steps
    observations     o0   o1   o2   o3   o0   o1   o2        -> observation    both
    actions          a0   a1   a2   ??   a0   a1   ??        -> action         root; the last one leads nowhere: zeros
    terminals        0    0    0    1    0    0    1         -> where a trajectory ends, always by a time limit
    qpos, qvel, button_states                                -> info/<key>     both
    valids           1    1    1    0    1    1    0         the compact form; terminals are then 1 on the last two rows
    rewards, masks   of row t, where a task has relabelled   -> next/reward, next/terminated (masks == 0)

``<id>-val.npz`` holds the validation trajectories: the splits ``val`` and, of all other files, ``train``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, ArchivedStep, ArchivedValue, Part, Plan
from rlds_cli.archives.names import differences, free_name
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5_rows import components, nan_count
from rlds_cli.formats.npz import NpzFile, ZipMember, is_npz, open_npz
from rlds_cli.subset import Subset
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
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

VERSION = 1

NEEDED = ("observations", "actions", "terminals")
INFOS = ("qpos", "qvel", "button_states")
ENDS = ("terminals", "valids")
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD, "masks": FLAGS[0]}
NAMED = re.compile(r".+-v\d+(-val)?\.npz")
VAL = "-val.npz"
SCAN_ROWS = 1 << 20
MAX_METADATA = 64 << 20


@dataclass(frozen=True, slots=True)
class _Layout:
    """One file: ``columns`` maps field names to members, ``constants`` are not per row."""

    rows: int
    fields: tuple[Field, ...]
    columns: Mapping[str, str]
    constants: tuple[str, ...]


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe OGBench's files in one line; None for other files.

    Other archives have columns of the same names. An npz is OGBench's if its name ends as OGBench's do, or if it has
    ``qpos`` or ``valids``, which no other has; and if it has no flags or next observations of its own.
    """
    if not paths or not all(is_npz(p) for p in paths):
        return None
    with open_npz(paths[0]) as npz:
        there = set(npz.members)
        own = {"qpos", "valids"} & there or all(NAMED.fullmatch(p.name) for p in paths)
        if not set(NEEDED) <= there or not own or {"timeouts", "next_observations"} & there:
            return None
        rows = npz.members["observations"].shape[:1]
    files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
    return f"OGBench layout: {files}{rows[0] if rows else 0:,} rows; {', '.join(sorted(there))}"


def choose(names: Sequence[str], portion: Subset, read: object) -> tuple[Sequence[str], Subset]:
    """Choose the files of a split; only rows tell the episodes, so a range of them is cut out later."""
    splits = {n: "val" if n.endswith(VAL) else "train" for n in names if n.endswith(".npz")}
    if portion.split is None or "val" not in splits.values():
        return names, portion
    if portion.split not in splits.values():
        raise portion.no_split(("train", "val"))
    chosen = [n for n in names if splits.get(n, portion.split) == portion.split]
    return chosen, replace(portion, split=None)


def plan(archive: Archive) -> Plan:
    """Find the fields, and make one part per file. Reads the flags only.

    Raises
    ------
    UnknownLayout
        Members that are needed and not there; a rule for ends that does not apply; files that do not hold the same
        fields.
    CorruptArchive
        Columns of different lengths.
    """
    if archive.episodes_by not in (None, "flags"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: OGBench flags the last row of every trajectory.',
            hint="leave it out",
        )
    if archive.fields:
        raise UnknownLayout("OGBench's names are fixed; --map does not apply.", hint="--format plain takes any names")
    seen: list[_Layout] = []
    parts: list[Part] = []
    notes: list[Note] = []
    for index, path in enumerate(archive.files):
        with open_npz(path) as npz:
            seen.append(layout := _layout(npz))
            runs = _trajectories(npz, layout)
        steps = runs[runs > 1]
        parts.append(Part(int(steps.sum()), {"file": index, "episodes": len(steps)}))
        if len(steps) < len(runs):
            text = "trajectories of one row have no step, and are left out"
            notes.append(Note("empty-episodes", text, len(runs) - len(steps), archive.name_of(index)))
        if layout.fields != seen[0].fields:
            raise UnknownLayout(
                f"{archive.name_of(index)} and {archive.name_of(0)} do not hold the same fields: "
                + "; ".join(differences(layout.fields, seen[0].fields)),
                hint="import them one by one, each with its own name",
            )
    validation = [p.name.endswith(VAL) for p in archive.files]
    parts.sort(key=lambda p: (validation[p.args["file"]], p.args["file"]))
    return Plan(
        "ogbench",
        archive,
        seen[0].fields,
        tuple(p for p in parts if p.rows),
        episodes_by="flags",
        facts={"splits": any(validation)},
        notes=tuple(notes),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one file, in chunks of bounded size.

    Raises
    ------
    CorruptArchive
        A damaged member.
    """
    source = int(part.args["file"])
    path = plan.archive.files[source]
    size = max(2, min(CHUNK_ROWS, CHUNK_BYTES // max(1, sum(f.row_bytes for f in plan.schema))))
    with open_npz(path) as npz:
        layout = _layout(npz)
        runs = _trajectories(npz, layout)
        file = _TrajectoryFile(plan, source, layout, runs, open_end=_is_open(npz, layout))
        with npz.rows(layout.columns.values()) as rows:
            for start in range(0, layout.rows, size):
                stop = min(start + size, layout.rows)
                chunk = file.chunk(start, stop, rows.read(start, stop))
                if len(chunk):
                    yield chunk


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return the members that are not per row, below the file's name if there are several files."""
    several = len(plan.archive.files) > 1
    for index, path in enumerate(plan.archive.files):
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        with open_npz(path) as npz:
            for key in _layout(npz).constants:
                value = npz.array(key, most=MAX_METADATA)
                yield prefix + key, str(value) if value.dtype.kind in "SU" else value


class _TrajectoryFile:
    """The trajectories of one file, whose blocks of rows become chunks."""

    def __init__(self, plan: Plan, source: int, layout: _Layout, runs: IntArray, *, open_end: bool) -> None:
        self.plan, self.source, self.layout, self.runs, self.open_end = plan, source, layout, runs, open_end
        self.name = plan.archive.name_of(source)
        self.stops = np.cumsum(runs)
        self.starts = self.stops - runs
        self._terminated = False  # of the row before the next block

    def chunk(self, start: int, stop: int, seen: Mapping[str, Array]) -> Chunk:
        """Lay out rows ``start`` to ``stop`` in rows of the store."""
        ends, whole = self._marks(start, stop)
        keep = slice(None) if whole.all() else whole
        columns: dict[str, Column] = {}
        notes: list[Note] = []
        terminated = self._zero_masks(seen, stop - start)
        for f in self.plan.schema:
            if f.name in FLAGS and f.name not in self.layout.columns:
                continue
            values = seen[self.layout.columns[f.name]]
            notes += self._nan(f, values, start)
            if f.name == FLAGS[0]:
                values = terminated
            if f.placement != "both":
                values = np.where(ends.reshape(-1, *[1] * (values.ndim - 1)), values.dtype.type(0), values)
            columns[f.name] = values[keep].reshape(np.count_nonzero(whole), *f.shape)
        before = np.append(ends[1:], stop in self.stops - 1)  # the last step of each trajectory
        columns[FLAGS[1]] = (before & ~ends)[keep]
        columns.setdefault(FLAGS[0], np.zeros(len(columns[FLAGS[1]]), bool))
        steps = np.append(self._terminated, terminated[:-1])[ends & whole]  # the last of each trajectory
        self._terminated = bool(terminated[-1])
        return Chunk(columns, ends[keep], self._episodes(start, stop, steps), (*notes, *self._cut(stop)))

    def _zero_masks(self, seen: Mapping[str, Array], rows: int) -> BoolArray:
        """Mark the rows that terminate: the mask is 0, in files with masks."""
        key = self.layout.columns.get(FLAGS[0])
        return np.zeros(rows, bool) if key is None else np.asarray(seen[key].reshape(rows) == 0)

    def _marks(self, start: int, stop: int) -> tuple[BoolArray, BoolArray]:
        """Mark the rows that end a trajectory, and the rows of trajectories with steps."""
        ends, whole = np.zeros(stop - start, bool), np.ones(stop - start, bool)
        last = self.stops - 1
        inside = (last >= start) & (last < stop)
        ends[last[inside] - start] = True
        whole[last[inside & (self.runs == 1)] - start] = False
        return ends, whole

    def _episodes(self, start: int, stop: int, terminated: BoolArray) -> EpisodeTable:
        here = (self.stops > start) & (self.stops <= stop) & (self.runs > 1)
        count = int(here.sum())
        end = np.full(count, TRUNCATED, np.uint8)
        if self.open_end and stop == self.layout.rows and count and self.runs[-1] > 1:
            end[-1] = CUT
        end[terminated] = TERMINATED
        val = self.name.endswith(VAL)
        splits = {"train": np.full(count, not val), "val": np.full(count, val)} if self.plan.facts["splits"] else {}
        return EpisodeTable(
            length=self.runs[here] - 1,
            end=end,
            observed=np.ones(count, bool),
            source=np.full(count, self.source),
            row=self.starts[here],
            splits=splits,
        )

    def _cut(self, stop: int) -> Iterator[Note]:
        steps = int(self.runs[-1] - 1) if len(self.runs) else 0
        if self.open_end and stop == self.layout.rows and steps:
            yield Note("open-end", f"the last trajectory ({steps:,} steps) is cut short by the file", 1, self.name)

    def _nan(self, f: Field, values: Array, start: int) -> Iterator[Note]:
        if count := nan_count(values):
            row = start + int(np.flatnonzero(components(np.isnan(values)).any(axis=1))[0])
            yield Note("nan", f"values are NaN and kept, first in {f.name}", count, f"row {row:,} of {self.name}")


def _layout(npz: NpzFile) -> _Layout:
    members = npz.members
    missing = [key for key in NEEDED if key not in members]
    if missing:
        raise UnknownLayout(
            f"{npz.path.name} has no {', '.join(missing)}. It holds {', '.join(members)}.",
            hint="OGBench's files have observations, actions and terminals; --format plain takes others",
        )
    rows = members["observations"].shape[0] if members["observations"].shape else 0
    short = {k: list(m.shape) for k in (*NEEDED, *NAMES, *ENDS) if (m := members.get(k)) and m.shape[:1] != (rows,)}
    if short:
        raise CorruptArchive(f"{npz.path.name}: columns have different numbers of rows: {rows} and {short}.")
    columns = {name: key for key, name in NAMES.items() if key in members}
    columns |= {f"info/{key}": key for key in INFOS if key in members and members[key].shape[:1] == (rows,)}
    others = [k for k in members if k not in columns.values() and k not in ENDS]
    columns |= {free_name(k, columns): k for k in others if _per_row(members[k], rows)}
    fields = [_field(name, members[key]) for name, key in columns.items() if name not in FLAGS]
    fields += [Field(flag, "bool", (), "next") for flag in FLAGS]
    constants = tuple(k for k in others if k not in columns.values())
    return _Layout(rows, tuple(sorted(fields, key=lambda f: f.name)), columns, constants)


def _per_row(member: ZipMember, rows: int) -> bool:
    return member.shape[:1] == (rows,) and member.dtype.kind in "biufc"


def _field(name: str, member: ZipMember) -> Field:
    shape = () if name == REWARD and member.shape[1:] == (1,) else member.shape[1:]
    if member.dtype.kind not in "biufc":
        raise UnknownLayout(f"{member.name} holds {member.dtype} values; numbers are expected.")
    dtype = member.dtype.newbyteorder("=").name
    if name.startswith("next/"):
        return Field(name, dtype, shape, "next")
    return Field(name, dtype, shape, "root" if name == "action" else "both")


def _trajectories(npz: NpzFile, layout: _Layout) -> IntArray:
    """Count the rows of every trajectory, int64 [E]; rows after the last flag are a trajectory, too."""
    found = [np.zeros(0, np.int64)]
    for start, flags in _flags(npz, layout):
        found.append(np.flatnonzero(flags) + start)
    ends = np.concatenate(found)
    if layout.rows and (not len(ends) or ends[-1] != layout.rows - 1):
        ends = np.append(ends, layout.rows - 1)
    return np.diff(ends, prepend=-1).astype(np.int64)


def _is_open(npz: NpzFile, layout: _Layout) -> bool:
    """Tell whether the last row ends no trajectory."""
    *_, (_, flags) = [(0, np.ones(1, bool)), *_flags(npz, layout)]
    return not flags[-1]


def _flags(npz: NpzFile, layout: _Layout) -> Iterator[tuple[int, BoolArray]]:
    key = "valids" if "valids" in npz.members else "terminals"
    if npz.members[key].shape[1:] not in ((), (1,)) or npz.members[key].dtype.kind not in "biuf":
        raise CorruptArchive(f"{npz.path.name}: {key} is {npz.members[key].dtype} {list(npz.members[key].shape)}.")
    with npz.rows([key]) as rows:
        for start in range(0, layout.rows, SCAN_ROWS):
            values = rows.read(start, start + SCAN_ROWS)[key].reshape(-1)
            yield start, values == 0 if key == "valids" else values != 0


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step and the row after it."""
    row = place.first + place.step
    with open_npz(place.file) as npz:
        columns = _layout(npz).columns
        with npz.rows(columns.values()) as rows:
            seen = rows.read(row, row + 2)
    for name, key in columns.items():
        yield ArchivedValue(name, f"{key}[{row}]", bool(seen[key][0] == 0) if name == FLAGS[0] else seen[key][0])
        if name != "action" and not name.startswith("next/"):
            yield ArchivedValue(f"next/{name}", f"{key}[{row + 1}]", seen[key][1])
