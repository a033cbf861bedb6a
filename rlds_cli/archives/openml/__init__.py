"""OpenML's tables as contextual bandits: every row is an episode of one step.

::

    columns of numbers              -> observation/number     both, in the order of the table
    columns of categories           -> observation/category   both, int32: place among the sorted values, -1: missing
    class, else the last column     -> action                 int64: the class that is right for this context
    ID                              -> id                     the number of a row is no feature

With columns of one kind only there is one ``observation``. Every step terminates its episode. There is no reward in
such a table: an agent that does a is right where a equals ``action``. ``--map action=COLUMN`` chooses another column;
``class`` is then a field of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlds_cli.archives import CHUNK_ROWS, Archive, Part, Plan
from rlds_cli.archives.openml.looking import cells as cells
from rlds_cli.archives.openml.tables import Column, Table, Values, categories, is_arff, open_table
from rlds_cli.archives.parquet import is_parquet
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, TERMINATED, Array, Chunk, EpisodeTable, Field, Note
from rlds_cli.ted import Column as Stored

VERSION = 1

NAMED = re.compile(r"dataset_\d+\.(pq|parquet)")
CLASS, ID = "class", "id"
SCAN_ROWS = 1 << 14


def recognise(paths: Sequence[Path]) -> str | None:
    """A table of OpenML in one line, or None: ARFF, or Parquet under the name that OpenML gives it."""
    if len(paths) != 1 or not (is_arff(paths[0]) or (NAMED.fullmatch(paths[0].name) and is_parquet(paths[0]))):
        return None
    with open_table(paths[0]) as table:
        return f"a table of {table.rows:,} rows and {len(table.columns)} columns, as a contextual bandit"


def plan(archive: Archive) -> Plan:
    """Fields, classes and categories. Reads the columns of categories.

    Raises
    ------
    UnknownLayout
        More than one file, no column of that name, nothing to observe; a rule for ends.
    CorruptArchive
        Damage, or values that are neither numbers nor categories.
    """
    if archive.episodes_by is not None or set(archive.fields) - {"action"} or len(archive.files) != 1:
        raise UnknownLayout(
            "A table is one file, each of its rows an episode; only the action can be chosen.",
            hint="--map action=COLUMN",
        )
    with open_table(archive.files[0]) as table:
        columns = _columns(table.columns, archive.fields.get("action"), archive.files[0].name)
        kinds = {c.name: c.kind for c in table.columns}
        classes = [*columns["action"], *columns.get(CLASS, ())]
        values = categories(table, [c.name for c in table.columns if c.kind == "category"], SCAN_ROWS)
        values |= _numbers(table, [n for n in classes if kinds[n] == "number"])
        rows = table.rows
        schema = _schema(table, columns)
    return Plan(
        "openml",
        archive,
        schema,
        (Part(2 * rows, {"episodes": rows}),) if rows else (),
        episodes_by="file",
        facts={"columns": columns, "categories": values},
    )


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """The rows of the table, in blocks.

    Raises
    ------
    CorruptArchive
        Damage.
    """
    columns: Mapping[str, list[str]] = plan.facts["columns"]
    codes = {n: {v: i for i, v in enumerate(values)} for n, values in plan.facts["categories"].items()}
    width = sum(f.row_bytes for f in plan.schema)
    size = max(1, min(CHUNK_ROWS // 2, (4 << 20) // max(width, 1)))
    at = 0
    with open_table(plan.archive.files[0]) as table:
        for block in table.blocks([n for names in columns.values() for n in names], size):
            yield _chunk(plan, codes, block, at)
            at += len(next(iter(block.values())))


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """The names of the columns that make up each field, and the values of each category, one a line."""
    for field, names in plan.facts["columns"].items():
        yield f"columns/{field}", "\n".join(names)
    for name, values in plan.facts["categories"].items():
        yield f"categories/{name}", "\n".join(values)


def _columns(columns: Sequence[Column], action: str | None, file: str) -> dict[str, list[str]]:
    """Field -> the columns that make it up."""
    there = [c.name for c in columns]
    if len(set(there)) != len(there) or not there:
        raise CorruptArchive(f"{file}: columns {there} are not named apart.")
    label = next((n for n in there if n.lower().rstrip(":") == CLASS), there[-1])
    chosen = action or label
    if chosen not in there:
        raise UnknownLayout(f'{file} has no column "{chosen}".', hint=f"it has {', '.join(there[:40])}")
    ids = [n for n in there if n.lower() == ID and n not in (chosen, label)]
    kinds = {
        kind: [c.name for c in columns if c.kind == kind and c.name not in (chosen, label, *ids)]
        for kind in ("number", "category")
    }
    observed = [kind for kind, names in kinds.items() if names]
    if not observed:
        raise UnknownLayout(f"{file} has nothing but {', '.join(there)}: there is nothing to observe.")
    named = {f"observation/{k}" if len(observed) > 1 else "observation": kinds[k] for k in observed}
    others = {"action": [chosen], CLASS: [label] if label != chosen else [], ID: ids[:1]}
    return named | {field: names for field, names in others.items() if names}


def _numbers(table: Table, names: Sequence[str]) -> dict[str, list[str]]:
    """Classes that are written as numbers, sorted as numbers."""
    found: dict[str, set[float]] = {n: set() for n in names}
    for block in table.blocks(names, SCAN_ROWS) if names else ():
        for name, values in block.items():
            found[name].update(np.unique(np.asarray(values)).tolist())
            if len(found[name]) > SCAN_ROWS:
                raise UnknownLayout(f"{name} has more than {SCAN_ROWS:,} different values: it is no class.")
    return {n: [f"{v:g}" for v in sorted(v for v in values if v == v)] for n, values in found.items()}


def _schema(table: Table, columns: Mapping[str, list[str]]) -> tuple[Field, ...]:
    kinds = {c.name: c for c in table.columns}
    fields = [Field(flag, "bool", (), "next") for flag in FLAGS]
    for name, members in columns.items():
        numbers = [kinds[n].dtype for n in members if kinds[n].kind == "number"]
        if name in ("action", CLASS):
            fields.append(Field(name, "int64"))
        elif name == ID:
            fields.append(Field(name, numbers[0] if numbers else "int64"))
        else:
            dtype = np.result_type(*numbers).name if numbers else "int32"
            fields.append(Field(name, dtype, (len(members),), "both"))
    return tuple(sorted(fields, key=lambda f: f.name))


def _chunk(plan: Plan, codes: Mapping[str, Mapping[str, int]], block: Mapping[str, Values], at: int) -> Chunk:
    """Rows of the table as episodes of one step, two rows each."""
    rows = len(next(iter(block.values())))
    notes: list[Note] = []
    columns: dict[str, Stored] = {}
    for f in plan.schema:
        out = np.zeros((2 * rows, *f.shape), f.dtype)
        if f.name in FLAGS:
            out[0::2] = f.name == FLAGS[0]
        else:
            members = [_coded(n, block[n], codes) for n in plan.facts["columns"][f.name]]
            values = np.stack(members, axis=1) if f.shape else members[0]
            missing = int(np.count_nonzero(np.isnan(values) if values.dtype.kind == "f" else values < 0))
            if missing and (values.dtype.kind == "f" or f.dtype == "int32"):
                notes.append(Note("missing", f"values are missing, first in {f.name}", missing, f"from row {at:,} on"))
            out[0::2] = values
            if f.placement == "both":
                out[1::2] = values
        columns[f.name] = out
    return Chunk(columns, np.arange(2 * rows) % 2 == 1, _episodes(rows, at), tuple(notes))


def _episodes(rows: int, at: int) -> EpisodeTable:
    return EpisodeTable(
        length=np.ones(rows, np.int64),
        end=np.full(rows, TERMINATED),
        observed=np.zeros(rows, bool),
        source=np.zeros(rows, np.int32),
        row=np.arange(at, at + rows),
    )


def _coded(name: str, values: Values, codes: Mapping[str, Mapping[str, int]]) -> Array:
    """Numbers as they are; categories and classes as their places among the sorted values, -1 where missing."""
    if name not in codes:
        return np.asarray(values)
    texts = values if isinstance(values, list) else [None if v != v else f"{v:g}" for v in values.tolist()]
    return np.array([-1 if v is None else codes[name][v] for v in texts], np.int64)
