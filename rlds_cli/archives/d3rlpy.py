"""d3rlpy's HDF5: the flat files of version 1, and the dumps of version 2.

The second format, ``ReplayBuffer.dump``, has a dataset per column and episode.

::

    version        "2.1"
    columns        ["observations", "actions", "rewards", "terminated"]
    num_episodes   E
    observations_<i>      [T, ...]    -> observation;  observations_<i>_<j>, of a tuple, -> observation/<j>
    actions_<i>           [T, ...]    -> action
    rewards_<i>           [T, 1]      -> next/reward
    terminated_<i>        bool        -> how the episode ends: terminated, else truncated
    any other column      [T, ...]    -> a root field of its own name

The observation after the last step is not recorded: ``Episode.transition_count`` counts T steps of an episode that
terminated, and T-1 of another.

The first format has flat columns; an episode that terminated has one more row, which is padding.

::

    row                 0    1    2    3    4    5    6         an episode that terminated, and one that timed out
    observations        o0   o1   o2   o3   o0   o1   o2        o3 is the final observation
    actions, rewards    a0   a1   a2   ??   a0   a1   a2        row 3 is padding; row 6 is a step like any other
    terminals           0    0    1    1    0    0    0         on the last two rows
    episode_terminals   0    0    0    1    0    0    1

An episode that timed out has no padding: the reward of its last row is that of its own observation and action, and the
observation after it is not recorded. Older files have no ``episode_terminals``: episodes end at ``terminals``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, ArchivedStep, ArchivedValue, Part, Plan, every_file
from rlds_cli.archives.names import differences, free_name, row_field
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import attributes, datasets, is_hdf5, open_file, plain, reading, whole
from rlds_cli.formats.hdf5_rows import RowReader
from rlds_cli.ted import (
    CUT,
    FLAGS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    BoolArray,
    Chunk,
    EpisodeData,
    Field,
    IntArray,
    Note,
    chunks,
    flags,
)
from rlds_cli.text import is_below

VERSION = 1
choose = every_file
PART_ROWS = 1 << 17
PART_BYTES = 256 << 20
MARKS = ("columns", "num_episodes", "version")
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD}
# Version 2: the column of ends, the version that is read, and observations of one step.
END = "terminated"
KNOWN = "2.1"
MAX_TUPLE = 256
# Version 1: the columns that a file must have, and the column of ends.
NEEDED = ("observations", "actions", "rewards", "terminals")
ENDS = "episode_terminals"


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe d3rlpy's files in one line; None for other files."""
    if not paths or not all(is_hdf5(p) for p in paths):
        return None
    with open_file(paths[0]) as f:
        files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
        if is_buffer(f):
            return f"d3rlpy layout (version 2): {files}{count(f):,} episodes"
        if is_flat(f):
            return f"d3rlpy layout (version 1): {files}{layout(f, paths[0].name).rows:,} rows"
    return None


def plan(archive: Archive) -> Plan:
    """Find the fields and parts. Reads the flags of flat files, and no bulk data.

    Raises
    ------
    UnknownLayout
        A version that is not known; a rule for ends, or a mapping, that does not apply; files that do not hold the
        same fields.
    CorruptArchive
        Columns of different lengths.
    """
    if archive.episodes_by is not None or archive.fields:
        raise UnknownLayout(
            "d3rlpy's files define their own fields and ends of episodes: --map and --episodes-by do not apply.",
            hint="--format d4rl reads flat files with these options",
        )
    schemas: list[tuple[Field, ...]] = []
    parts: list[Part] = []
    notes: list[Note] = []
    versions = set()
    for index, path in enumerate(archive.files):
        with open_file(path) as f:
            version = 2 if is_buffer(f) else 1
            versions.add(version)
            schemas.append(fields(f, path.name) if version == 2 else layout(f, path.name).fields)
            lengths = _lengths(f, path, version)
        parts += _parts(index, lengths, schemas[-1])
        if empty := sum(n < 1 for n in lengths):
            notes.append(Note("empty-episodes", "episodes without steps were left out", empty, archive.name_of(index)))
        if schemas[-1] != schemas[0]:
            raise UnknownLayout(
                f"{archive.name_of(index)} and {archive.name_of(0)} do not hold the same fields: "
                + "; ".join(differences(schemas[-1], schemas[0])),
                hint="import them one by one, each with its own name",
            )
    facts = {"d3rlpy": sorted(versions)}
    return Plan("d3rlpy", archive, schemas[0], tuple(parts), episodes_by="flags", facts=facts, notes=tuple(notes))


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the episodes of one part, several to a chunk.

    Raises
    ------
    CorruptArchive
        A damaged chunk of the file, or an episode that does not fit the others.
    """
    source, first, stop = (int(part.args[k]) for k in ("file", "first", "stop"))
    path = plan.archive.files[source]
    budget = max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, sum(f.row_bytes for f in plan.schema))))
    with open_file(path, check=False) as f:
        if is_buffer(f):
            todo = [i for i, n in enumerate(lengths(f, path.name)) if first <= i < stop and n]
            found: Iterator[EpisodeData] = (_dumped_episode(f, path, plan.schema, source, i) for i in todo)
        else:
            found = _flat_episodes(f, path, plan.schema, source, (first, stop), budget)
        yield from chunks(plan.schema, found, rows=CHUNK_ROWS)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return the version, the kind of actions and attributes, below the file's name if there are several files."""
    several = len(plan.archive.files) > 1
    for index, path in enumerate(plan.archive.files):
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        with open_file(path, check=False) as f, reading(path, "its metadata"):
            for name, value in _constants(f, path.name):
                yield prefix + name, value


def _constants(f: h5py.File, name: str) -> Iterator[tuple[str, Array | str]]:
    yield from attributes(f)
    if is_buffer(f):
        yield from constants(f, name).items()
        return
    for key in layout(f, name).constants:
        if (value := plain(f[key])) is not None:
            yield key, value


def _lengths(f: h5py.File, path: Path, version: int) -> list[int]:
    if version == 2:
        return lengths(f, path.name)
    with reading(path, "its flags"):
        return [int(n) for n in episodes(f, path, layout(f, path.name).rows).length]


def _parts(source: int, lengths: Sequence[int], schema: Sequence[Field]) -> Iterator[Part]:
    """Divide the episodes, in their order, into parts of about the same size."""
    limit = max(1, min(PART_ROWS, PART_BYTES // max(1, sum(f.row_bytes for f in schema))))
    first, rows, count = 0, 0, 0
    for i, n in enumerate(lengths):
        rows, count = rows + (n + 1 if n else 0), count + bool(n)
        if (rows >= limit or i == len(lengths) - 1) and rows:
            yield Part(rows, {"file": source, "first": first, "stop": i + 1, "episodes": count})
            first, rows, count = i + 1, 0, 0


def is_buffer(f: h5py.File) -> bool:
    """Tell whether a file is of the second format."""
    return set(MARKS) <= set(f)


def columns(f: h5py.File, name: str, episode: int) -> dict[str, str]:
    """Map field names to the datasets of one episode of the file called ``name``.

    Raises
    ------
    UnknownLayout
        An older version, or no observations or actions.
    CorruptArchive
        A column is not there.
    """
    version = _text(whole(f["version"]))
    if version != KNOWN:
        raise UnknownLayout(
            f"{name} is of version {version[:40]} of d3rlpy's format; 2.1 and the flat files of d3rlpy 1 are read.",
            hint="load it with the d3rlpy that wrote it, and dump it with a newer one",
        )
    found: dict[str, str] = {}
    for column in map(_text, np.ravel(whole(f["columns"]))):
        key, field = f"{column}_{episode}", NAMES.get(column, column)
        parts = [f"{key}_{j}" for j in range(MAX_TUPLE) if f"{key}_{j}" in f] if key not in f else []
        if key not in f and not parts:
            raise CorruptArchive(f"{name}: {key} is not there, though {whole(f['num_episodes'])} episodes are.")
        found |= {f"{field}/{j}": part for j, part in enumerate(parts)} if parts else {field: key}
    for needed in ("observation", "action"):
        if not any(is_below(n, needed) for n in found):
            raise UnknownLayout(f"{name} has no {needed}s.")
    return found


def fields(f: h5py.File, name: str) -> tuple[Field, ...]:
    """Return the fields of the first episode."""
    found = columns(f, name, 0) if count(f) else {}
    made = [row_field(n, f[k], scalar=n == REWARD) for n, k in found.items() if n != END]
    made += [Field(flag, "bool", (), "next") for flag in FLAGS]
    return tuple(sorted(made, key=lambda x: x.name))


def count(f: h5py.File) -> int:
    """Return the number of episodes that a file states."""
    return int(whole(f["num_episodes"]))


def lengths(f: h5py.File, name: str) -> list[int]:
    """Count the steps of every episode.

    Raises
    ------
    CorruptArchive
        Fewer episodes than the file says.
    """
    found = []
    for i in range(count(f)):
        d = f.get(f"actions_{i}")
        if not isinstance(d, h5py.Dataset) or not d.shape:
            raise CorruptArchive(f"{name}: actions_{i} is not there, though {count(f)} episodes are.")
        found.append(int(d.shape[0]))
    return found


def _dumped_episode(f: h5py.File, path: Path, schema: Sequence[Field], source: int, i: int) -> EpisodeData:
    keys = columns(f, path.name, i)
    known = {x.name: x for x in schema}
    values: dict[str, Any] = {}
    for name, key in keys.items():
        if name == END:
            continue
        made = row_field(name, f[key], scalar=name == REWARD)
        if known.get(name) != made:
            raise CorruptArchive(
                f"{path.name}: {key} is {made.dtype} {list(made.shape)}, unlike that of other episodes."
            )
        with reading(path, key):
            values[name] = whole(f[key]).reshape(len(f[key]), *made.shape)
    length = len(f[f"actions_{i}"])
    end = TERMINATED if END in keys and bool(np.all(whole(f[keys[END]]))) else TRUNCATED
    return EpisodeData(values | flags(length, end), length, end, source=source, group=f"episode_{i}")


def constants(f: h5py.File, name: str) -> Mapping[str, str]:
    """Return the values that are not per row."""
    return {"version": _text(whole(f["version"]))}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True)
class D3rlpyLayout:
    """One file: ``columns`` maps fields to keys, ``constants`` are the keys that are not per row."""

    rows: int
    fields: tuple[Field, ...]
    columns: Mapping[str, str]
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlatEpisodes:
    """The episodes of a file: first rows, steps T, ends, and whether one more row holds the final observation."""

    start: IntArray
    length: IntArray
    end: IntArray
    observed: BoolArray

    def __len__(self) -> int:
        return len(self.length)


def is_flat(f: h5py.File) -> bool:
    """Tell whether a file is of the first format, which alone has these columns."""
    return set(NEEDED) <= set(f) and (ENDS in f or {"discrete_action", "version"} <= set(f))


def layout(f: h5py.File, name: str) -> D3rlpyLayout:
    """Assign the datasets of the file called ``name`` to fields.

    Raises
    ------
    CorruptArchive
        Columns of different lengths.
    """
    found = datasets(f)
    core = [k for k in (*NEEDED, ENDS) if k in found]
    lengths = {k: found[k].shape[0] if found[k].shape else 0 for k in core}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{k} {n}" for k, n in lengths.items())
        raise CorruptArchive(f"{name}: columns have different numbers of rows: {listed}.")
    rows = lengths["actions"]
    columns = {field: key for key, field in NAMES.items()}
    others = [k for k, d in found.items() if k not in core and d.shape and d.shape[0] == rows]
    columns |= {free_name(k, {*columns, *FLAGS}): k for k in others}
    fields = [row_field(n, found[k], scalar=n == REWARD) for n, k in columns.items()]
    fields += [Field(flag, "bool", (), "next") for flag in FLAGS]
    constants = tuple(k for k in found if k not in core and k not in others)
    return D3rlpyLayout(rows, tuple(sorted(fields, key=lambda x: x.name)), columns, constants)


def episodes(f: h5py.File, path: Path, rows: int) -> FlatEpisodes:
    """Find the episodes of a file; reads the flags.

    ``length`` is 0 for an episode that is nothing but padding.
    """
    keys = [k for k in ("terminals", ENDS) if k in f]
    with RowReader(path, {k: f[k] for k in keys}) as reader:
        seen = {k: v.reshape(-1) != 0 for k, v in reader.read(0, rows).items()}
    terminal = seen["terminals"]
    # Without marks of its own an episode ends at the last of the flagged rows.
    marks = seen[ENDS] if ENDS in seen else terminal & ~np.append(terminal[1:], False)
    last = np.flatnonzero(marks)
    flagged = np.ones(len(last), bool)
    if rows and (not len(last) or last[-1] != rows - 1):
        last, flagged = np.append(last, rows - 1), np.append(flagged, False)
    start = np.concatenate([[0], last[:-1] + 1]).astype(np.int64)[: len(last)]
    padded: BoolArray = terminal[last] & terminal[np.maximum(last - 1, 0)] & (last > start)
    end = np.where(terminal[last], TERMINATED, np.where(flagged, TRUNCATED, CUT))
    return FlatEpisodes(start, last + 1 - start - padded, end, padded)


def _flat_episodes(
    f: h5py.File, path: Path, fields: Sequence[Field], source: int, span: tuple[int, int], budget: int
) -> Iterator[EpisodeData]:
    """Read episodes ``span[0]`` to ``span[1]``, about ``budget`` rows at a time.

    Raises
    ------
    CorruptArchive
        A damaged chunk of the file.
    """
    columns = layout(f, path.name).columns
    found = episodes(f, path, layout(f, path.name).rows)
    with RowReader(path, {k: f[k] for k in columns.values()}) as reader:
        for first, stop in _groups(found, *span, budget):
            at = int(found.start[first])
            seen = reader.read(at, int(found.start[stop - 1] + found.length[stop - 1] + found.observed[stop - 1]))
            for i in range(first, stop):
                if found.length[i]:
                    yield _flat_episode(found, i, seen, columns, fields, source, at)


def _groups(found: FlatEpisodes, first: int, stop: int, budget: int) -> Iterator[tuple[int, int]]:
    start, rows = first, 0
    for i in range(first, stop):
        rows += int(found.length[i]) + 1
        if rows >= budget or i == stop - 1:
            yield start, i + 1
            start, rows = i + 1, 0


def _flat_episode(
    found: FlatEpisodes,
    i: int,
    seen: Mapping[str, Array],
    columns: Mapping[str, str],
    fields: Sequence[Field],
    source: int,
    at: int,
) -> EpisodeData:
    a, length = int(found.start[i]) - at, int(found.length[i])
    kept = {f.name: length + (int(found.observed[i]) if f.placement == "both" else 0) for f in fields}
    shapes = {f.name: f.shape for f in fields}
    values = {n: seen[k][a : a + kept[n]].reshape(kept[n], *shapes[n]) for n, k in columns.items()}
    end = int(found.end[i])
    return EpisodeData(values | flags(length, end), length, end, source=source, row=int(found.start[i]))


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step, and the observation of the row after it."""
    with open_file(place.file, check=False) as f:
        if is_buffer(f):
            keys = columns(f, place.name, int(place.group.removeprefix("episode_")))
            keys.pop(END, None)
            yield from _row(f, keys, place.step, after=not place.is_last)
            return
        row = place.first + place.step
        padded = (
            place.is_last and row + 1 < len(f["terminals"]) and bool(f["terminals"][row] and f["terminals"][row + 1])
        )
        yield from _row(f, layout(f, place.name).columns, row, after=padded or not place.is_last)
        yield ArchivedValue(FLAGS[0], f"terminals[{row}]", bool(f["terminals"][row]))


def _row(f: h5py.File, keys: Mapping[str, str], row: int, *, after: bool) -> Iterator[ArchivedValue]:
    for name, key in keys.items():
        yield ArchivedValue(name, f"{key}[{row}]", f[key][row])
        if after and name.split("/")[0] == "observation":
            yield ArchivedValue(f"next/{name}", f"{key}[{row + 1}]", f[key][row + 1])
