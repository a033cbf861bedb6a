"""Open Parquet files as untrusted input, as columns of rows, and bound the memory that decoding them takes.

The sizes in the footer of a file may be anything. A decoder allocates by the header before each page, so these headers
are read first. Headers (``PageHeader``) and the footer (``FileMetaData``) are of parquet-format, in Thrift's compact
protocol::

    1 type   2 uncompressed size   3 compressed size   5 data page   7 dictionary page   8 data page, version 2
                                                         1 number of values

A dictionary holds each value once, and any number of rows may name it: 1,741 bytes of a file then stand for 8 GiB. A
row of a list may have all values of its column.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlds_cli.errors import CorruptArchive, UnsafeArchive
from rlds_cli.files import child
from rlds_cli.formats.arrow_tables import ArrowFile, from_row
from rlds_cli.formats.arrow_tables import pyarrow as pyarrow
from rlds_cli.formats.arrow_tables import reading as reading

MAGIC = b"PAR1"
BATCH_ROWS = 1 << 13
BATCH_BYTES = 32 << 20
MAX_BATCH = 128 << 20  # of texts or bytes, as far as the headers of pages tell
# Highest ratio of decoded to stored bytes. Runs of one value take next to nothing, so small files may claim more.
MAX_RATIO = 1000
FREE_BYTES = 64 << 20
MAX_PAGE = 512 << 20
# Values of one column of lists in a row group, which may all be of one row.
FREE_LISTS, LISTS_RATIO = 256 << 20, 64
SMALL_DICTIONARY = 32 << 10  # whose longest value is not looked for
MAX_HEADER = 16 << 20
MAX_DEPTH = 16
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
_OFFSET = 8  # of a text or of bytes, beside its characters
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_BYTES = 6  # the type of texts
_CODECS = {0: "uncompressed", 1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4_raw", 6: "zstd", 7: "lz4_raw"}
_ROW_GROUPS, _COLUMNS, _DESCRIBED = 4, 1, 3  # fields of FileMetaData, RowGroup and ColumnChunk


def is_parquet(path: Path) -> bool:
    """Return whether a file begins and ends as Parquet does."""
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
    child.note(path)
    with pyarrow().parquet.ParquetFile(path, page_checksum_verification=True, **how) as file:
        check(file.metadata, path)
        yield file


def batches(
    file: Any, path: Path, columns: Sequence[str] | None, rows: int, *, start: int = 0, use_threads: bool = False
) -> Iterator[Any]:
    """Yield the record batches of some columns, of at most ``rows`` rows, or fewer if rows may be large.

    They begin with row ``start``; row groups before it are not decoded.

    Raises
    ------
    UnsafeArchive
        Pages claim what the file cannot hold, or the columns become more than a thousand times its size.
    """
    stat = path.stat()
    width = row_bytes(str(path), (stat.st_size, stat.st_mtime_ns))
    tops = width if columns is None else columns
    most = max(1, min(rows, MAX_BATCH // max(1, sum(width.get(t, 0) for t in tops))))
    decoded = 0
    names = None if columns is None else list(columns)
    groups = range(file.metadata.num_row_groups)
    begins = list(accumulate((file.metadata.row_group(i).num_rows for i in groups), initial=0))
    first = max(0, bisect_right(begins, start, hi=len(groups)) - 1)
    found = file.iter_batches(batch_size=most, columns=names, row_groups=list(groups[first:]), use_threads=use_threads)
    for batch in from_row(found, start - begins[first]):
        decoded += sum(map(_decoded_bytes, batch.columns))
        _check_claim(decoded, path)
        yield batch


def check(metadata: Any, path: Path) -> None:
    """Refuse a file whose metadata claim more than it can hold.

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


def _decoded_bytes(column: Any) -> int:
    """Bytes of a column once each of its rows has its own value: rows may share the values of a dictionary."""
    types, compute = pyarrow().types, pyarrow().compute
    if types.is_dictionary(column.type):
        values = column.dictionary
        if not (
            types.is_string(values.type)
            or types.is_large_string(values.type)
            or types.is_binary(values.type)
            or types.is_large_binary(values.type)
        ):
            return len(column) * int(values.nbytes // max(1, len(values)))
        return int(compute.sum(compute.binary_length(values).take(column.indices)).as_py() or 0)
    if types.is_struct(column.type):
        return sum(map(_decoded_bytes, column.flatten()))
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        return int(column.nbytes) - int(column.flatten().nbytes) + _decoded_bytes(column.flatten())
    return int(column.nbytes)


def _check_claim(claimed: int, path: Path) -> None:
    size = path.stat().st_size
    if claimed > FREE_BYTES + MAX_RATIO * size:
        raise UnsafeArchive(f"{path.name} claims {claimed:,} rows or bytes, and has {size:,} bytes.")


@dataclass(frozen=True, slots=True)
class Page:
    """The header of a page; ``start`` is the position of the page's own bytes."""

    kind: int
    unpacked: int
    packed: int
    values: int
    start: int


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The footer's entry for one column of one row group: the position of its pages and their size."""

    path: str
    kind: int
    codec: int
    start: int
    size: int


@lru_cache(maxsize=1 << 10)
def row_bytes(path: str, version: tuple[int, int]) -> dict[str, int]:
    """Return the most bytes of a row of each top-level column; ``version`` is size and time of change of the file.

    Raises
    ------
    UnsafeArchive
        Pages claim what the file cannot hold.
    CorruptArchive
        A header cannot be read.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    found, names = dict[str, int](), set(metadata.schema.to_arrow_schema().names)
    with Path(path).open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for i, group in enumerate(_footer(Path(path).name, content)):
            rows, count = dict[str, int](), metadata.row_group(i).num_rows
            if len(group) != len(metadata.schema):
                raise CorruptArchive(f"{Path(path).name}: a row group has {len(group)} columns.")
            for j, chunk in enumerate(group):
                top = _top(chunk.path, names)
                width = _of_chunk(Path(path).name, content, chunk, metadata.schema.column(j), count)
                rows[top] = rows.get(top, 0) + width
            found = {top: max(found.get(top, 0), rows.get(top, 0)) for top in {*found, *rows}}
    return found


def _footer(name: str, content: mmap.mmap) -> list[list[ColumnChunk]]:
    """Read the columns of each row group. pyarrow would end the process over damaged statistics."""
    end = len(content) - 8
    try:
        size = int.from_bytes(content[end : end + 4], "little")
        footer, _ = _struct(content, max(0, end - size), end)
        described = [[c[_DESCRIBED] for c in group[_COLUMNS]] for group in footer.get(_ROW_GROUPS, [])]
        return [[_chunk(c) for c in columns] for columns in described]
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptArchive(f"{name}: its footer is damaged ({e!r}).", hint="fetch the file again") from e


def _chunk(said: Mapping[int, Any]) -> ColumnChunk:
    """``ColumnMetaData``: 1 type, 3 path, 4 codec, 7 compressed size, 9 first data page, 11 dictionary."""
    starts = [at for at in (said[9], said.get(11)) if at]
    path = ".".join(part.decode("utf-8", "replace") for part in said[3])
    found = ColumnChunk(path, said[1], said[4], min(starts), said[7])
    if found.start < 0 or found.size < 0:
        raise ValueError(f"pages of {found.size} bytes at byte {found.start}")
    return found


def _top(path: str, names: set[str]) -> str:
    """Return the top-level column of a path; both may hold dots."""
    parts = path.split(".")
    return next((top for k in range(len(parts), 0, -1) if (top := ".".join(parts[:k])) in names), parts[0])


def _of_chunk(name: str, content: mmap.mmap, chunk: ColumnChunk, column: Any, rows: int) -> int:
    """Return the most bytes of a row of one column in a row group that claims ``rows`` rows."""
    what = f"{name}: the column {chunk.path}"
    pages = list(_pages(what, content, chunk))
    unpacked, width = sum(p.unpacked for p in pages), _width(column)
    data = [p for p in pages if p.kind in (_DATA, _DATA_V2)]
    values = sum(p.values for p in data)
    if values != rows and not column.max_repetition_level:
        raise CorruptArchive(f"{what} has {values:,} values in a row group of {rows:,}.", hint="fetch the file again")
    if max(unpacked, values * width) > FREE_BYTES + MAX_RATIO * len(content):
        raise _refused(what, max(unpacked, values * width), len(content))
    if any(p.unpacked > max(FREE_BYTES, min(MAX_PAGE, MAX_RATIO * p.packed)) for p in pages):
        raise _refused(f"{what}, a page", max(p.unpacked for p in pages), len(content))
    longest = max((_longest(what, content, p, chunk) for p in pages if p.kind == _DICTIONARY), default=0)
    if column.max_repetition_level:
        claimed = values * max(width, longest)
        if claimed > FREE_LISTS + LISTS_RATIO * chunk.size:
            raise _refused(f"{what}, in lists", claimed, len(content))
        return 0
    if column.physical_type != "BYTE_ARRAY":
        return width
    return width + max(longest, *(p.unpacked // max(1, p.values) for p in data), 0)


def _width(column: Any) -> int:
    """Return the bytes of one value, as far as the type tells."""
    kind = column.physical_type
    return column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind, _OFFSET)


def _longest(what: str, content: mmap.mmap, page: Page, chunk: ColumnChunk) -> int:
    """Return the bytes of the longest text of a dictionary; for a small dictionary, all its bytes."""
    if chunk.kind != _BYTES:
        return 0
    if page.unpacked <= SMALL_DICTIONARY:
        return page.unpacked
    import pyarrow as pa

    packed = content[page.start : page.start + page.packed]
    codec = _CODECS.get(chunk.codec)
    if codec is None:
        return page.unpacked
    try:
        data = packed if codec == "uncompressed" else pa.decompress(packed, page.unpacked, codec, asbytes=True)
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return page.unpacked  # what is damaged is named by the decoder
    longest = at = 0
    for _ in range(page.values):
        if at + 4 > len(data):
            break
        size = int.from_bytes(data[at : at + 4], "little")
        longest, at = max(longest, size), at + 4 + size
    return min(longest, page.unpacked)


def _pages(what: str, content: mmap.mmap, chunk: ColumnChunk) -> Iterator[Page]:
    at = chunk.start
    end = min(at + chunk.size, len(content))
    try:
        while at < end:
            header, at = _struct(content, at, min(end, at + MAX_HEADER))
            kind, unpacked, packed = header[1], header[2], header[3]
            described = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
            values = described.get(1, 0)
            if min(unpacked, packed, values) < 0:
                raise ValueError("a negative size")
            yield Page(kind, unpacked, packed, values, at)
            at += packed
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptArchive(f"{what}: the header of a page is damaged ({e!r}).", hint="fetch the file again") from e


# -- Thrift's compact protocol, as far as headers need it


def _struct(data: mmap.mmap, at: int, end: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Parse fields by number, and return them with the position behind them; texts are bytes."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        if at >= end:
            raise ValueError("it has no end")
        head = data[at]
        at += 1
        if not head:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, end, head & 15, depth)


def _value(data: mmap.mmap, at: int, end: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return None, at + 1
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _varint(data, at)
        if size > end - at:
            raise ValueError("a text goes beyond its end")
        return data[at : at + size], at + size
    if kind in (9, 10):
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 < 15 else _varint(data, at + 1)
        if count > end - at:
            raise ValueError("a list goes beyond its end")
        values = []
        for _ in range(count):
            value, at = _value(data, at, end, head & 15, depth + 1) if head & 15 > 2 else (None, at + 1)
            values.append(value)
        return values, at
    if kind == 12:
        return _struct(data, at, end, depth + 1)
    raise ValueError(f"a field of type {kind}")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _zigzag(data: mmap.mmap, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _refused(what: str, claimed: int, size: int) -> UnsafeArchive:
    return UnsafeArchive(f"{what} claims {claimed:,} bytes, and the file has {size:,}.")
