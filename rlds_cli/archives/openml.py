"""OpenML's tables as contextual bandits: every row is an episode of one step.

::

    columns of numbers              -> observation/number     both, in the order of the table
    columns of categories           -> observation/category   both, int32: place among the sorted values, -1: missing
    class, else the last column     -> action                 int64: the class that is right for this context
    ID                              -> id                     the number of a row is not a feature

With columns of one kind only there is one ``observation``. Every step terminates its episode. There is no reward in
such a table: an agent that does a is right where a equals ``action``. ``--map action=COLUMN`` chooses another column;
``class`` is then a field of its own. Tables are Parquet or ARFF, and are read a block of rows at a time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.account import EPISODES, Account, Ledger, used_as
from rlds_cli.archives.flat import Flat, FlatEpisodes, FlatLayout
from rlds_cli.archives.formats import inventory
from rlds_cli.archives.formats.categories import CategoryColumn, CategoryTable, Values, is_arff, open_table
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.formats.parquet import is_parquet
from rlds_cli.archives.formats.tables import Table, TableColumn
from rlds_cli.archives.readers import Archive, Plan
from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import TERMINATED, Field

NAMED = re.compile(r"dataset_\d+\.(pq|parquet)")
CLASS, ID = "class", "id"
SCAN_ROWS = 1 << 14
MAX_CATEGORIES = 4096


class OpenML(Flat):
    """A table whose rows are episodes."""

    name, title = "openml", "OpenML"
    rules = ("file",)
    mapped = True

    def is_file(self, path: Path) -> bool:
        """Tell ARFF, and Parquet under OpenML's name."""
        return is_arff(path) or (NAMED.fullmatch(path.name) is not None and is_parquet(path))

    @contextmanager
    def open(self, path: Path, archive: Archive, facts: Mapping[str, Any] | None = None) -> Iterator[Table]:
        """Open a table whose columns are the fields; without the plan's facts the categories are read first."""
        with open_table(path) as table:
            if facts is None:
                columns = _columns(table.columns, archive.fields.get("action"), path.name)
                facts = {"columns": columns, "categories": _categories(table, columns)}
            shapes = dict(_shapes(table, facts["columns"]))
            yield Table(path, _Coded(table, facts), {n: TableColumn(n, *s, path.name) for n, s in shapes.items()})

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """Describe a table of OpenML in one line: ARFF, or Parquet under OpenML's name; None for other files."""
        if len(paths) != 1 or not self.is_file(paths[0]):
            return None
        with open_table(paths[0]) as table:
            return f"a table of {table.rows:,} rows and {len(table.columns)} columns, as a contextual bandit"

    def check(self, archive: Archive) -> None:
        """Refuse several files, rules for ends, and mappings of other fields than the action."""
        if archive.episodes_by is not None or set(archive.fields) - {"action"} or len(archive.files) != 1:
            raise UnknownLayout(
                "A table is one file, each of its rows an episode; only the action can be chosen.",
                hint="--map action=COLUMN",
            )

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Make a field of each column of the opened table."""
        assert isinstance(table.source, _Coded)
        made = tuple(
            Field(n, c.dtype.name, c.shape[1:], "both" if n.startswith("observation") else "root")
            for n, c in table.columns.items()
        )
        return FlatLayout(table.source.table.rows, made, {f.name: f.name for f in made}, facts=table.source.facts)

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """End an episode with each row."""
        rows = found.rows
        return FlatEpisodes(np.arange(1, rows + 1), np.zeros(rows, bool), np.full(rows, TERMINATED, np.uint8))

    def account(self, archive: Archive, seen: Sequence[FlatLayout]) -> Account:
        """Say which field each column of the table is a part of."""
        told = Ledger()
        (path,), columns = archive.files, seen[0].facts["columns"]
        told.file(archive.name_of(0), used_as(EPISODES))
        with open_table(path) as table:
            items = [Item(inventory.COLUMN, c.name) for c in table.columns]
        fates = {key: used_as(name) for name, keys in columns.items() for key in keys}
        told.inside(items, fates, path.name)
        return told.account()

    def odd_values(self, f: Field, values: Array, start: int) -> tuple[str, str, BoolArray] | None:
        """Mark missing numbers and categories."""
        missing = np.isnan(values) if values.dtype.kind == "f" else (values < 0) & (f.dtype == "int32")
        return ("missing", "values are missing", missing) if missing.any() else None

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """Return the names of the columns that make up each field, and the values of each category, one a line."""
        for field, names in plan.facts["columns"].items():
            yield f"columns/{field}", "\n".join(names)
        for name, values in plan.facts["categories"].items():
            yield f"categories/{name}", "\n".join(values)


class _Coded:
    """The fields as columns: numbers side by side, categories and classes by their places among the sorted values."""

    def __init__(self, table: CategoryTable, facts: Mapping[str, Any]) -> None:
        self.table, self.facts = table, facts
        self._codes = {n: {v: i for i, v in enumerate(values)} for n, values in facts["categories"].items()}

    def rows(self, names: Collection[str]) -> _CodedRows:
        return _CodedRows(self, sorted(names))

    def array(self, name: str, *, most: int = 0) -> Array:
        return self.rows([name]).read(0, self.table.rows)[name]

    def field(self, name: str, block: Mapping[str, Values]) -> Array:
        """Make the rows of a field."""
        members = [self._coded(n, block[n]) for n in self.facts["columns"][name]]
        return np.stack(members, axis=1) if name.startswith("observation") else members[0]

    def _coded(self, name: str, values: Values) -> Array:
        if name not in self._codes:
            return np.asarray(values)
        texts = values if isinstance(values, list) else [None if v != v else f"{v:g}" for v in values.tolist()]
        return np.array([-1 if v is None else self._codes[name][v] for v in texts], np.int64)


class _CodedRows:
    """Rows of some fields, forward; the block read last may be asked for again in part."""

    def __init__(self, source: _Coded, fields: Sequence[str]) -> None:
        self._source, self._fields = source, fields
        self._members = list(dict.fromkeys(n for f in fields for n in source.facts["columns"][f]))
        self._blocks = source.table.blocks(self._members, SCAN_ROWS)
        self._start, self._block = 0, dict[str, Array]()

    def __enter__(self) -> _CodedRows:
        return self

    def __exit__(self, *exc: object) -> None:
        self._block = {}

    def read(self, start: int, stop: int) -> dict[str, Array]:
        pieces = []
        while True:
            rows = len(next(iter(self._block.values()), ()))
            a, b = max(start - self._start, 0), stop - self._start
            if a < rows:
                pieces.append({n: v[a:b] for n, v in self._block.items()})
            if b <= rows or (block := next(self._blocks, None)) is None:
                break
            self._start += rows
            self._block = {f: self._source.field(f, block) for f in self._fields}
        return {f: np.concatenate([p[f] for p in pieces]) if pieces else np.zeros(0) for f in self._fields}


def _columns(columns: Sequence[CategoryColumn], action: str | None, file: str) -> dict[str, list[str]]:
    """Map each field to its columns."""
    there = [c.name for c in columns]
    if len(set(there)) != len(there) or not there:
        raise CorruptArchive(f"{file}: columns {there} have the same name.")
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
        raise UnknownLayout(f"{file} has only the columns {', '.join(there)}: no observation is left.")
    named = {f"observation/{k}" if len(observed) > 1 else "observation": kinds[k] for k in observed}
    others = {"action": [chosen], CLASS: [label] if label != chosen else [], ID: ids[:1]}
    return named | {field: names for field, names in others.items() if names}


def _shapes(table: CategoryTable, columns: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Find the shape and dtype of each field."""
    kinds = {c.name: c for c in table.columns}
    for name, members in columns.items():
        numbers = [kinds[n].dtype for n in members if kinds[n].kind == "number"]
        dtype: np.dtype[Any]
        if name in ("action", CLASS):
            dtype = np.dtype("int64")
        elif name == ID:
            dtype = np.dtype(numbers[0] if numbers else "int64")
        else:
            dtype = np.result_type(*numbers) if numbers else np.dtype("int32")
        wide = (len(members),) if name.startswith("observation") else ()
        yield name, ((table.rows, *wide), dtype)


def _categories(table: CategoryTable, columns: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Find the values of each category, sorted, and those of classes that are numbers, sorted as numbers.

    Raises
    ------
    UnknownLayout
        A column has more of them than a category has.
    """
    kinds = {c.name: c.kind for c in table.columns}
    classes = [*columns["action"], *columns.get(CLASS, ())]
    numbers = [n for n in classes if kinds[n] == "number"]
    found: dict[str, set[Any]] = {n: set() for n in (*(n for n, k in kinds.items() if k == "category"), *numbers)}
    for block in table.blocks([*found], SCAN_ROWS) if found else ():
        for name, values in block.items():
            most, what = (SCAN_ROWS, "class") if name in numbers else (MAX_CATEGORIES, "category")
            found[name].update(
                np.unique(np.asarray(values)).tolist() if name in numbers else (v for v in values if v is not None)
            )
            if len(found[name]) > most:
                raise UnknownLayout(f"{name} has more than {most:,} different values, too many for a {what}.")
    return {
        n: [f"{v:g}" for v in sorted(v for v in x if v == v)] if n in numbers else sorted(x) for n, x in found.items()
    }


READER = OpenML()
