"""Open Parquet files as untrusted input, as columns of rows.

The sizes in a file may be anything, and a dictionary holds each value once, which any number of rows may name: 1,741
bytes of a file then stand for 8 GiB. The process that reads an archive has a limit on its memory (`files.child`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlds_cli.archives.formats.arrow_files import is_between
from rlds_cli.archives.formats.arrow_tables import ArrowFile, from_row
from rlds_cli.archives.formats.arrow_tables import pyarrow as pyarrow
from rlds_cli.archives.formats.arrow_tables import reading as reading
from rlds_cli.base.files import child

MAGIC = b"PAR1"
BATCH_ROWS = 1 << 13
BATCH_BYTES = 32 << 20
MAX_BATCH = 128 << 20  # bytes of all columns, as far as the footer tells


def is_parquet(path: Path) -> bool:
    """Return whether a file begins and ends as Parquet does."""
    return is_between(path, MAGIC)


@contextmanager
def open_parquet(path: Path, *, fill: bool = False) -> Iterator[ArrowFile]:
    """Open for reading; ``fill`` as of ``ArrowFile``.

    Raises
    ------
    CorruptArchive
        Damage.
    MissingPackage
        pyarrow is not installed.
    """
    with reading(path), opened(path) as f:

        def chosen(names: Sequence[str] | None, start: int) -> Iterator[Any]:
            width = found.row_bytes if names is not None else BATCH_BYTES >> 6
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, width)))
            return batches(f, path, names, rows, start=start, use_threads=True)

        found = ArrowFile(path, f.schema_arrow, int(f.metadata.num_rows), chosen, fill=fill)
        yield found


def schema(path: Path) -> Any:
    """The columns of a file, by its footer; raises as `open_parquet`."""
    child.note(path)
    with reading(path):
        return pyarrow().parquet.read_schema(path)


@contextmanager
def opened(path: Path, **how: Any) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile`` that compares the checksums of pages, where the file has them.

    pyarrow's own errors come out. ``how`` goes to pyarrow. Rows are read with `batches`.
    """
    child.note(path)
    with pyarrow().parquet.ParquetFile(path, page_checksum_verification=True, **how) as file:
        yield file


def batches(
    file: Any, path: Path, columns: Sequence[str] | None, rows: int, *, start: int = 0, use_threads: bool = False
) -> Iterator[Any]:
    """Yield the record batches of some columns, of at most ``rows`` rows, or fewer if rows are large.

    They begin with row ``start``; row groups before it are not decoded.
    """
    metadata = file.metadata
    names = None if columns is None else list(columns)
    most = max(1, min(rows, MAX_BATCH * metadata.num_rows // max(1, _size(metadata, names))))
    groups = range(metadata.num_row_groups)
    begins = list(accumulate((metadata.row_group(i).num_rows for i in groups), initial=0))
    first = max(0, bisect_right(begins, start, hi=len(groups)) - 1)
    found = file.iter_batches(batch_size=most, columns=names, row_groups=list(groups[first:]), use_threads=use_threads)
    yield from from_row(found, start - begins[first])


def _size(metadata: Any, names: Sequence[str] | None) -> int:
    """Return the bytes of some columns, unpacked, as the footer tells them."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if names is None:
        return sum(g.total_byte_size for g in groups)
    columns = [g.column(k) for g in groups for k in range(g.num_columns)]
    return sum(c.total_uncompressed_size for c in columns if any(_is_in(c.path_in_schema, n) for n in names))


def _is_in(path: str, name: str) -> bool:
    """Return whether a column of the file is the top-level column ``name`` or lies within it."""
    return path == name or path.startswith(f"{name}.")
