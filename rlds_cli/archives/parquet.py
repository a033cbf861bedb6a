"""Parquet files opened as untrusted input, as columns of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlds_cli.archives.arrow_rows import ArrowFile
from rlds_cli.archives.arrow_rows import pyarrow as pyarrow
from rlds_cli.archives.arrow_rows import reading as reading
from rlds_cli.errors import UnsafeArchive

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

        def batches(names: Sequence[str] | None) -> Iterator[Any]:
            width = found.row_bytes if names is not None else BATCH_BYTES >> 6
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, width)))
            return iter(f.iter_batches(batch_size=rows, columns=names))

        found = ArrowFile(path, f.schema_arrow, int(f.metadata.num_rows), batches, fill=fill)
        _check_claim(found.num_rows * found.row_bytes, path)
        yield found


@contextmanager
def opened(path: Path, **how: Any) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile`` that compares the checksums of pages, where the file has them.

    pyarrow's own errors come out. ``how`` goes to pyarrow.
    """
    with pyarrow().parquet.ParquetFile(path, page_checksum_verification=True, **how) as file:
        check(file.metadata, path)
        yield file


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
