"""RoboHive's HDF5: one group per trial, several files (seeds) per archive; and RoboSet's, recorded from hardware.

Every trial is an episode; ``trials`` says which dataset is what, ``conventions`` what a row means. ``done`` becomes
``next/terminated``; a trial that ends without it is cut. In a trace the reward and ``done`` of row 0 came before any
step, and have no place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py

from rlds_cli.archives import CHUNK_BYTES, CHUNK_ROWS, Archive, Part, Plan
from rlds_cli.archives.hdf5 import attributes, differences, is_hdf5, open_file, plain, reading
from rlds_cli.archives.roboset import conventions
from rlds_cli.archives.roboset.conventions import DEMO, PATH, TRACE
from rlds_cli.archives.roboset.looking import cells as cells
from rlds_cli.archives.roboset.rows import Episode, chunk, pieces
from rlds_cli.archives.roboset.trials import (
    Trial,
    by_chance,
    names,
    placed,
    schema_of,
    trial,
    trials,
    unplaced,
    without,
)
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, Array, Chunk, Field, Note

VERSION = 1

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
    rows, guesses = conventions.settle(said, infos=any(name.startswith("info/") for name in schema))
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
                said[name], odd = conventions.of_file(f, found[name])
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
