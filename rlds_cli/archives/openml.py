"""OpenML's tables as contextual bandits: every row is an episode of one step.

::

    columns of numbers              -> observation/number     both, in the order of the table
    columns of categories           -> observation/category   both, int32: place among the sorted values, -1: missing
    class, else the last column     -> action                 int64: the class that is right for this context
    ID                              -> id                     the number of a row is no feature

With columns of one kind only there is one ``observation``. Every step terminates its episode. There is no reward in
such a table: an agent that does a is right where a equals ``action``. ``--map action=COLUMN`` chooses another column;
``class`` is then a field of its own. Tables are Parquet or ARFF, and are read a block of rows at a time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

import numpy as np

from rlds_cli.archives import CHUNK_ROWS, Archive, ArchivedStep, ArchivedValue, Part, Plan, every_file
from rlds_cli.errors import CorruptArchive, MissingPackage, UnknownLayout, UnsafeArchive
from rlds_cli.formats import parquet
from rlds_cli.formats.parquet import is_parquet
from rlds_cli.ted import FLAGS, TERMINATED, Array, Chunk, EpisodeTable, Field, Note, Text
from rlds_cli.ted import Column as Stored

VERSION = 1
choose = every_file
NAMED = re.compile(r"dataset_\d+\.(pq|parquet)")
CLASS, ID = "class", "id"
SCAN_ROWS = 1 << 14
BLOCK = 1 << 12
MAX_CATEGORIES = 4096
MAX_LINE = 1 << 20
Values = Array | Text


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe a table of OpenML in one line: ARFF, or Parquet under OpenML's name; None for other files."""
    if len(paths) != 1 or not (is_arff(paths[0]) or (NAMED.fullmatch(paths[0].name) and is_parquet(paths[0]))):
        return None
    with open_table(paths[0]) as table:
        return f"a table of {table.rows:,} rows and {len(table.columns)} columns, as a contextual bandit"


def plan(archive: Archive) -> Plan:
    """Find the fields, classes and categories. Reads the columns of categories.

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
    """Read the rows of the table, in blocks.

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
    """Return the names of the columns that make up each field, and the values of each category, one a line."""
    for field, names in plan.facts["columns"].items():
        yield f"columns/{field}", "\n".join(names)
    for name, values in plan.facts["categories"].items():
        yield f"categories/{name}", "\n".join(values)


def _columns(columns: Sequence[OpenmlColumn], action: str | None, file: str) -> dict[str, list[str]]:
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


def _numbers(table: OpenmlTable, names: Sequence[str]) -> dict[str, list[str]]:
    """Sort classes that are written as numbers by their values."""
    found: dict[str, set[float]] = {n: set() for n in names}
    for block in table.blocks(names, SCAN_ROWS) if names else ():
        for name, values in block.items():
            found[name].update(np.unique(np.asarray(values)).tolist())
            if len(found[name]) > SCAN_ROWS:
                raise UnknownLayout(f"{name} has more than {SCAN_ROWS:,} different values, too many for a class.")
    return {n: [f"{v:g}" for v in sorted(v for v in values if v == v)] for n, values in found.items()}


def _schema(table: OpenmlTable, columns: Mapping[str, list[str]]) -> tuple[Field, ...]:
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
    """Lay out rows of the table as episodes of one step, two rows each."""
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
    """Keep numbers; replace categories and classes by their places among the sorted values, -1 for a missing one."""
    if name not in codes:
        return np.asarray(values)
    texts = values if isinstance(values, list) else [None if v != v else f"{v:g}" for v in values.tolist()]
    return np.array([-1 if v is None else codes[name][v] for v in texts], np.int64)


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the row of a step: numbers as they are, categories as their places among the sorted values."""
    columns, categories = place.facts["columns"], place.facts["categories"]
    with open_table(place.file) as table:
        names = [n for members in columns.values() for n in members]
        row = _row(table, names, place.first)
    for field, members in columns.items():
        values = [_value(row[n], categories.get(n)) for n in members]
        one = len(values) == 1 and not field.startswith("observation")
        yield ArchivedValue(field, f"{', '.join(members)} of row {place.first}", np.array(values[0] if one else values))


def _row(table: OpenmlTable, names: list[str], number: int) -> dict[str, object]:
    """Read one row; blocks may be smaller than asked for, at the end of a group of rows in the file."""
    before = 0
    for block in table.blocks(names, BLOCK):
        rows = len(block[names[0]])
        if number < before + rows:
            return {n: values[number - before] for n, values in block.items()}
        before += rows
    raise CorruptArchive(f"The table has {before:,} rows, and no row {number:,}.")


def _value(value: object, categories: list[str] | None) -> object:
    if categories is None:
        return value
    text = value if isinstance(value, str) or value is None else f"{value:g}"
    return categories.index(text) if text is not None and text != "nan" else -1


@dataclass(frozen=True, slots=True)
class OpenmlColumn:
    """One column: its name, and whether its values are numbers or categories; ``dtype`` of the numbers."""

    name: str
    kind: Literal["number", "category"]
    dtype: str = ""


class OpenmlTable(Protocol):
    """One file."""

    columns: tuple[OpenmlColumn, ...]

    @property
    def rows(self) -> int:
        """The number of rows."""

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, Values]]:
        """Read blocks of at most ``size`` rows, in order; categories as texts, None for a missing value."""


def is_arff(path: Path) -> bool:
    """Tell whether a file begins as ARFF does: comments, then ``@relation``."""
    try:
        with path.open("rb") as f:
            for line in itertools.islice(iter(lambda: f.readline(MAX_LINE), b""), 10_000):
                text = line.strip().lower()
                if text and not text.startswith(b"%"):
                    return text.startswith(b"@relation")
    except OSError:
        return False
    return False


@contextmanager
def open_table(path: Path) -> Iterator[OpenmlTable]:
    """Open a file of either format.

    Raises
    ------
    CorruptArchive
        It is neither, or damaged.
    MissingPackage
        The package that reads it is not installed.
    """
    if not is_parquet(path):
        if not is_arff(path):
            raise UnknownLayout(
                f"{path.name} is neither Parquet nor ARFF.", hint=f"rlds inspect {path} shows what is in it"
            )
        yield Arff(path)
        return
    with parquet.reading(path), parquet.opened(path) as f:
        yield Parquet(path, f)


class Parquet:
    """A Parquet file; dictionaries, texts and booleans are categories, all else numbers."""

    def __init__(self, path: Path, f: Any) -> None:
        self._path, self._file = path, f
        self.columns = tuple(self._column(x) for x in f.schema_arrow)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._file.metadata.num_rows)

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, Values]]:
        """Read blocks of at most ``size`` rows."""
        kinds = {c.name: c for c in self.columns}
        with parquet.reading(self._path):
            for batch in self._file.iter_batches(batch_size=size, columns=list(names)):
                yield {n: self._values(batch.column(n), kinds[n]) for n in names}

    def _column(self, x: Any) -> OpenmlColumn:
        import pyarrow as pa

        kind = x.type.value_type if pa.types.is_dictionary(x.type) else x.type
        if pa.types.is_dictionary(x.type) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return OpenmlColumn(x.name, "category")
        if pa.types.is_boolean(kind):
            return OpenmlColumn(x.name, "category")
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return OpenmlColumn(x.name, "number", np.dtype(kind.to_pandas_dtype()).name)
        raise UnknownLayout(f"{self._path.name}: {x.name} holds {x.type} values; numbers and categories are expected.")

    def _values(self, values: Any, column: OpenmlColumn) -> Values:
        if column.kind == "category":
            return [None if v is None else str(v) for v in values.to_pylist()]
        if values.null_count:  # integers that are missing somewhere
            return np.array([np.nan if v is None else v for v in values.to_pylist()], np.float64)
        return np.asarray(values.to_numpy(zero_copy_only=False))


class Arff:
    """An ARFF file; real, numeric and integer attributes are numbers, nominal and string ones categories."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: int | None = None
        with self._load() as table:
            self.columns = tuple(self._column(str(name), kind) for name, kind in table["attributes"])

    @property
    def rows(self) -> int:
        """The number of rows; the file is read through."""
        if self._rows is None:
            self._rows = sum(len(next(iter(b.values()))) for b in self.blocks([self.columns[0].name], 1 << 14))
        return self._rows

    def blocks(self, names: Sequence[str], size: int) -> Iterator[dict[str, Values]]:
        """Read blocks of at most ``size`` rows."""
        at = {c.name: (i, c) for i, c in enumerate(self.columns)}
        with self._load() as table:
            while rows := list(itertools.islice(table["data"], size)):
                yield {n: self._values([row[at[n][0]] for row in rows], at[n][1]) for n in names}

    def _column(self, name: str, kind: object) -> OpenmlColumn:
        if isinstance(kind, str) and kind.upper() in ("REAL", "NUMERIC", "INTEGER"):
            return OpenmlColumn(name, "number", "float64")
        return OpenmlColumn(name, "category")

    def _values(self, values: list[Any], column: OpenmlColumn) -> Values:
        if column.kind == "category":
            return [None if v is None else str(v) for v in values]
        return np.array([np.nan if v is None else v for v in values], np.float64)

    @contextmanager
    def _load(self) -> Iterator[Mapping[str, Any]]:
        arff = _arff()
        try:
            with self._path.open(encoding="utf-8", errors="replace") as f:
                yield arff.load(_lines(f, self._path), return_type=arff.DENSE_GEN)
        except arff.ArffException as e:
            raise CorruptArchive(f"{self._path.name} cannot be read as ARFF: {e}") from e


def _lines(f: TextIO, path: Path) -> Iterator[str]:
    while line := f.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise UnsafeArchive(f"{path.name} has a line of more than {MAX_LINE:,} characters.")
        yield line


def categories(table: OpenmlTable, names: Sequence[str], size: int) -> dict[str, list[str]]:
    """Find the values of each column, sorted.

    Raises
    ------
    CorruptArchive
        More than 4,096 of them: that is no category.
    """
    found: dict[str, set[str]] = {n: set() for n in names}
    for block in table.blocks(names, size) if names else ():
        for name, values in block.items():
            found[name].update(str(v) for v in values if v is not None)
            if len(found[name]) > MAX_CATEGORIES:
                raise UnknownLayout(
                    f"{name} has more than {MAX_CATEGORIES:,} different values, too many for a category."
                )
    return {n: sorted(v) for n, v in found.items()}


def _arff() -> Any:
    try:
        import arff  # type: ignore[import-untyped]
    except ImportError as e:
        raise MissingPackage(
            "ARFF files are read with liac-arff, which is not installed.", hint="pip install 'rlds-cli[arff]'"
        ) from e
    return arff
