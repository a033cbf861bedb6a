"""Parquet files opened as untrusted input, as columns of rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlds_cli.archives import parquet_pages
from rlds_cli.archives.arrow_rows import ArrowFile, from_row
from rlds_cli.archives.arrow_rows import pyarrow as pyarrow
from rlds_cli.archives.arrow_rows import reading as reading
from rlds_cli.errors import UnsafeArchive

MAGIC = b"PAR1"
BATCH_ROWS = 1 << 13
BATCH_BYTES = 32 << 20
MAX_BATCH = 128 << 20  # of texts or bytes, as far as the headers of pages tell
MAX_RATIO, FREE_BYTES = parquet_pages.MAX_RATIO, parquet_pages.FREE_BYTES


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
def open_parquet(path: Path, *, fill: bool = False) -> Iterator[ArrowFile]:
    """Open for reading; ``fill`` as of ``ArrowFile``.

    Raises
    ------
    CorruptArchive
        Damage.
    UnsafeArchive
        It claims more than it can hold.
    MissingPackage
        pyarrow is not installed.
    """
    with reading(path), opened(path) as f:

        def chosen(names: Sequence[str] | None, start: int) -> Iterator[Any]:
            width = found.row_bytes if names is not None else BATCH_BYTES >> 6
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, width)))
            return batches(f, path, names, rows, start=start, use_threads=True)

        found = ArrowFile(path, f.schema_arrow, int(f.metadata.num_rows), chosen, fill=fill)
        _check_claim(found.num_rows * found.row_bytes, path)
        yield found


@contextmanager
def opened(path: Path, **how: Any) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile`` that compares the checksums of pages, where the file has them.

    pyarrow's own errors come out. ``how`` goes to pyarrow. Rows are read with `batches`.
    """
    with pyarrow().parquet.ParquetFile(path, page_checksum_verification=True, **how) as file:
        check(file.metadata, path)
        yield file


def batches(
    file: Any, path: Path, columns: Sequence[str] | None, rows: int, *, start: int = 0, use_threads: bool = False
) -> Iterator[Any]:
    """The record batches of some columns, of at most ``rows`` rows, and of fewer where rows may be large.

    They begin with row ``start``; row groups before it are not decoded.

    Raises
    ------
    UnsafeArchive
        Pages claim what the file cannot hold, or the columns become more than a thousand times its size.
    """
    stat = path.stat()
    width = parquet_pages.row_bytes(str(path), (stat.st_size, stat.st_mtime_ns))
    tops = width if columns is None else columns
    most = max(1, min(rows, MAX_BATCH // max(1, sum(width.get(t, 0) for t in tops))))
    decoded = 0
    names = None if columns is None else list(columns)
    groups = range(file.metadata.num_row_groups)
    begins = list(accumulate((file.metadata.row_group(i).num_rows for i in groups), initial=0))
    first = max(0, bisect_right(begins, start, hi=len(groups)) - 1)
    found = file.iter_batches(batch_size=most, columns=names, row_groups=list(groups[first:]), use_threads=use_threads)
    for batch in from_row(found, start - begins[first]):
        decoded += batch.nbytes
        _check_claim(decoded, path)
        yield batch


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
