"""Anybody's own data: flat files, one row a step, and files or HDF5 groups that hold one episode each.

npz, HDF5, Parquet, CSV and JSON lines are recognised by the names of their columns (``names``). Row t holds the observation,
the action taken there, and its reward and flags, as in D4RL. ``boundaries`` says where the episodes of flat rows are,
``flat`` reads them, ``grouped`` reads one episode per file or group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rlds_cli.archives import Archive, Part, Plan, d4rl
from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.parquet import is_parquet
from rlds_cli.archives.plain import flat
from rlds_cli.archives.plain.names import flags_of, has_essentials, meaning
from rlds_cli.archives.tables import is_flat, open_flat
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import Array, Chunk

VERSION = 2


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe the columns in one line; None where no observations or actions show."""
    if not paths or not all(map(is_flat, paths)):
        return None
    with open_flat(paths[0], fill=True) as table:
        what = meaning(table.columns, {}, paths[0].name)
        if not has_essentials(what):
            return None
        fields = flags_of(what)[0]
        table.derive(list(fields.values()))
        rows = max(
            (table[k].shape[0] for n, k in fields.items() if n.startswith("action") and table[k].shape), default=0
        )
    files = f"{len(paths)} {_kind(paths[0])} files, the first with " if len(paths) > 1 else f"{_kind(paths[0])}, "
    return f"columns of rows: {files}{rows:,} rows; " + ", ".join(what.fields.values())


def _kind(path: Path) -> str:
    return {".csv": "CSV", ".tsv": "CSV", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".npz": "npz"}.get(
        path.suffix.lower(), "Parquet" if is_parquet(path) else "HDF5"
    )


def plan(archive: Archive) -> Plan:
    """Fields, parts and episode rule. Reads the columns that say where episodes are.

    Raises
    ------
    UnknownLayout
        A file of no format that is read, no observations or actions, boundaries that contradict each other.
    """
    if not all(map(is_flat, archive.files)):
        odd = next(p for p in archive.files if not is_flat(p))
        raise UnknownLayout(
            f"{odd.name} is neither npz nor HDF5 nor Parquet nor CSV nor JSON lines.", hint=f"rlds inspect {odd}"
        )
    if archive.episodes_by == "jumps":
        return _by_jumps(archive)
    return flat.plan(archive)


def _by_jumps(archive: Archive) -> Plan:
    with open_flat(archive.files[0]) as table:
        fields = flags_of(flat.understood(table, archive.fields))[0]
    made = d4rl.plan(replace(archive, fields=fields))
    return replace(made, reader="plain", facts={**made.facts, "fields": fields, "read": "jumps"})


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The rows of one part, in chunks of bounded size."""
    return d4rl.read(plan, part) if plan.facts["read"] == "jumps" else flat.read(plan, part)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Columns that are not one value a row, and attributes."""
    return d4rl.metadata(plan) if plan.facts["read"] == "jumps" else flat.metadata(plan)


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step, and in the row after; for `rlds verify --trace`."""
    raise NotImplementedError
