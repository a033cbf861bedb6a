"""Parquet files as columns of rows: numbers, lists of one length, texts; read forward, a batch at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.errors import CorruptArchive, MissingPackage, UnsafeArchive
from rlds_cli.ted import Array

MAGIC = b"PAR1"
BATCH_ROWS = 1 << 13
BATCH_BYTES = 32 << 20
# What a byte of a file may become. Runs of one value take next to nothing, so small files may claim more.
MAX_RATIO = 1000
FREE_BYTES = 64 << 20


def is_parquet(path: Path) -> bool:
    """Whether a file begins and ends as Parquet does."""
    try:
        with path.open("rb") as f:
            head = f.read(4)
            f.seek(-4, 2)
            return head == f.read(4) == MAGIC
    except OSError:
        return False


@contextmanager
def open_parquet(path: Path) -> Iterator[ParquetFile]:
    """Open for reading.

    Raises
    ------
    CorruptArchive
        Damage.
    MissingPackage
        pyarrow is not installed.
    """
    pa = pyarrow()
    with reading(path), pa.parquet.ParquetFile(path) as f:
        yield ParquetFile(path, f)


def check(metadata: Any, path: Path) -> None:
    """Refuse a file whose metadata claim what it cannot hold.

    Parameters
    ----------
    metadata : pyarrow.parquet.FileMetaData
    path : Path

    Raises
    ------
    UnsafeArchive
        More than a thousand times its size.
    """
    _check_claim(int(metadata.num_rows), path)
    _check_claim(sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)), path)


def _check_claim(claimed: int, path: Path) -> None:
    size = path.stat().st_size
    if claimed > FREE_BYTES + MAX_RATIO * size:
        raise UnsafeArchive(f"{path.name} claims {claimed:,} rows or bytes, and has {size:,} bytes.")


class ParquetFile:
    """The columns of an open file: ``columns`` holds (shape, dtype) by name; others are ``left_out``."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path = path
        self.file = file
        self.columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self.left_out: dict[str, str] = {}
        self.num_rows = int(file.metadata.num_rows)
        self.row_bytes = 0
        rows = self.num_rows
        check(file.metadata, self.path)
        if not rows:
            return
        first = next(file.iter_batches(batch_size=1))
        for column in file.schema_arrow:
            if not _is_known(column.type):
                self.left_out[column.name] = str(column.type)
                continue
            value = _values(first.column(column.name), (1,), path.name, column.name)
            self.columns[column.name] = ((rows, *value.shape[1:]), value.dtype)
        self.row_bytes = sum(math.prod(shape[1:]) * dtype.itemsize for shape, dtype in self.columns.values())
        _check_claim(rows * self.row_bytes, path)

    @property
    def batch_rows(self) -> int:
        """Rows that are decoded at a time."""
        return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, self.row_bytes)))

    def rows(self, names: Collection[str]) -> ParquetRows:
        """A reader of the rows of some columns."""
        return ParquetRows(self, sorted(names))

    def array(self, name: str, *, most: int = 64 << 20) -> Array:
        """A whole column."""
        shape, dtype = self.columns[name]
        if int(np.prod(shape)) * dtype.itemsize > most:
            raise CorruptArchive(f"{self.path.name}: {name} has more than {most:,} bytes.")
        return self.rows([name]).read(0, shape[0])[name]


class ParquetRows:
    """Rows of several columns, in order; the block read last may be asked for again in part."""

    def __init__(self, parquet: ParquetFile, names: list[str]) -> None:
        self._parquet, self._names = parquet, names
        self._batches = parquet.file.iter_batches(batch_size=parquet.batch_rows, columns=names) if names else iter(())
        self._start = 0
        self._kept = {n: np.empty((0, *parquet.columns[n][0][1:]), parquet.columns[n][1]) for n in names}

    def __enter__(self) -> ParquetRows:
        return self

    def __exit__(self, *exc: Any) -> None:
        return None

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Rows ``start`` to ``stop`` of every column; what lies before is let go of.

        Raises
        ------
        CorruptArchive
            Damage, or rows of different shapes.
        """
        if start < self._start:
            raise ValueError(f"row {start} lies before row {self._start}, where reading is.")
        blocks = {n: [v] for n, v in self._kept.items()}
        have = self._start + len(next(iter(self._kept.values()), ()))
        with reading(self._parquet.path):
            while self._names and have < stop and (batch := next(self._batches, None)) is not None:
                for n in self._names:
                    shape, dtype = self._parquet.columns[n]
                    value = _values(batch.column(n), (len(batch), *shape[1:]), self._parquet.path.name, n)
                    blocks[n].append(value if dtype.kind in "SUO" else value.astype(dtype, copy=False))
                have += len(batch)
        joined = {n: np.concatenate(v) if len(v) > 1 else v[0] for n, v in blocks.items()}
        self._kept = {n: v[start - self._start :] for n, v in joined.items()}
        self._start = start
        return {n: v[: stop - start] for n, v in self._kept.items()}


def _values(column: Any, shape: tuple[int, ...], file: str, name: str) -> Array:
    """A column of a batch as an array; of one row the shape is found out, of others it is asked for."""
    import pyarrow as pa

    flat, width = column, []
    while _is_list(flat.type):
        _check_missing(flat, file, name)
        rows = len(flat)
        flat = flat.flatten()
        if rows and len(flat) % rows:
            raise CorruptArchive(f"{file}: {name} has rows of different lengths.")
        width.append(len(flat) // rows if rows else 0)
    flat = flat.dictionary_decode() if pa.types.is_dictionary(flat.type) else flat  # categories, as pandas writes them
    kind = flat.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = np.array(flat.to_pylist(), object)
    else:
        if not pa.types.is_floating(kind):  # else NaN, of which pandas makes missing values
            _check_missing(flat, file, name)
        values = flat.to_numpy(zero_copy_only=False)
    found = (len(column), *width)
    if len(shape) > 1 and len(column) and found != (len(column), *shape[1:]):
        raise CorruptArchive(f"{file}: {name} has rows of {list(found[1:])}; others have {list(shape[1:])}.")
    if _is_ragged(column):
        raise CorruptArchive(f"{file}: {name} has rows of different lengths.")
    return np.asarray(values).reshape(found)


def _check_missing(column: Any, file: str, name: str) -> None:
    if column.null_count:
        raise CorruptArchive(f"{file}: {name} has {column.null_count} rows without a value.")


def _is_known(kind: Any) -> bool:
    """Whether values are texts, numbers or flags, or lists of them."""
    import pyarrow as pa

    while _is_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    numbers = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(numbers or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_ragged(column: Any) -> bool:
    """Whether lists of one column have different lengths."""
    import pyarrow as pa

    while _is_list(column.type):
        if not pa.types.is_fixed_size_list(column.type) and len(column) > 1:
            lengths = np.diff(column.offsets.to_numpy())
            if (lengths != lengths[0]).any():
                return True
        column = column.flatten()
    return False


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around what reads a file: errors of pyarrow become ours."""
    pa = pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError) as e:
        raise CorruptArchive(f"{path.name} cannot be read as Parquet: {e}", hint=f"fetch or write {path} again") from e


def pyarrow() -> Any:
    """The package, with what is used of it: for Parquet and Arrow files, of any family.

    Raises
    ------
    MissingPackage
        It is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as e:
        raise MissingPackage(
            "Parquet and Arrow files are read with pyarrow, which is not installed.",
            hint="pip install 'rlds-cli[arrow]'",
        ) from e
    return pa
