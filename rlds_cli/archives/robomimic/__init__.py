"""robomimic's HDF5: one group per demonstration below ``data``, named splits below ``mask``; and robosuite's raw files.

``demos`` says which dataset is what. ``next_obs[t]`` is ``obs[t+1]``, so it is read for the final observation alone and
compared with the rest; where it differs it is kept, as ``next/observation/<key>``. ``dones`` become
``next/terminated``; a demonstration that ends without one is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli import documents
from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, Part, Plan, Replan
from rlds_cli.archives.hdf5 import (
    attribute,
    attribute_values,
    attributes,
    differences,
    is_hdf5,
    open_file,
    plain,
    reading,
    row_field,
)
from rlds_cli.archives.robomimic.demos import DATA, Demo, by_chance, demo, masks, names, without
from rlds_cli.archives.robomimic.looking import cells as cells
from rlds_cli.archives.robomimic.rows import OWN, Differ, Source, chunk
from rlds_cli.archives.roboset.rows import Episode, pieces
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, Array, Chunk, Field, Note

VERSION = 1

PART_ROWS = 1 << 17
PART_BYTES = 256 << 20
TEXT_BYTES = 64
MODEL = "attributes/model_file"
NUM_SAMPLES = "num_samples"


def recognise(paths: Sequence[Path]) -> str | None:
    """The layout, robomimic's or robosuite's, in one line, or None."""
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
    """Fields and parts. Looks at every demonstration, and reads none.

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
    found: list[list[Demo]] = []
    notes: list[Note] = []
    env: dict[str, Any] = {}
    for index, path in enumerate(archive.files):
        with open_file(path) as f:
            found.append(_demos(f, path.name))
            env = env or _environment(f)
            notes += _odd(f, archive.name_of(index), found[-1])
    chance = by_chance([d for demos in found for d in demos])
    found = [[without(d, chance) for d in demos] for demos in found] if chance else found
    first = _agreed(archive, found)
    own = bool(first.next_keys) and not first.recorded
    return Plan(
        "robomimic",
        archive,
        _schema(archive.files[0], first, own=own),
        tuple(p for i, demos in enumerate(found) for p in _parts(i, demos)),
        episodes_by="file",
        facts={"next_observations": "own" if own else "final" if first.recorded else None}
        | ({"not_per_row": sorted(chance)} if chance else {}),
        env=env,
        notes=tuple(notes),
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The demonstrations of one part, in chunks of bounded size however long they are.

    Raises
    ------
    Replan
        Next observations are no copies of the rows after.
    CorruptArchive
        A damaged chunk of the file.
    """
    number, groups = int(part.args["file"]), part.args["demos"]
    path = plan.archive.files[number]
    width = sum(TEXT_BYTES if f.kind == "text" else f.row_bytes for f in plan.schema)
    with open_file(path, check=False) as f:
        first = demo(f, path.name, groups[0])
        keys = {**first.columns, **{f"next/{name}": key for name, key in first.next_keys.items()}}
        mode = plan.facts["next_observations"]
        finals = dict(first.next_keys) if first.recorded else {}
        source = Source(f, number, plan.schema, finals, masks(f, path.name), compare=mode == "final")
        lengths = part.args["lengths"]
        episodes = [Episode(g, int(n), "", keys) for g, n in zip(groups, lengths, strict=True)]
        try:
            for todo in pieces(episodes, max(2, min(CHUNK_ROWS, CHUNK_BYTES // max(width, 1)))):
                yield chunk(source, todo)
        except Differ:
            raise Replan(_with_own_next(plan, first, path)) from None


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Attributes, constants and model files; below the file's name where there are several files.

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
        for key in without(demo(f, file, group), chance).constants:
            if (value := plain(f[DATA][group][key])) is not None:
                yield f"{group}/{key}", value
    yield from ((f"models/{k}", text) for text, k in models.items())
    if models:
        yield "model", np.array(which, np.int64)


def _demos(f: h5py.File, name: str) -> list[Demo]:
    groups = names(f)
    if not groups:
        raise UnknownLayout(f"{name} has no demonstrations (groups data/demo_0, data/demo_1, ...).")
    return [demo(f, name, group) for group in groups]


def _environment(f: h5py.File) -> dict[str, Any]:
    """The environment as ``env_args`` has it, robosuite's own attributes else."""
    about = {key: value for key, value in attribute_values(f[DATA]) if isinstance(value, str | bytes)}
    try:
        args = documents.loads(about.get("env_args", "null"))
    except ValueError:
        return {}
    if isinstance(args, dict) and isinstance(args.get("env_name"), str):
        return {"id": args["env_name"], "args": args}
    return {"id": str(about["env"])} if "env" in about else {}


def _odd(f: h5py.File, name: str, demos: Sequence[Demo]) -> Iterator[Note]:
    """What a user should know about one file."""
    if empty := [d.group for d in demos if not d.rows]:
        yield Note("empty-episodes", "demonstrations without steps were left out", len(empty), f"{empty[0]} of {name}")
    if all("observation" in d.columns for d in demos):
        yield Note("states-only", "no observations are recorded: simulator states stand in for them", 1, name)
    there = {d.group for d in demos}
    unknown = sorted(n for members in masks(f, name).values() for n in members - there)
    if unknown:
        yield Note("unknown-demos", "names in masks are of no demonstration", len(unknown), f"{unknown[0]} of {name}")
    said = {d.group: attribute(f[DATA][d.group], NUM_SAMPLES) for d in demos if NUM_SAMPLES in f[DATA][d.group].attrs}
    if wrong := [d.group for d in demos if d.group in said and not np.array_equal(said[d.group], d.rows)]:
        text = "demonstrations have another number of steps than they say"
        yield Note("num-samples", text, len(wrong), f"{wrong[0]} of {name}")


def _agreed(archive: Archive, found: Sequence[Sequence[Demo]]) -> Demo:
    """The first demonstration, when all others hold the same fields."""
    first = next(d for demos in found for d in demos)
    for index, demos in enumerate(found):
        for d in demos:
            if (d.fields, d.columns, d.next_keys) != (first.fields, first.columns, first.next_keys):
                raise UnknownLayout(
                    f"{archive.name_of(index)}: {d.group} does not hold the fields of {first.group}: "
                    + ("; ".join(differences(d.fields.values(), first.fields.values())) or "next observations differ"),
                    hint="import files that agree, each under a name of its own",
                )
    return first


def _schema(path: Path, first: Demo, *, own: bool) -> tuple[Field, ...]:
    fields = [
        *(f for name, f in first.fields.items() if name not in FLAGS),
        *(Field(n, "bool", (), "next") for n in FLAGS),
    ]
    if own:
        with open_file(path, check=False) as f:
            group = f[DATA][first.group]
            fields += [row_field(f"next/{name}", group[key]) for name, key in first.next_keys.items()]
    return tuple(sorted(fields, key=lambda f: f.name))


def _with_own_next(plan: Plan, first: Demo, path: Path) -> Plan:
    note = Note(
        "next-observation", "next observations are not the rows after: kept as fields of their own", 1, OWN + "..."
    )
    return replace(
        plan,
        schema=_schema(path, first, own=True),
        facts={**plan.facts, "next_observations": "own"},
        notes=(*plan.notes, note),
    )


def _parts(number: int, demos: Sequence[Demo]) -> Iterator[Part]:
    """Demonstrations in their order, shared out to parts of about one size."""
    todo = [d for d in demos if d.rows]
    width = sum(f.row_bytes for f in demos[0].fields.values())
    limit = max(1, min(PART_ROWS, PART_BYTES // max(width, 1)))
    groups: dict[str, int] = {}
    rows = 0
    for d in todo:
        groups[d.group] = d.rows
        rows += d.rows + 1
        if rows >= limit or d is todo[-1]:
            yield Part(rows, {"file": number, "demos": [*groups], "lengths": [*groups.values()]})
            groups, rows = {}, 0
