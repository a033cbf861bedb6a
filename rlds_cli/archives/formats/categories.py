"""Tables of numbers and categories: Parquet with dictionaries and texts, and ARFF."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

import numpy as np

from rlds_cli.archives.formats import parquet
from rlds_cli.archives.formats.parquet import is_parquet
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive, MissingPackage, UnknownLayout, UnsafeArchive

MAX_LINE = 1 << 20
Values = Array | list[str | None]


@dataclass(frozen=True, slots=True)
class CategoryColumn:
    """One column: its name, and whether its values are numbers or categories; ``dtype`` of the numbers."""

    name: str
    kind: Literal["number", "category"]
    dtype: str = ""


class CategoryTable(Protocol):
    """One file."""

    columns: tuple[CategoryColumn, ...]

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
def open_table(path: Path) -> Iterator[CategoryTable]:
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
        yield _Arff(path)
        return
    with parquet.reading(path), parquet.opened(path) as f:
        yield _Parquet(path, f)


class _Parquet:
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

    def _column(self, x: Any) -> CategoryColumn:
        import pyarrow as pa

        kind = x.type.value_type if pa.types.is_dictionary(x.type) else x.type
        if pa.types.is_dictionary(x.type) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return CategoryColumn(x.name, "category")
        if pa.types.is_boolean(kind):
            return CategoryColumn(x.name, "category")
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return CategoryColumn(x.name, "number", np.dtype(kind.to_pandas_dtype()).name)
        raise UnknownLayout(f"{self._path.name}: {x.name} holds {x.type} values; numbers and categories are expected.")

    def _values(self, values: Any, column: CategoryColumn) -> Values:
        if column.kind == "category":
            return [None if v is None else str(v) for v in values.to_pylist()]
        if values.null_count:  # integers that are missing somewhere
            return np.array([np.nan if v is None else v for v in values.to_pylist()], np.float64)
        return np.asarray(values.to_numpy(zero_copy_only=False))


class _Arff:
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

    def _column(self, name: str, kind: object) -> CategoryColumn:
        if isinstance(kind, str) and kind.upper() in ("REAL", "NUMERIC", "INTEGER"):
            return CategoryColumn(name, "number", "float64")
        return CategoryColumn(name, "category")

    def _values(self, values: list[Any], column: CategoryColumn) -> Values:
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


def _arff() -> Any:
    try:
        import arff  # type: ignore[import-untyped]
    except ImportError as e:
        raise MissingPackage(
            "ARFF files are read with liac-arff, which is not installed.", hint="pip install 'rlds-cli[arff]'"
        ) from e
    return arff
