"""Raw arrays on disk, as Zarr v3: one file of rows, uncompressed inner chunks in row order, index at the end.

::

    <array>/zarr.json
    <array>/c/0[/0...]     rows in C order | zeros up to a whole inner chunk | (offset, nbytes) u64 per inner chunk

Any Zarr v3 reader opens the array; we map the file. An array of no bytes has a ``zarr.json`` and no file. Rows are
written at their places, and `finish` makes an array of the file.

A file to which rows are added later is one chunk of raw rows without an index. It has the rows of the whole chunk, of
which the first ones are in the array.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import disk
from rlds_cli.base.files import safe as safe_files

INNER_BYTES = 1 << 20


def data_file(directory: Path, ndim: int, number: int = 0) -> Path:
    """Return the file of a shard of an array, the only one by default."""
    return directory / f"c/{number}{'/0' * (ndim - 1)}"


def row_bytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Return the bytes of one row of an array of ``shape`` [rows, ...]."""
    return math.prod(shape[1:]) * np.dtype(dtype).itemsize


def inner_rows(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Return the rows of an inner chunk: about 1 MiB, or all rows."""
    return max(1, min(shape[0], INNER_BYTES // max(1, row_bytes(shape, dtype))))


def file_size(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Return the size of the shard; 0 without a file."""
    width = row_bytes(shape, dtype)
    if shape[0] * width == 0:
        return 0
    inner = inner_rows(shape, dtype)
    chunks = -(-shape[0] // inner)
    return chunks * (inner * width + 16)


def document(shape: tuple[int, ...], dtype: npt.DTypeLike, attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The ``zarr.json`` of an array of ``shape`` [rows, ...]. What is in it is not to be changed."""
    return {**_document(shape, np.dtype(dtype)), "attributes": attributes or {}}


@lru_cache(maxsize=256)  # a dataset has many arrays of one shape
def _document(shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    inner = inner_rows(shape, dtype)
    chunks = max(1, -(-shape[0] // inner))
    tail = [max(1, d) for d in shape[1:]]
    data_codec: dict[str, Any] = {"name": "bytes"}
    if dtype.itemsize > 1:
        data_codec["configuration"] = {"endian": "little"}
    fill: Any = False if dtype.kind == "b" else 0.0 if dtype.kind == "f" else [0.0, 0.0] if dtype.kind == "c" else 0
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunks * inner, *tail]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [inner, *tail],
                    "codecs": [data_codec],
                    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                    "index_location": "end",
                },
            }
        ],
    }


def chunk_document(shape: tuple[int, ...], dtype: npt.DTypeLike, chunk: int) -> dict[str, Any]:
    """The ``zarr.json`` of an array of ``shape`` [rows, ...] in chunks of raw rows, each of ``chunk`` rows."""
    described = document(shape, dtype)
    plain = described["codecs"][0]["configuration"]["codecs"]
    sides = [chunk, *(max(1, d) for d in shape[1:])]
    grid = {"name": "regular", "configuration": {"chunk_shape": sides}}
    return {**described, "chunk_grid": grid, "codecs": plain}


def finish(
    directory: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, attributes: dict[str, Any] | None = None
) -> None:
    """Turn a file of raw rows into an array: pad, index, ``zarr.json``."""
    size = file_size(shape, dtype)
    file = data_file(directory, len(shape))
    safe_files.make(directory)
    if size:
        index = _index(shape, dtype)
        with safe_files.updating(file) as f:
            f.truncate(shape[0] * row_bytes(shape, dtype))  # drop bytes that an interrupted run wrote behind the rows
            f.truncate(size - len(index))
            f.seek(size - len(index))
            f.write(index)
    else:
        file.unlink(missing_ok=True)
    safe_files.write_bytes(directory / "zarr.json", json.dumps(document(shape, dtype, attributes)).encode())


def _index(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bytes:
    """Offset and size of every inner chunk."""
    inner = inner_rows(shape, dtype) * row_bytes(shape, dtype)
    chunks = file_size(shape, dtype) // (inner + 16)
    index = np.empty((chunks, 2), "<u8")
    index[:, 0] = np.arange(chunks, dtype=np.uint64) * np.uint64(inner)
    index[:, 1] = inner
    return index.tobytes()


def tail(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bytes:
    """Return the bytes of the file behind the rows: zeros up to a whole inner chunk, and the index."""
    index = _index(shape, dtype)
    padding = file_size(shape, dtype) - shape[0] * row_bytes(shape, dtype) - len(index)
    return bytes(padding) + index


def write(directory: Path, values: Array) -> None:
    """Write a whole array."""
    values = little_endian(values)
    shape, dtype = values.shape, values.dtype
    if not values.size:
        finish(directory, shape, dtype)
        return
    file = data_file(directory, len(shape))
    safe_files.make(file.parent)
    safe_files.write_bytes(file, raw(values), tail(shape, dtype))
    safe_files.write_bytes(directory / "zarr.json", json.dumps(document(shape, dtype)).encode())


def little_endian(values: Array) -> Array:
    """``values``, C-contiguous, in little-endian order."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<") if values.dtype.byteorder == ">" else None)


def raw(values: Array) -> memoryview:
    """The bytes of ``values`` in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def write_at(fd: int, offset: int, values: Array) -> None:
    """Write ``values`` at ``offset`` with ``pwrite``: a full disk would be a SIGBUS in a mapped file."""
    if values.size:
        disk.write_at(fd, offset, raw(values))


@dataclass(frozen=True, slots=True)
class Segment:
    """A file with the rows of an array from ``start`` on: chunk ``number`` of the array in ``directory``.

    ``shape`` is that of its rows. ``chunk`` is the number of rows for which the file has room, without an index behind
    them; 0 for a file that is one shard.
    """

    start: int
    directory: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: int = 0
    number: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def file(self) -> Path:
        """The file; there is none if `size` is 0."""
        return data_file(self.directory, len(self.shape), self.number)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        if self.chunk:
            return self.chunk * row_bytes(self.shape, self.dtype) if self.rows else 0
        return file_size(self.shape, self.dtype)


def write_strings(directory: Path, values: list[str]) -> None:
    """Write strings as two arrays: their UTF-8 ``bytes`` end to end, and ``offsets`` [n+1]."""
    encoded = [v.encode("utf-8", "surrogateescape") for v in values]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(e) for e in encoded], out=offsets[1:])
    write(directory / "bytes", np.frombuffer(b"".join(encoded), np.uint8))
    write(directory / "offsets", offsets)
    write_group(directory)


def write_group(directory: Path, attributes: dict[str, Any] | None = None, *, lines: bool = True) -> None:
    """Write the ``zarr.json`` of a group; with ``lines`` each value has a line of its own, for people."""
    safe_files.make(directory)
    safe_files.write_bytes(directory / "zarr.json", group_document(attributes, lines=lines))


def group_document(attributes: dict[str, Any] | None = None, *, lines: bool = True) -> bytes:
    """Return what `write_group` writes."""
    described = {"zarr_format": 3, "node_type": "group", "attributes": attributes or {}}
    return json.dumps(described, indent=1 if lines else None).encode()
