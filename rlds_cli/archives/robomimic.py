"""robomimic's HDF5: one group per demonstration below ``data``, named splits below ``mask``; and robosuite's raw files.

``next_obs[t]`` is ``obs[t+1]``, so it is read for the final observation alone and compared with the rest; if it
differs, it is kept as ``next/observation/<key>``. ``dones`` become ``next/terminated``; a demonstration that ends
without one is cut::

    data/demo_<k>/obs/<key>        [T, ...]   -> observation/<key>
                  next_obs/<key>   [T, ...]   the final observation, and a check on the others
                  actions          [T, ...]   -> action
                  rewards          [T]        -> next/reward
                  dones            [T]        -> next/terminated
                  states           [T, ...]   -> state; observation, where there is no other (raw files)
                  anything else    [T, ...]   -> a root field of its own name (actions_abs, joint_torques)
    mask/<split>                              names of demonstrations

Raw files of robosuite 0.3 have no ``actions``. The operator's commands stand in for them: joint velocities, gripper
actuations, and the hands' ``dpos`` and ``dquat``, some of them of zero width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import (
    Archive,
    ArchivedStep,
    ArchivedValue,
    Part,
    Plan,
    Replan,
    every_file,
)
from rlds_cli.archives.names import differences, free_name, row_field
from rlds_cli.archives.trials import Trial, TrialPiece, TrialReader, constant_in_some, parts
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.files import json as documents
from rlds_cli.formats.hdf5 import (
    attribute,
    attribute_values,
    attributes,
    datasets,
    is_hdf5,
    keys_found,
    open_file,
    plain,
    reading,
)
from rlds_cli.ted import FLAGS, REWARD, Array, Chunk, Field, Note
from rlds_cli.text import natural

VERSION = 1
choose = every_file
MODEL = "attributes/model_file"
NUM_SAMPLES = "num_samples"
DATA, MASK = "data", "mask"
GROUP = re.compile(r"demo_\d+")
MEANINGS = {"actions": "action", "rewards": REWARD, "dones": FLAGS[0], "states": "state"}
OBSERVATION, NEXT = "obs/", "next_obs/"
# What robosuite 0.3 recorded in place of actions.
COMMANDS = re.compile(r"joint_velocities|gripper_actuations|(left|right)_(dpos|dquat)")
MAX_MASKS = 4096
# Rows up to this size are all compared with the next observations; of larger ones (images) one in a piece is.
COMPARED_BYTES = 4096
OWN = "next/observation/"


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe robomimic's or robosuite's files in one line; None for other files."""
    if not paths or not all(is_hdf5(p) for p in paths):
        return None
    with open_file(paths[0]) as f:
        groups = names(f)
        if not groups or not {"actions", "states"} & set(f[DATA][groups[0]]):
            return None
        kind = "robomimic" if "obs" in f[DATA][groups[0]] else "robosuite's raw"
    files = f"{len(paths)} files, the first with " if len(paths) > 1 else ""
    return f"{kind} layout: {files}{len(groups):,} demonstrations"


def plan(archive: Archive) -> Plan:
    """Find the fields and parts. Reads the headers of every demonstration, and no rows.

    Raises
    ------
    UnknownLayout
        No demonstrations, or none with actions; a rule for ends, or a mapping, that does not apply; demonstrations
        that do not hold the same fields.
    CorruptArchive
        Columns of a demonstration have different lengths.
    """
    if archive.episodes_by not in (None, "file"):
        raise UnknownLayout(
            f'episodes_by="{archive.episodes_by}" does not apply: every demonstration is an episode.',
            hint="leave it out",
        )
    if archive.fields:
        raise UnknownLayout("robomimic's names are fixed; --map does not apply.", hint="leave it out")
    found: list[list[Trial]] = []
    notes: list[Note] = []
    env: dict[str, Any] = {}
    for index, path in enumerate(archive.files):
        with open_file(path) as f:
            found.append(_demos(f, path.name))
            env = env or _environment(f)
            notes += _odd(f, archive.name_of(index), found[-1])
    chance = constant_in_some([d for demos in found for d in demos], _is_core)
    found = [[d.without(chance) for d in demos] for demos in found] if chance else found
    first = _agreed(archive, found)
    own = bool(first.next_keys) and not first.has_all_next
    return Plan(
        "robomimic",
        archive,
        _schema(archive.files[0], first, own=own),
        tuple(
            p
            for i, demos in enumerate(found)
            for p in parts(
                i, {d.group: d.rows for d in demos}, sum(f.row_bytes for f in demos[0].fields.values()), "demos"
            )
        ),
        episodes_by="file",
        facts={"next_observations": "own" if own else "final" if first.has_all_next else None}
        | ({"not_per_row": sorted(chance)} if chance else {}),
        env=env,
        notes=tuple(notes),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the demonstrations of one part, in chunks of bounded size however long they are.

    Raises
    ------
    Replan
        Next observations are no copies of the rows after.
    CorruptArchive
        A damaged chunk of the file.
    """
    number, groups = int(part.args["file"]), part.args["demos"]
    path = plan.archive.files[number]
    with open_file(path, check=False) as f:
        first = demo(f, path.name, groups[0])
        keys = {**first.columns, **{f"next/{name}": key for name, key in first.next_keys.items()}}
        finals = dict(first.next_keys) if first.has_all_next else {}
        compare = plan.facts["next_observations"] == "final"
        demos = _DemoReader(
            f, number, f"{DATA}/", plan.schema, keys, bool(finals), masks(f, path.name), finals, compare
        )
        try:
            yield from demos.chunks(groups, part.args["lengths"])
        except Differ:
            raise Replan(_with_own_next(plan, first, path)) from None


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Return attributes, constants and model files, below the file's name if there are several files.

    Many demonstrations share one model: each stands once, as ``models/<k>``, and ``model`` [demonstrations] says which.
    """
    several = len(plan.archive.files) > 1
    for index, path in enumerate(plan.archive.files):
        prefix = f"{plan.archive.name_of(index)}/" if several else ""
        with open_file(path, check=False) as f, reading(path, "its metadata"):
            for name, value in _constants(f, path.name, set(plan.facts.get("not_per_row", ()))):
                yield prefix + name, value


def _constants(f: h5py.File, file: str, chance: set[str]) -> Iterator[tuple[str, Array | str]]:
    yield from attributes(f)
    yield from ((f"{DATA}/{name}", value) for name, value in attributes(f[DATA]))
    models: dict[str, int] = {}
    which: list[int] = []
    for group in names(f):
        about = dict(attributes(f[DATA][group]))
        model = about.pop(MODEL, None)
        which.append(models.setdefault(str(model), len(models)) if model is not None else -1)
        about.pop("attributes/num_samples", None)
        yield from ((f"{group}/{name}", value) for name, value in about.items())
        for key in demo(f, file, group).without(chance).constants:
            if (value := plain(f[DATA][group][key])) is not None:
                yield f"{group}/{key}", value
    yield from ((f"models/{k}", text) for text, k in models.items())
    if models:
        yield "model", np.array(which, np.int64)


def _demos(f: h5py.File, name: str) -> list[Trial]:
    groups = names(f)
    if not groups:
        raise UnknownLayout(f"{name} has no demonstrations (groups data/demo_0, data/demo_1, ...).")
    return [demo(f, name, group) for group in groups]


def _environment(f: h5py.File) -> dict[str, Any]:
    """Return the environment as ``env_args`` or robosuite's own attributes describe it."""
    about = {key: value for key, value in attribute_values(f[DATA]) if isinstance(value, str | bytes)}
    try:
        args = documents.loads(about.get("env_args", "null"))
    except ValueError:
        return {}
    if isinstance(args, dict) and isinstance(args.get("env_name"), str):
        return {"id": args["env_name"], "args": args}
    return {"id": str(about["env"])} if "env" in about else {}


def _odd(f: h5py.File, name: str, demos: Sequence[Trial]) -> Iterator[Note]:
    """Make the notes about one file."""
    if empty := [d.group for d in demos if not d.rows]:
        yield Note("empty-episodes", "demonstrations without steps were left out", len(empty), f"{empty[0]} of {name}")
    if all("observation" in d.columns for d in demos):
        yield Note("states-only", "no observations are recorded: simulator states are used instead", 1, name)
    there = {d.group for d in demos}
    unknown = sorted(n for members in masks(f, name).values() for n in members - there)
    if unknown:
        yield Note(
            "unknown-demos", "names in masks do not match any demonstration", len(unknown), f"{unknown[0]} of {name}"
        )
    said = {d.group: attribute(f[DATA][d.group], NUM_SAMPLES) for d in demos if NUM_SAMPLES in f[DATA][d.group].attrs}
    if wrong := [d.group for d in demos if d.group in said and not np.array_equal(said[d.group], d.rows)]:
        text = "demonstrations have another number of steps than they say"
        yield Note("num-samples", text, len(wrong), f"{wrong[0]} of {name}")


def _agreed(archive: Archive, found: Sequence[Sequence[Trial]]) -> Trial:
    """Return the first demonstration; refuse others that do not hold the same fields."""
    first = next(d for demos in found for d in demos)
    for index, demos in enumerate(found):
        for d in demos:
            if (d.fields, d.columns, d.next_keys) != (first.fields, first.columns, first.next_keys):
                raise UnknownLayout(
                    f"{archive.name_of(index)}: {d.group} does not hold the fields of {first.group}: "
                    + ("; ".join(differences(d.fields.values(), first.fields.values())) or "next observations differ"),
                    hint="import files with other fields separately, each with its own name",
                )
    return first


def _schema(path: Path, first: Trial, *, own: bool) -> tuple[Field, ...]:
    fields = [
        *(f for name, f in first.fields.items() if name not in FLAGS),
        *(Field(n, "bool", (), "next") for n in FLAGS),
    ]
    if own:
        with open_file(path, check=False) as f:
            group = f[DATA][first.group]
            fields += [row_field(f"next/{name}", group[key]) for name, key in first.next_keys.items()]
    return tuple(sorted(fields, key=lambda f: f.name))


def _with_own_next(plan: Plan, first: Trial, path: Path) -> Plan:
    note = Note(
        "next-observation", "next observations differ from the next rows: kept as separate fields", 1, OWN + "..."
    )
    return replace(
        plan,
        schema=_schema(path, first, own=True),
        facts={**plan.facts, "next_observations": "own"},
        notes=(*plan.notes, note),
    )


def names(f: h5py.File) -> list[str]:
    """Read the demonstrations of a file, in the order of their numbers."""
    data = f.get(DATA)
    if not isinstance(data, h5py.Group):
        return []
    return sorted((k for k in data if GROUP.fullmatch(k) and isinstance(data.get(k), h5py.Group)), key=natural)


def demo(f: h5py.File, name: str, group: str) -> Trial:
    """Describe one demonstration of the file called ``name``.

    Raises
    ------
    UnknownLayout
        No actions, or neither observations nor states.
    CorruptArchive
        Columns of different lengths, next observations of other shapes than the observations.
    """
    where, found = f"{name}: {group}", datasets(f[DATA][group])
    rows = _count_rows(where, found)
    per_row = [k for k, d in found.items() if d.shape and (d.shape[0] == rows or _is_core(k))]
    columns, next_keys = _meanings(per_row)
    if not any(c == "action" or c.startswith("action/") for c in columns):
        raise UnknownLayout(f"{where} has no actions. It holds {keys_found(found)}.")
    if not any(c == "observation" or c.startswith("observation/") for c in columns):
        raise UnknownLayout(f"{where} has neither observations nor states. It holds {keys_found(found)}.")
    _check_lengths(where, found, {*columns.values(), *next_keys.values()}, rows)
    fields = {k: row_field(k, found[key], scalar=k in (REWARD, FLAGS[0])) for k, key in sorted(columns.items())}
    for field, key in next_keys.items():
        if field in fields and found[key].shape[1:] != fields[field].shape:
            raise CorruptArchive(
                f"{where}: {key} has rows of {found[key].shape[1:]}, {field} of {fields[field].shape}."
            )
    claimed = {*columns.values(), *next_keys.values()}
    return Trial(group, rows, columns, next_keys, fields, tuple(k for k in found if k not in claimed))


def masks(f: h5py.File, name: str) -> dict[str, set[str]]:
    """Read the named splits of a file, with the demonstrations of each.

    Raises
    ------
    CorruptArchive
        A mask that is no list of names.
    """
    group = f.get(MASK)
    if not isinstance(group, h5py.Group):
        return {}
    found: dict[str, set[str]] = {}
    for key, d in datasets(group).items():
        if h5py.check_string_dtype(d.dtype) is None or len(found) >= MAX_MASKS:
            raise CorruptArchive(f"{name}: mask/{key} holds {d.dtype} values; names of demonstrations are expected.")
        found[key] = set(map(str, np.ravel(d.asstr(errors="replace")[()])))
    return found


def _meanings(keys: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    columns = {MEANINGS[k]: k for k in keys if k in MEANINGS}
    columns |= {f"observation/{k.removeprefix(OBSERVATION)}": k for k in keys if k.startswith(OBSERVATION)}
    next_keys = {f"observation/{k.removeprefix(NEXT)}": k for k in keys if k.startswith(NEXT)}
    if not any(c.startswith("observation/") for c in columns) and "state" in columns:
        columns["observation"] = columns.pop("state")
    if "action" not in columns:
        columns |= {f"action/{k}": k for k in keys if COMMANDS.fullmatch(k)}
    for key in keys:
        if key not in columns.values() and key not in next_keys.values():
            columns[free_name(key, {*columns, *FLAGS})] = key
    return columns, next_keys


def _is_core(key: str) -> bool:
    return key in MEANINGS or key.startswith((OBSERVATION, NEXT))


def _count_rows(where: str, found: Mapping[str, h5py.Dataset]) -> int:
    """Count the steps T, by the actions or else the states."""
    for key in ("actions", "states"):
        if key in found and found[key].shape:
            return int(found[key].shape[0])
    raise UnknownLayout(f"{where} has neither actions nor states. It holds {keys_found(found)}.")


def _check_lengths(where: str, found: Mapping[str, h5py.Dataset], keys: set[str], rows: int) -> None:
    odd = {key: found[key].shape[0] for key in sorted(keys) if found[key].shape[0] != rows}
    if odd:
        listed = ", ".join(f"{key} {n}" for key, n in odd.items())
        raise CorruptArchive(f"{where} has {rows} steps, and columns of other lengths: {listed}.")


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step; next observations are in ``next_obs``, or else in the row after it."""
    with open_file(place.file, check=False) as f:
        found, group = demo(f, place.name, place.group), f[DATA][place.group]
        for name, field in found.fields.items():
            d = group[found.columns[name]]
            value = d.asstr()[place.step] if field.kind == "text" else d[place.step]
            yield ArchivedValue(name, f"{d.name}[{place.step}]", bool(value) if name == FLAGS[0] else value)
            if field.placement == "both" and name not in found.next_keys and not place.is_last:
                yield ArchivedValue(f"next/{name}", f"{d.name}[{place.step + 1}]", d[place.step + 1])
        for name, key in found.next_keys.items():
            yield ArchivedValue(f"next/{name}", f"{group[key].name}[{place.step}]", group[key][place.step])


class Differ(Exception):
    """A next observation is not the observation of the row after."""


@dataclass(frozen=True, slots=True)
class _DemoReader(TrialReader):
    """Reads demonstrations, with their final observations.

    ``finals`` maps observation fields to the keys of their next values; ``compare`` compares these with the rows after.
    """

    finals: Mapping[str, str]
    compare: bool

    def rows(self, f: Field, piece: TrialPiece) -> Array:
        """Read the rows of a piece.

        Raises
        ------
        Differ
            Next observations are no copies of the rows after.
        """
        group, length = piece.episode.group, piece.episode.length
        d = self.dataset(group, self.keys[f.name])
        values = d.asstr() if f.kind == "text" else d
        if f.placement != "both":
            return np.asarray(values[piece.start : min(piece.stop, length)])
        rows = np.asarray(values[piece.start : min(piece.stop + 1, length)])
        final = self.dataset(group, self.finals[f.name]) if f.name in self.finals else None
        final = final.asstr() if final is not None and f.kind == "text" else final
        if final is not None and self.compare:
            _compare(rows, final, f, piece.start)
        if not piece.ends:
            return rows[: len(piece)]
        last = np.asarray((values if final is None else final)[length - 1])[None]
        return np.concatenate([rows, last.astype(rows.dtype, copy=False)])


def _compare(rows: Array, after: h5py.Dataset, f: Field, start: int) -> None:
    pairs = len(rows) - 1
    if pairs < 1:
        return
    at = slice(0, pairs) if f.row_bytes <= COMPARED_BYTES else slice(pairs // 2, pairs // 2 + 1)
    said = np.asarray(after[start + at.start : start + at.stop])
    if not np.array_equal(said, rows[1:][at], equal_nan=said.dtype.kind in "fc"):
        raise Differ
