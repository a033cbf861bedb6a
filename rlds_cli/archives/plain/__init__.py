"""The user's own files: flat files with one row per step, and files or HDF5 groups that hold one episode each.

npz, HDF5, Parquet, CSV and JSON lines are recognised by the names of their columns. Row t holds the observation, the
action taken there, and its reward and flags, as in D4RL. ``survey`` looks at the columns and groups of files and joins
flat files to one table, ``boundaries`` finds the episodes of flat rows, ``flat`` reads them, and ``grouped`` reads one
episode per file or group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from rlds_cli.archives import Archive, ArchivedStep, ArchivedValue, Part, Plan, Reader, d4rl, every_file
from rlds_cli.archives.names import flags_of, has_essentials, meaning
from rlds_cli.archives.plain import flat, grouped
from rlds_cli.archives.plain.survey import groups_of, is_one_episode, understood
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.files import json as documents
from rlds_cli.formats.parquet import is_parquet
from rlds_cli.formats.tables import Table, is_flat, open_flat
from rlds_cli.ted import Array, Chunk, Note

VERSION = 2
choose = every_file
# Files that describe the data beside them: they are left out, and a note names them.
BESIDE = (".json", ".yaml", ".yml", ".toml", ".txt", ".log", ".cfg", ".ini", ".xml")


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe the columns in one line; None if observations or actions are missing."""
    paths = [p for p in paths if not _is_beside(p)]
    if not paths or not all(map(is_flat, paths)):
        return None
    files = f"{len(paths)} {_kind(paths[0])} files, the first with " if len(paths) > 1 else f"{_kind(paths[0])}, "
    with open_flat(paths[0], fill=True) as table:
        groups = groups_of(table, {})
        if groups is not None:
            level, found = groups
            return (
                f"one episode per group: {files}{len(found):,} groups {level}; {', '.join(next(iter(found.values())))}"
            )
        what = meaning(table.columns, {}, paths[0].name)
        if not has_essentials(what):
            return None
        columns = ", ".join(what.fields.values())
        if is_one_episode(table, {}, len(paths)):
            return f"one episode per file: {len(paths)} {_kind(paths[0])}; {columns}"
        fields = flags_of(what)[0]
        table.derive(list(fields.values()))
        rows = max(
            (table[k].shape[0] for n, k in fields.items() if n.startswith("action") and table[k].shape), default=0
        )
    return f"columns of rows: {files}{rows:,} rows; {columns}"


def _is_beside(path: Path) -> bool:
    """Tell whether a file holds settings, logs or a description, and no rows."""
    if path.suffix.lower() not in BESIDE or is_flat(path):
        return False
    try:
        return path.suffix.lower() != ".json" or documents.load(path) is not None
    except (OSError, ValueError):
        return False  # damaged, or made to harm


def _kind(path: Path) -> str:
    return {".csv": "CSV", ".tsv": "CSV", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".npz": "npz"}.get(
        path.suffix.lower(), "Parquet" if is_parquet(path) else "HDF5"
    )


def plan(archive: Archive) -> Plan:
    """Find the fields, the parts and the rule for episodes; reads only the columns that mark episodes.

    Raises
    ------
    UnknownLayout
        A file has an unknown format or no observations or actions, or columns contradict each other about episodes.
    """
    beside = [p.name for p in archive.files if _is_beside(p)]
    if len(beside) < len(archive.files):
        archive = replace(archive, files=tuple(p for p in archive.files if not _is_beside(p)))
    made = _plan(archive)
    if not beside:
        return made
    note = Note("left-out", f"files that describe the data were left out: {', '.join(beside)}")
    return replace(made, notes=(*made.notes, note))


def _plan(archive: Archive) -> Plan:
    if not archive.skip_bad and not all(map(is_flat, archive.files)):
        odd = next(p for p in archive.files if not is_flat(p))
        raise UnknownLayout(
            f"{odd.name} is neither npz nor HDF5 nor Parquet nor CSV nor JSON lines.", hint=f"rlds inspect {odd}"
        )
    if _is_grouped(archive):
        return grouped.plan(archive)
    return _by_jumps(archive) if archive.episodes_by == "jumps" else flat.plan(archive)


def _is_grouped(archive: Archive) -> bool:
    """Tell whether each file or group is one episode."""
    with _first_readable(archive) as table:
        if groups_of(table, archive.fields) is not None:
            return True
        if archive.episodes_by not in (None, "file"):
            return False
        return is_one_episode(table, archive.fields, len(archive.files))


@contextmanager
def _first_readable(archive: Archive) -> Iterator[Table]:
    """Open the first file; with ``skip_bad``, the first one that can be opened."""
    with ExitStack() as stack:
        for path in archive.files[:-1] if archive.skip_bad else ():
            try:
                table = stack.enter_context(open_flat(path, fill=True))
            except ArchiveError:
                continue
            break
        else:
            table = stack.enter_context(open_flat(archive.files[-1 if archive.skip_bad else 0], fill=True))
        yield table


def _by_jumps(archive: Archive) -> Plan:
    with open_flat(archive.files[0]) as table:
        fields = flags_of(understood(table, archive.fields))[0]
    made = d4rl.plan(replace(archive, fields=fields))
    return replace(made, reader="plain", facts={**made.facts, "fields": fields, "read": "jumps"})


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part, in chunks of bounded size."""
    return _module(plan).read(plan, part)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Read the columns that do not have one value per row, and attributes."""
    return _module(plan).metadata(plan)


def _module(plan: Plan) -> Reader:
    return cast(Reader, {"grouped": grouped, "jumps": d4rl}.get(plan.facts["read"], flat))


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the values of one step and the next observation."""
    return grouped.look_up(place) if place.facts["read"] == "grouped" else flat.look_up(place)
