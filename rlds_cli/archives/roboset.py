"""RoboHive's HDF5: one group per trial, several files (seeds) per archive; and RoboSet's, recorded from hardware.

Every trial is an episode; ``trials`` says which dataset is what, ``conventions`` what a row means. ``done`` becomes
``next/terminated``; a trial that ends without it is cut. In a trace the reward and ``done`` of row 0 came before any
step, and have no place.

What a row of a trial means: RoboHive's recorders disagree, and their files do not say.

::

    trace   (o_t, a_t) with the reward, done and infos on arrival at o_t; a last row with a NaN action: T = h - 1 steps,
            T+1 observations and infos; next/reward of step t is row t+1's
    path    (o_t, a_t, r_t, done_t) and the infos after the step: T = h, no final observation, next/info/...
    demo    (o_t, a_t, r_t, done_t) and the infos before it: T = h, no final observation, info/...

A trial whose last action is NaN is a trace. Else ``env_infos/obs_dict``, which holds the pieces of an observation,
equals the observations of the row after (path) or of the same row (demo).

Single values of a trial, for `rlds verify --trace`.

Trials as TED rows: several short ones to a chunk, a long one in pieces.

Trials of a file, and what each of their datasets is.

::

    RoboHive                                     RoboSet (hardware)
    Trial<k>/observations   [h, ...] or group    Trial<k>/data/{qp,qv,tau,rgb,d,...}_*  -> observation/<key>
             actions        [h, ...]                      data/ctrl_*                   -> action/<key>
             rewards        [h]                           data/time                     -> time
             done           [h]                           data/user*                    -> info/<key>
             time           [h]                           derived/*                     -> info/derived/<key>
             env_infos/*    [h, ...] -> info/<key>        config/*                      -> metadata
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, ArchivedStep, ArchivedValue, Part, Plan, every_file
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import (
    attributes,
    datasets,
    differences,
    expand,
    free_name,
    is_hdf5,
    is_observation,
    keys_found,
    open_file,
    plain,
    reading,
    row_field,
)
from rlds_cli.formats.hdf5_rows import components, nan_count
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, Array, BoolArray, Chunk, Column, EpisodeTable, Field, Note
from rlds_cli.text import natural

VERSION = 1
choose = every_file
PART_ROWS = 1 << 17
PART_BYTES = 256 << 20
TEXT_BYTES = 64


def recognise(paths: Sequence[Path]) -> str | None:
    """RoboHive's or RoboSet's layout in one line, or None."""
    if not paths or not all(is_hdf5(p) for p in paths):
        return None
    with open_file(paths[0]) as f:
        schema, count = schema_of(f), len(names(f))
    files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
    return f"{schema} layout: {files}{count:,} trials" if schema else None


def plan(archive: Archive) -> Plan:
    """Fields, parts and row conventions. Reads a few rows of every trial.

    Raises
    ------
    UnknownLayout
        No trials, or no observations or actions in them; a rule for ends that does not apply; trials or files that
        do not hold the same fields, or follow conventions that do not go together.
    CorruptArchive
        Columns of a trial have different lengths.
    """
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: every trial of a RoboHive archive is an episode.',
            hint="leave it out",
        )
    found, said, notes = _look(archive)
    chance = by_chance([t for of_file in found.values() for t in of_file]) - {*archive.fields.values()}
    found = {name: [without(t, chance) for t in of_file] for name, of_file in found.items()} if chance else found
    schema = _same_fields(found)
    rows, guesses = settle(said, infos=any(name.startswith("info/") for name in schema))
    convention = next((c for c in (TRACE, PATH) if c in rows.values()), DEMO)
    fields = sorted((placed(x, convention) for x in schema.values()), key=lambda x: x.name)
    width = sum(x.row_bytes for x in fields)
    episodes = {name: _lengths(of_file, rows[name]) for name, of_file in found.items()}
    empty = [f"{group} of {name}" for name, lengths in episodes.items() for group, n in lengths.items() if n < 1]
    if empty:
        notes.append(Note("empty-episodes", "episodes without steps were left out", len(empty), empty[0]))
    return Plan(
        reader="roboset",
        archive=archive,
        schema=tuple(fields),
        parts=tuple(p for i, lengths in enumerate(episodes.values()) for p in _parts(i, lengths, width)),
        episodes_by="file",
        facts={
            "rows": rows,
            "constants": sorted({c for of_file in found.values() for t in of_file for c in t.constants}),
        },
        notes=(*notes, *guesses),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The rows of one part, in chunks of bounded size however long the trials are.

    Raises
    ------
    CorruptArchive
        A damaged chunk of the file.
    """
    source, groups = int(part.args["file"]), part.args["trials"]
    path, name = plan.archive.files[source], plan.archive.name_of(source)
    width = sum(TEXT_BYTES if x.kind == "text" else x.row_bytes for x in plan.schema)
    budget = max(2, min(CHUNK_ROWS, CHUNK_BYTES // max(width, 1)))
    with open_file(path, check=False) as f:
        columns = trial(f, path.name, groups[0], plan.archive.fields).columns
        keys = {x.name: key for x in plan.schema if (key := columns.get(unplaced(x.name)))}
        episodes = [
            Episode(group, int(length), plan.facts["rows"][name], keys)
            for group, length in zip(groups, part.args["lengths"], strict=True)
        ]
        for todo in pieces(episodes, budget):
            yield chunk(f, source, plan.schema, todo)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """What is not per row, and attributes, by trial; below the file's name where there are several files."""
    several = len(plan.archive.files) > 1
    for index, path in enumerate(plan.archive.files):
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        with open_file(path, check=False) as f, reading(path, "its metadata"):
            for name, value in _constants(f, plan.facts["constants"]):
                yield prefix + name, value


def _constants(f: h5py.File, keys: Sequence[str]) -> Iterator[tuple[str, Array | str]]:
    yield from attributes(f)
    for group in names(f):
        yield from ((f"{group}/{name}", value) for name, value in attributes(f[group]))
        for key in keys:
            d = f[group].get(key)
            if isinstance(d, h5py.Dataset) and (value := plain(d)) is not None:
                yield f"{group}/{key}", value


def _look(archive: Archive) -> tuple[dict[str, list[Trial]], dict[str, str | None], list[Note]]:
    """The trials of every file, the convention that each file follows, and what is odd about it."""
    found: dict[str, list[Trial]] = {}
    said: dict[str, str | None] = {}
    notes: list[Note] = []
    for index, path in enumerate(archive.files):
        name = archive.name_of(index)
        with open_file(path) as f:
            found[name] = [*trials(f, path.name, archive.fields)]
            with reading(path, "the last rows"):
                said[name], odd = of_file(f, found[name])
        if odd:
            text = "trials of a trace end with an action; its outcome is not recorded, and it is left out"
            notes.append(Note("last-action", text, len(odd), f"{odd[0]} of {name}"))
    return found, said, notes


def _same_fields(found: Mapping[str, Sequence[Trial]]) -> dict[str, Field]:
    """The fields that every trial has."""
    first_name, first = next((name, of_file[0]) for name, of_file in found.items())
    for name, of_file in found.items():
        for t in of_file:
            if (t.fields, t.columns) != (first.fields, first.columns):
                raise UnknownLayout(
                    f"{name}: {t.group} does not hold the fields of {first.group} of {first_name}: "
                    + "; ".join(differences(t.fields.values(), first.fields.values())),
                    hint="import files that agree, each under a name of its own",
                )
    return {**first.fields, **{flag: Field(flag, "bool", (), "next") for flag in FLAGS}}


def _lengths(of_file: Sequence[Trial], convention: str) -> dict[str, int]:
    return {t.group: t.rows - (convention == TRACE) for t in of_file}


def _parts(source: int, lengths: Mapping[str, int], width: int) -> Iterator[Part]:
    """Trials in their order, shared out to parts of about one size."""
    limit = max(1, min(PART_ROWS, PART_BYTES // max(width, 1)))
    groups: list[str] = []
    rows = 0
    todo = [group for group, length in lengths.items() if length > 0]
    for group in todo:
        groups.append(group)
        rows += lengths[group] + 1
        if rows >= limit or group == todo[-1]:
            yield Part(rows, {"file": source, "trials": groups, "lengths": [lengths[g] for g in groups]})
            groups, rows = [], 0


TRACE, PATH, DEMO = "trace", "path", "demo"
PIECES = "info/obs_dict/"
TRIALS = 8
ROWS = 256
MAX_COMPONENTS = 1024


def of_file(f: h5py.File, trials: Sequence[Trial]) -> tuple[str | None, list[str]]:
    """The convention of one file, None where its content does not decide; and the trials of a trace that are none."""
    ends = {t.group: _ends_without_action(f[t.group], t) for t in trials if t.rows}
    if ends and sum(ends.values()) * 2 >= len(ends):
        return TRACE, [group for group, without in ends.items() if not without]
    same = after = 0
    for trial in [t for t in trials if t.rows >= 3][:TRIALS]:
        here = _votes(f[trial.group], trial)
        same, after = same + here[0], after + here[1]
    return None if same == after else DEMO if same > after else PATH, []


def settle(found: Mapping[str, str | None], *, infos: bool) -> tuple[dict[str, str], list[Note]]:
    """One reading for all files of an archive, by file, with notes where it is a guess.

    Files that do not say follow those that do, else are read as ``demo``. Traces and demos go together, for what a
    demo lacks is the last row only; paths with infos do not, for theirs belong to the next row.

    Raises
    ------
    UnknownLayout
        The files follow conventions that no one schema holds.
    """
    said = sorted({c for c in found.values() if c})
    if infos and PATH in said and len(said) > 1:
        listed = ", ".join(f"{name}: {c}" for name, c in found.items() if c)
        raise UnknownLayout(
            f"the files lay out their rows in ways that do not go together: {listed}.",
            hint="import them apart, under names of their own",
        )
    guess = next((c for c in (PATH, DEMO) if c in said), DEMO)
    notes = [
        Note(
            "row-convention",
            f"nothing tells what a row means: read as {guess} (infos of row t are known at t)",
            1,
            name,
        )
        for name, c in found.items()
        if c is None and infos
    ]
    return {name: c or guess for name, c in found.items()}, notes


def _ends_without_action(group: h5py.Group, trial: Trial) -> bool:
    actions = [key for field, key in trial.columns.items() if field == "action" or field.startswith("action/")]
    last = [np.asarray(group[key][trial.rows - 1]) for key in actions]
    return all(a.dtype.kind == "f" and a.size > 0 and bool(np.isnan(a).all()) for a in last)


def _votes(group: h5py.Group, trial: Trial) -> tuple[int, int]:
    """How many components of obs_dict equal one of the observations: in the same row, in the row after."""
    seen = [_head(group, key) for field, key in trial.columns.items() if field.split("/", 1)[0] == "observation"]
    wide = [s for s in seen if s is not None]
    pieces = [_head(group, key) for field, key in trial.columns.items() if field.startswith(PIECES)]
    if not wide:
        return 0, 0
    observed, same, after = np.concatenate(wide, axis=1), 0, 0
    # A constant component equals itself in any row, and tells nothing.
    for piece in (p.astype(observed.dtype) for p in pieces if p is not None):
        for column in piece[:, (piece != piece[0]).any(axis=0)].T:
            same += bool((observed == column[:, None]).all(axis=0).any())
            after += bool((observed[1:] == column[:-1, None]).all(axis=0).any())
    return same, after


def _head(group: h5py.Group, key: str) -> Array | None:
    d = group[key]
    if d.dtype.kind not in "biuf" or int(np.prod(d.shape[1:], dtype=np.int64)) > MAX_COMPONENTS:
        return None
    return components(d[:ROWS])


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """What stands in the row of a step, and of a trace in the row after: the reward and what was observed then."""
    convention = place.facts["rows"][place.name]
    with open_file(place.file, check=False) as f:
        found = trial(f, place.name, place.group, place.fields)
        for name, field in found.fields.items():
            at, d = placed(field, convention), f[place.group][found.columns[name]]
            row = place.first + place.step + (convention == TRACE and at.placement == "next")
            value = d.asstr()[row] if field.kind == "text" else d[row]
            yield ArchivedValue(at.name, f"{d.name}[{row}]", bool(value) if name == FLAGS[0] else value)
            if at.placement == "both" and row + 1 < found.rows and not (place.is_last and convention != TRACE):
                after = d.asstr()[row + 1] if field.kind == "text" else d[row + 1]
                yield ArchivedValue(f"next/{at.name}", f"{d.name}[{row + 1}]", after)


@dataclass(frozen=True, slots=True)
class Episode:
    """One trial to be read: T = ``length`` steps; ``keys`` maps the fields of the schema to keys of its group."""

    group: str
    length: int
    convention: str
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``start`` to ``stop`` of the T+1 that an episode takes in the store."""

    episode: Episode
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether the episode ends here."""
        return self.stop == self.episode.length + 1


def pieces(episodes: Sequence[Episode], budget: int) -> Iterator[list[Piece]]:
    """The pieces that make a chunk of at most ``budget`` rows each."""
    chunk: list[Piece] = []
    room = budget
    for e in episodes:
        start = 0
        if e.length + 1 > room and chunk:
            yield chunk
            chunk, room = [], budget
        while e.length + 1 - start > room:
            yield [Piece(e, start, start + room)]
            start += room
        chunk.append(Piece(e, start, e.length + 1))
        room -= e.length + 1 - start
    if chunk:
        yield chunk


def chunk(f: h5py.File, source: int, fields: Sequence[Field], todo: Sequence[Piece]) -> Chunk:
    """Read pieces and put them one after the other."""
    notes: list[Note] = []
    columns: dict[str, Column] = {x.name: _column(f, x, todo, notes) for x in fields if x.name not in FLAGS}
    row = np.concatenate([np.arange(p.start, p.stop) for p in todo])
    length = np.repeat([p.episode.length for p in todo], [p.stop - p.start for p in todo])
    terminated = np.concatenate([_terminated(f, p) for p in todo])
    columns[FLAGS[0]] = terminated
    columns[FLAGS[1]] = (row == length - 1) & ~terminated
    inside = terminated & (row < length - 1)
    if inside.any():
        text = "steps are terminated and their episode goes on"
        notes.append(Note("terminated-inside", text, int(inside.sum()), todo[0].episode.group))
    return Chunk(columns, row == length, _table(f, source, [p.episode for p in todo if p.whole]), tuple(notes))


def _column(f: h5py.File, field: Field, todo: Sequence[Piece], notes: list[Note]) -> Column:
    text = field.kind == "text"
    out: Array = np.full(sum(p.stop - p.start for p in todo), None) if text else _zeros(field, todo)
    at = 0
    for p in todo:
        d = f[f"{p.episode.group}/{p.episode.keys[field.name]}"]
        with reading(Path(f.filename), d.name):
            values = d.asstr() if text else d
            rows, stop = _rows(values, field, p), at + p.stop - p.start
            out[at : at + len(rows)] = rows.reshape(len(rows), *field.shape)
            if len(rows) < p.stop - p.start and field.placement == "both":
                out[stop - 1] = out[stop - 2] if len(rows) else _rows(values, field, replace(p, start=p.start - 1))[0]
        if missing := nan_count(rows):
            notes.append(Note("nan", f"values are NaN and kept, first in {field.name}", missing, p.episode.group))
        at = stop
    return out.tolist() if text else out


def _zeros(field: Field, todo: Sequence[Piece]) -> Array:
    return np.zeros((sum(p.stop - p.start for p in todo), *field.shape), field.dtype)


def _rows(d: h5py.Dataset, field: Field, p: Piece) -> Array:
    """What the archive has of a piece: all of it, or all but the last row."""
    trace = p.episode.convention == TRACE
    shift = int(trace and field.placement == "next")
    there = p.episode.length + int(trace and field.placement == "both")
    return np.asarray(d[p.start + shift : min(p.stop, there) + shift])


def _terminated(f: h5py.File, p: Piece) -> BoolArray:
    out = np.zeros(p.stop - p.start, bool)
    if FLAGS[0] in p.episode.keys:
        d = f[f"{p.episode.group}/{p.episode.keys[FLAGS[0]]}"]
        with reading(Path(f.filename), d.name):
            done = _rows(d, Field(FLAGS[0], "bool", (), "next"), p).reshape(-1)
        out[: len(done)] = (done != 0) & (done == done)
    return out


def _table(f: h5py.File, source: int, ended: Sequence[Episode]) -> EpisodeTable:
    done = [_terminated(f, Piece(e, e.length - 1, e.length))[0] for e in ended]
    return EpisodeTable(
        length=np.array([e.length for e in ended], np.int64),
        end=np.where(done, TERMINATED, CUT).astype(np.uint8),
        observed=np.array([e.convention == TRACE for e in ended], bool),
        source=np.full(len(ended), source, np.int32),
        row=np.zeros(len(ended), np.int64),
        group=[e.group for e in ended],
    )


GROUP = re.compile(r"(trial|rollout)_?\d+", re.IGNORECASE)
ROBOHIVE, ROBOSET = "RoboHive", "RoboSet"
CORE = {"observations": "observation", "actions": "action", "rewards": REWARD, "done": FLAGS[0], "time": "time"}
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0]}
INFOS = "env_infos/"


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: ``columns`` maps fields to keys below its group, ``constants`` are the keys that are not per row."""

    group: str
    rows: int
    columns: Mapping[str, str]
    fields: Mapping[str, Field]
    constants: tuple[str, ...]


def names(f: h5py.File) -> list[str]:
    """The groups of a file that are trials, in the order of their numbers."""
    return sorted((k for k in f if GROUP.fullmatch(k) and isinstance(f.get(k), h5py.Group)), key=natural)


def schema_of(f: h5py.File) -> str | None:
    """RoboHive's or RoboSet's schema, by the keys of the first trial; None where there is neither."""
    for name in names(f)[:1]:
        if "observations" in f[name] and "actions" in f[name]:
            return ROBOHIVE
        if isinstance(f[name].get("data"), h5py.Group):
            return ROBOSET
    return None


def trials(f: h5py.File, name: str, chosen: Mapping[str, str]) -> Iterator[Trial]:
    """The trials of a file, in the order of their numbers; ``chosen`` maps fields to keys, before all others.

    Raises
    ------
    UnknownLayout
        There are none, or the first has no observations or actions.
    CorruptArchive
        Columns of one trial have different lengths.
    """
    groups = names(f)
    if not groups:
        raise UnknownLayout(f"{name} has no trials (groups Trial0, Trial1, ...). It holds {keys_found(datasets(f))}.")
    for group in groups:
        yield trial(f, name, group, chosen)


def trial(f: h5py.File, name: str, group: str, chosen: Mapping[str, str]) -> Trial:
    """One trial of a file; raises as ``trials`` does."""
    where, found = f"{name}: {group}", datasets(f[group])
    columns = {field: key for key in found if (field := _meaning(key)) and found[key].shape}
    for field, key in ((SHORT_NAMES.get(k, k), v) for k, v in chosen.items()):
        expanded = expand(found, field, key.strip("/"))
        if not expanded:
            raise UnknownLayout(f'{where} has no "{key}".', hint=f"it holds {keys_found(found)}")
        columns = {k: v for k, v in columns.items() if k != field and v not in expanded.values()} | expanded
    for field in ("observation", "action"):
        if not any(k == field or k.startswith(field + "/") for k in columns):
            raise UnknownLayout(
                f"{where} has no {field}s. It holds {keys_found(found)}.",
                hint=f"say which key they are: --map {field}=KEY",
            )
    rows = _common_length(where, {key: found[key] for key in columns.values()})
    claimed = set(columns.values())
    for key, d in found.items():
        if key not in claimed and d.shape and d.shape[0] == rows and not _is_constant(key):
            columns[free_name(key, {*columns, *FLAGS})] = key
    fields = {k: row_field(k, found[key], scalar=k in (REWARD, FLAGS[0])) for k, key in sorted(columns.items())}
    per_row = set(columns.values())
    return Trial(group, rows, columns, fields, tuple(key for key in found if key not in per_row))


def by_chance(trials: Sequence[Trial]) -> set[str]:
    """Keys of no known meaning that have as many rows as observations in some trials only: they are not per row."""
    there = {key for t in trials for key in t.columns.values()}
    return {key for t in trials for key in t.constants if key in there and _meaning(key) is None}


def without(t: Trial, keys: set[str]) -> Trial:
    """A trial whose datasets ``keys`` are not per row."""
    columns = {name: key for name, key in t.columns.items() if key not in keys}
    fields = {name: t.fields[name] for name in t.fields if name in columns}
    more = tuple(key for key in t.columns.values() if key in keys)
    return replace(t, columns=columns, fields=fields, constants=(*t.constants, *more))


def _meaning(key: str) -> str | None:
    first, _, rest = key.partition("/")
    if first in CORE:
        return f"{CORE[first]}/{rest}" if rest else CORE[first]
    if key.startswith(INFOS):
        return "info/" + key.removeprefix(INFOS)
    if first == "derived":
        return f"info/{key}"
    if first == "data":
        kind = {"ctrl": "action/", "user": "info/", "time": ""}.get(re.split(r"[_/]", rest)[0], "observation/")
        return kind + rest
    return None


def _is_constant(key: str) -> bool:
    return key.split("/", 1)[0] in ("config", "metadata")


def _common_length(where: str, columns: Mapping[str, h5py.Dataset]) -> int:
    lengths = {key: d.shape[0] if d.shape else None for key, d in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {'none' if n is None else n}" for key, n in lengths.items())
        raise CorruptArchive(f"{where}: columns have different numbers of rows: {listed}.")
    return int(next(iter(lengths.values())) or 0)


def placed(field: Field, convention: str) -> Field:
    """A field as files of this convention hold it (see ``conventions``)."""
    name, placement = field.name, field.placement
    if is_observation(name) or name == "time":
        placement = "both"
    elif name.startswith("info/") and convention == "path":
        name, placement = f"next/{name}", "next"
    elif convention == "trace" and placement == "root" and name.split("/", 1)[0] != "action":
        placement = "both"
    return Field(name, field.dtype, field.shape, placement, field.kind)


def unplaced(name: str) -> str:
    """The name that a placed field had before."""
    return name.removeprefix("next/") if name.startswith("next/info/") else name
