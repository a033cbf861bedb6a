"""RoboHive's HDF5: one group per trial, several files (seeds) per archive; and RoboSet's, recorded from hardware.

Every trial is an episode. ``done`` becomes ``next/terminated``; a trial that ends without it is cut. RoboHive's
recorders disagree about the meaning of a row, and their files do not record it. There are three conventions::

    trace   (o_t, a_t) with the reward, done and infos on arrival at o_t; a last row with a NaN action: T = h - 1 steps,
            T+1 observations and infos; next/reward of step t is row t+1's
    path    (o_t, a_t, r_t, done_t) and the infos after the step: T = h, no final observation, next/info/...
    demo    (o_t, a_t, r_t, done_t) and the infos before it: T = h, no final observation, info/...

A trial whose last action is NaN is a trace. In the others ``env_infos/obs_dict``, which holds the components of an
observation, equals the observations of the row after (path) or of the same row (demo). In a trace the reward and
``done`` of row 0 came before any step, and are left out. The datasets of a trial::

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
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives import Archive, ArchivedStep, ArchivedValue, Part, Plan, every_file
from rlds_cli.archives.names import differences, expand, free_name, is_observation, row_field
from rlds_cli.archives.trials import Trial, TrialPiece, TrialReader, constant_in_some, parts
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.formats.hdf5 import attributes, datasets, is_hdf5, keys_found, open_file, plain, reading
from rlds_cli.formats.hdf5_rows import components
from rlds_cli.ted import FLAGS, REWARD, Array, Chunk, Field, Note
from rlds_cli.text import is_below, natural

VERSION = 1
choose = every_file
TRACE, PATH, DEMO = "trace", "path", "demo"
PIECES = "info/obs_dict/"
TRIALS = 8
ROWS = 256
MAX_COMPONENTS = 1024
GROUP = re.compile(r"(trial|rollout)_?\d+", re.IGNORECASE)
ROBOHIVE, ROBOSET = "RoboHive", "RoboSet"
CORE = {"observations": "observation", "actions": "action", "rewards": REWARD, "done": FLAGS[0], "time": "time"}
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0]}
INFOS = "env_infos/"


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe RoboHive's or RoboSet's files in one line; None for other files."""
    if not paths or not all(is_hdf5(p) for p in paths):
        return None
    with open_file(paths[0]) as f:
        schema, count = schema_of(f), len(names(f))
    files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
    return f"{schema} layout: {files}{count:,} trials" if schema else None


def plan(archive: Archive) -> Plan:
    """Find the fields, parts and row conventions. Reads a few rows of every trial.

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
    chance = constant_in_some([t for of_file in found.values() for t in of_file], lambda key: _meaning(key) is not None)
    chance -= {*archive.fields.values()}
    found = {name: [t.without(chance) for t in of_file] for name, of_file in found.items()} if chance else found
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
        parts=tuple(p for i, lengths in enumerate(episodes.values()) for p in parts(i, lengths, width, "trials")),
        episodes_by="file",
        facts={
            "rows": rows,
            "constants": sorted({c for of_file in found.values() for t in of_file for c in t.constants}),
        },
        notes=(*notes, *guesses),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part, in chunks of bounded size however long the trials are.

    Raises
    ------
    CorruptArchive
        A damaged chunk of the file.
    """
    source, groups = int(part.args["file"]), part.args["trials"]
    path, name = plan.archive.files[source], plan.archive.name_of(source)
    with open_file(path, check=False) as f:
        columns = trial(f, path.name, groups[0], plan.archive.fields).columns
        keys = {x.name: key for x in plan.schema if (key := columns.get(unplaced(x.name)))}
        convention = plan.facts["rows"][name]
        trials = _RowReader(f, source, "", plan.schema, keys, convention == TRACE, {}, convention)
        yield from trials.chunks(groups, part.args["lengths"])


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return constants and attributes by trial, below the file's name if there are several files."""
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
    """Describe the trials of every file; return the convention of each file, and notes."""
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
    """Return the fields that every trial has."""
    first_name, first = next((name, of_file[0]) for name, of_file in found.items())
    for name, of_file in found.items():
        for t in of_file:
            if (t.fields, t.columns) != (first.fields, first.columns):
                raise UnknownLayout(
                    f"{name}: {t.group} does not hold the fields of {first.group} of {first_name}: "
                    + "; ".join(differences(t.fields.values(), first.fields.values())),
                    hint="import files with other fields separately, each with its own name",
                )
    return {**first.fields, **{flag: Field(flag, "bool", (), "next") for flag in FLAGS}}


def _lengths(of_file: Sequence[Trial], convention: str) -> dict[str, int]:
    return {t.group: t.rows - (convention == TRACE) for t in of_file}


def of_file(f: h5py.File, trials: Sequence[Trial]) -> tuple[str | None, list[str]]:
    """Find the convention of one file, None if its content does not decide; also the trials of a trace that differ."""
    ends = {t.group: _ends_without_action(f[t.group], t) for t in trials if t.rows}
    if ends and sum(ends.values()) * 2 >= len(ends):
        return TRACE, [group for group, without in ends.items() if not without]
    same = after = 0
    for trial in [t for t in trials if t.rows >= 3][:TRIALS]:
        here = _votes(f[trial.group], trial)
        same, after = same + here[0], after + here[1]
    return None if same == after else DEMO if same > after else PATH, []


def settle(found: Mapping[str, str | None], *, infos: bool) -> tuple[dict[str, str], list[Note]]:
    """Settle the convention of each file, so that one schema holds all; a note tells of each guess.

    Undecided files follow the decided ones, or else are read as ``demo``. Traces and demos go together, since a demo
    lacks only the last row. Paths with infos go with neither, since their infos belong to the next row.

    Raises
    ------
    UnknownLayout
        The files follow conventions that no one schema holds.
    """
    said = sorted({c for c in found.values() if c})
    if infos and PATH in said and len(said) > 1:
        listed = ", ".join(f"{name}: {c}" for name, c in found.items() if c)
        raise UnknownLayout(
            f"the files follow different row conventions: {listed}.",
            hint="import them one by one, each with its own name",
        )
    guess = next((c for c in (PATH, DEMO) if c in said), DEMO)
    notes = [
        Note(
            "row-convention",
            f"the row convention is unknown: read as {guess} (infos of row t are known at t)",
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
    """Count the components of obs_dict that equal an observation in the same row, and in the row after."""
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
    """Look up the row of a step; in a trace, the reward and the next observation are in the row after it."""
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
class _RowReader(TrialReader):
    """Reads trials that follow a convention."""

    convention: str

    def rows(self, f: Field, piece: TrialPiece) -> Array:
        """Read the rows of a piece; those of a trace hold the reward and the flag one row late."""
        d = self.dataset(piece.episode.group, self.keys[f.name])
        trace = self.convention == TRACE
        shift = int(trace and f.placement == "next")
        stop = min(piece.stop, piece.episode.length + int(trace and f.placement == "both"))
        return np.asarray((d.asstr() if f.kind == "text" else d)[piece.start + shift : stop + shift])


def names(f: h5py.File) -> list[str]:
    """Return the groups of a file that are trials, in the order of their numbers."""
    return sorted((k for k in f if GROUP.fullmatch(k) and isinstance(f.get(k), h5py.Group)), key=natural)


def schema_of(f: h5py.File) -> str | None:
    """Tell RoboHive's schema from RoboSet's, by the keys of the first trial; None if it is neither."""
    for name in names(f)[:1]:
        if "observations" in f[name] and "actions" in f[name]:
            return ROBOHIVE
        if isinstance(f[name].get("data"), h5py.Group):
            return ROBOSET
    return None


def trials(f: h5py.File, name: str, chosen: Mapping[str, str]) -> Iterator[Trial]:
    """Describe the trials of a file, in the order of their numbers; ``chosen`` maps fields to keys.

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
    """Describe one trial of a file; raises as ``trials`` does."""
    where, found = f"{name}: {group}", datasets(f[group])
    columns = {field: key for key in found if (field := _meaning(key)) and found[key].shape}
    for field, key in ((SHORT_NAMES.get(k, k), v) for k, v in chosen.items()):
        expanded = expand(found, field, key.strip("/"))
        if not expanded:
            raise UnknownLayout(f'{where} has no "{key}".', hint=f"it holds {keys_found(found)}")
        columns = {k: v for k, v in columns.items() if k != field and v not in expanded.values()} | expanded
    for field in ("observation", "action"):
        if not any(is_below(k, field) for k in columns):
            raise UnknownLayout(
                f"{where} has no {field}s. It holds {keys_found(found)}.",
                hint=f"name the key: --map {field}=KEY",
            )
    rows = _common_length(where, {key: found[key] for key in columns.values()})
    claimed = set(columns.values())
    for key, d in found.items():
        if key not in claimed and d.shape and d.shape[0] == rows and not _is_constant(key):
            columns[free_name(key, {*columns, *FLAGS})] = key
    fields = {k: row_field(k, found[key], scalar=k in (REWARD, FLAGS[0])) for k, key in sorted(columns.items())}
    per_row = set(columns.values())
    return Trial(group, rows, columns, {}, fields, tuple(key for key in found if key not in per_row))


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
    """Place a field as files of this convention hold it."""
    name, placement = field.name, field.placement
    if is_observation(name) or name == "time":
        placement = "both"
    elif name.startswith("info/") and convention == "path":
        name, placement = f"next/{name}", "next"
    elif convention == "trace" and placement == "root" and name.split("/", 1)[0] != "action":
        placement = "both"
    return Field(name, field.dtype, field.shape, placement, field.kind)


def unplaced(name: str) -> str:
    """Return the name that a placed field had before."""
    return name.removeprefix("next/") if name.startswith("next/info/") else name
