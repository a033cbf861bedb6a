"""Zarr v3 arrays whose file is the raw rows: one shard, uncompressed inner chunks in row order, index at the end.

::

    <array>/zarr.json
    <array>/c/0[/0...]     rows in C order | zeros up to a whole inner chunk | (offset, nbytes) u64 per inner chunk

Any Zarr v3 reader opens the array; we map the file. An array of no bytes has a ``zarr.json`` and no file.
"""

from __future__ import annotations

import json
import mmap
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.errors import DamagedDataset
from rlds_cli.ted import Array

INNER_BYTES = 1 << 20
_HINT = "rlds verify ID names what else is wrong; rlds download ID --force makes it anew"


def data_file(directory: Path, ndim: int) -> Path:
    """The one shard of an array."""
    return directory.joinpath("c", *["0"] * ndim)


def row_bytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Bytes of one row of an array of ``shape`` [rows, ...]."""
    return int(np.prod(shape[1:], dtype=np.int64)) * np.dtype(dtype).itemsize


def inner_rows(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Rows of an inner chunk: about 1 MiB, or all there are."""
    return max(1, min(shape[0], INNER_BYTES // max(1, row_bytes(shape, dtype))))


def file_size(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Size of the shard; 0 where there is no file."""
    width = row_bytes(shape, dtype)
    if shape[0] * width == 0:
        return 0
    inner = inner_rows(shape, dtype)
    chunks = -(-shape[0] // inner)
    return chunks * (inner * width + 16)


def document(shape: tuple[int, ...], dtype: npt.DTypeLike, attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The ``zarr.json`` of an array of ``shape`` [rows, ...]."""
    kind = np.dtype(dtype)
    inner = inner_rows(shape, dtype)
    chunks = max(1, -(-shape[0] // inner))
    tail = [max(1, d) for d in shape[1:]]
    data_codec: dict[str, Any] = {"name": "bytes"}
    if kind.itemsize > 1:
        data_codec["configuration"] = {"endian": "little"}
    fill: Any = False if kind.kind == "b" else 0.0 if kind.kind == "f" else [0.0, 0.0] if kind.kind == "c" else 0
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": kind.name,
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
        "attributes": attributes or {},
    }


def finish(directory: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """Turn a file of raw rows into an array: pad, index, ``zarr.json``."""
    size = file_size(shape, dtype)
    file = data_file(directory, len(shape))
    directory.mkdir(parents=True, exist_ok=True)
    if size:
        index = _index(shape, dtype)
        with file.open("r+b") as f:
            f.truncate(shape[0] * row_bytes(shape, dtype))  # what an interrupted run wrote behind the rows
            f.truncate(size - len(index))
            f.seek(size - len(index))
            f.write(index)
    else:
        file.unlink(missing_ok=True)
    (directory / "zarr.json").write_text(json.dumps(document(shape, dtype)))


def _index(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bytes:
    """Offset and size of every inner chunk."""
    inner = inner_rows(shape, dtype) * row_bytes(shape, dtype)
    chunks = file_size(shape, dtype) // (inner + 16)
    index = np.empty((chunks, 2), "<u8")
    index[:, 0] = np.arange(chunks, dtype=np.uint64) * np.uint64(inner)
    index[:, 1] = inner
    return index.tobytes()


def tail(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bytes:
    """What stands in the file behind the rows: zeros up to a whole inner chunk, and the index."""
    index = _index(shape, dtype)
    padding = file_size(shape, dtype) - shape[0] * row_bytes(shape, dtype) - len(index)
    return bytes(padding) + index


def write(directory: Path, values: Array) -> None:
    """Write a whole array."""
    values = little_endian(values)
    file = data_file(directory, values.ndim)
    if values.size:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw(values))
    finish(directory, values.shape, values.dtype)


def little_endian(values: Array) -> Array:
    """``values``, C-contiguous, in little-endian order."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<") if values.dtype.byteorder == ">" else None)


def raw(values: Array) -> memoryview:
    """The bytes of ``values`` in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def write_at(fd: int, offset: int, values: Array) -> None:
    """Write ``values`` at ``offset``: by ``pwrite``, for through a map a full disk would be a SIGBUS."""
    if values.size == 0:
        return
    view = raw(values)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def open_map(directory: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Map an array, read-only.

    Raises
    ------
    DamagedDataset
        The file is missing or has another size: Zarr readers would take what is missing for zeros, silently.
    """
    size = file_size(shape, dtype)
    if size == 0:
        empty = np.zeros(shape, dtype)
        empty.flags.writeable = False
        return empty
    file = data_file(directory, len(shape))
    check_size(file, size)
    with file.open("rb") as f:
        buffer = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(buffer, np.dtype(dtype).newbyteorder("<"), count).reshape(shape)


def check_size(file: Path, size: int) -> None:
    """Raise DamagedDataset unless ``file`` has ``size`` bytes."""
    try:
        found = file.stat().st_size
    except FileNotFoundError as e:
        raise DamagedDataset(f"{file} is missing.", hint=_HINT) from e
    if found != size:
        raise DamagedDataset(f"{file} has {found:,} bytes; {size:,} expected.", hint=_HINT)


def open_document(directory: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the array in ``directory``, from its ``zarr.json``."""
    try:
        d = json.loads((directory / "zarr.json").read_text())
        return tuple(d["shape"]), np.dtype(d["data_type"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DamagedDataset(f"{directory / 'zarr.json'} cannot be read: {e}") from e


def is_array(directory: Path) -> bool:
    """Whether ``directory`` holds an array, not a group."""
    try:
        return bool(json.loads((directory / "zarr.json").read_text())["node_type"] == "array")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_group(directory: Path) -> None:
    """Raise DamagedDataset unless the ``zarr.json`` in ``directory`` is that of a group."""
    try:
        kind = json.loads((directory / "zarr.json").read_text())["node_type"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DamagedDataset(f"{directory / 'zarr.json'} cannot be read: {e}") from e
    if kind != "group":
        raise DamagedDataset(f"{directory / 'zarr.json'} is of a node of type {kind!r}.")


def read(directory: Path) -> Array:
    """Map the array in ``directory``, as its ``zarr.json`` describes it."""
    return open_map(directory, *open_document(directory))


def write_strings(directory: Path, values: list[str]) -> None:
    """Write strings as two arrays: their UTF-8 ``bytes`` end to end, and ``offsets`` [n+1]."""
    encoded = [v.encode("utf-8", "surrogateescape") for v in values]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(e) for e in encoded], out=offsets[1:])
    write(directory / "bytes", np.frombuffer(b"".join(encoded), np.uint8))
    write(directory / "offsets", offsets)
    write_group(directory)


def read_strings(directory: Path) -> list[str]:
    """The strings of ``write_strings``."""
    data, offsets = read(directory / "bytes").tobytes(), read(directory / "offsets").tolist()
    return [data[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(offsets)]


def write_group(directory: Path, attributes: dict[str, Any] | None = None) -> None:
    """Write the ``zarr.json`` of a group."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes or {}}, indent=1)
    (directory / "zarr.json").write_text(text)
