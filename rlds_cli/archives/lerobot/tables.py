"""Parquet and JSON lines of an archive, with errors that name the file."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import documents
from rlds_cli.archives import image_header, parquet
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.store.frames import MAX_PIXELS
from rlds_cli.ted import Array, EncodedFrames


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """Around what reads a file: pyarrow, whose errors become ours."""
    pa = parquet.pyarrow()
    try:
        yield pa
    except (pa.ArrowException, OSError, KeyError, UnicodeError) as e:
        raise CorruptArchive(f"{path} cannot be read: {e}", hint="fetch it again") from e


def schema(path: Path) -> Any:
    """The columns of a Parquet file."""
    with reading(path) as pa:
        return pa.parquet.read_schema(path)


def rows(path: Path) -> int:
    """The number of rows of a Parquet file."""
    with reading(path) as pa:
        return int(pa.parquet.read_metadata(path).num_rows)


def table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """A whole Parquet file, or those of some columns that it has."""
    with reading(path) as pa, parquet.opened(path) as file:
        there = file.schema_arrow.names
        chosen = there if columns is None else [c for c in columns if c in there]
        schema = pa.schema([file.schema_arrow.field(c) for c in chosen])
        return pa.Table.from_batches(parquet.batches(file, path, chosen, parquet.BATCH_ROWS), schema)


def batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[Any]:
    """The rows of a Parquet file, so many at a time."""
    with reading(path), parquet.opened(path, memory_map=True, pre_buffer=False) as file:
        yield from parquet.batches(file, path, columns, rows)


def joined(batches: Sequence[Any]) -> Any:
    """Batches one after the other, as a table.

    Raises
    ------
    UnknownLayout
        Their columns are of different types.
    """
    pa = parquet.pyarrow()
    try:
        return pa.Table.from_batches([b.replace_schema_metadata(None) for b in batches])
    except pa.ArrowException as e:
        raise UnknownLayout(f"Data files do not hold the same columns: {e}") from e


def json_of(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return documents.load(path)
    except (OSError, ValueError) as e:
        raise CorruptArchive(f"{path} cannot be read: {e}", hint="fetch it again") from e


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file with one a line."""
    try:
        with path.open(encoding="utf-8") as f:
            while line := f.readline(documents.LONGEST + 1):
                if line.strip():
                    value = documents.loads(line)
                    if not isinstance(value, dict):
                        raise ValueError(f"a line is a {type(value).__name__}")
                    yield value
    except (OSError, ValueError) as e:
        raise CorruptArchive(f"{path} cannot be read: {e}", hint="fetch it again") from e


def values(column: Any, out: Array, where: str) -> None:
    """Fill ``out`` [n, ...] with a column of numbers, flags, or lists of them."""
    array = column.combine_chunks()
    while hasattr(array.type, "value_type"):
        if array.null_count:
            raise UnknownLayout(f"{where} has rows without a value, which an array of numbers does not hold.")
        array = array.flatten()
    if array.null_count and out.dtype.kind != "f":
        raise UnknownLayout(f"{where} lacks {array.null_count:,} values, which {out.dtype} does not hold.")
    found = array.to_numpy(zero_copy_only=False)
    if found.size != out.size:
        raise CorruptArchive(f"{where} has {found.size:,} values in {len(out):,} rows of shape {list(out.shape[1:])}.")
    out[...] = found.reshape(out.shape)


def json_texts(column: Any) -> list[str | None]:
    """A column of structs, lists of them or texts, or anything else, as the text of each row's JSON.

    Keys stay in the order of the file. NaN and infinities become null, bytes base64, and dates texts.
    """
    return [None if v is None else json_text(v) for v in column.to_pylist()]


def json_text(value: Any) -> str:
    """One value of a column as JSON; see `json_texts`."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def images(column: Any, where: str) -> EncodedFrames:
    """A column of images, ``struct<bytes, path>``, as they are encoded."""
    pa = parquet.pyarrow()
    array = column.combine_chunks()
    if hasattr(array, "field"):
        array = pa.compute.struct_field(array, "bytes")
    if array.null_count:
        raise UnknownLayout(f"{where}: images lie in other files, which are not part of LeRobot's layout.")
    array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    view = content.data
    for row, (a, b) in enumerate(pairwise(ends.tolist())):
        if image_header.is_damaged(view[a:b]):
            raise CorruptArchive(f"{where}, row {row} of a block: a PNG image is damaged.", hint="fetch it again")
    return EncodedFrames(content[ends[0] : ends[-1]], np.diff(ends))


def frames(column: Any, where: str) -> EncodedFrames:
    """A column of images that are kept as they are encoded.

    Raises
    ------
    CorruptArchive
        One is neither PNG nor JPEG.
    UnsafeArchive
        One is too large to be decoded.
    """
    found = images(column, where)
    stops = np.cumsum(found.lengths)
    for row, (a, b) in enumerate(zip((stops - found.lengths).tolist(), stops.tolist(), strict=True)):
        header = image_header.read(found.data.data, a, b)
        if header is None:
            raise CorruptArchive(f"{where}, row {row} of a block: {b - a:,} bytes that are neither PNG nor JPEG.")
        if header.height * header.width > MAX_PIXELS:
            raise UnsafeArchive(f"{where}, row {row} of a block: an image of {header.height}x{header.width}.")
    return found
