"""Read arrays of a dataset: what their ``zarr.json`` says of their files, and their rows as they are mapped.

An array is raw, as `rlds_cli.base.files.arrays` writes it; or compressed, see `compression`; or in segments, each of
which is a raw array of its own, so that datasets can share them::

    <array>/zarr.json      a group, whose attribute rlds_segments says where the rows of each begin
    <array>/0/  1/ ...     arrays of the same dtype and shape of a row

Segments are mapped side by side and read as one array. The first of each dataset begins at a multiple of 65,536 rows,
which are multiples of the pages of every system. The rows between two segments have no meaning.
"""

from __future__ import annotations

import io
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import arrays
from rlds_cli.base.files import json as documents
from rlds_cli.base.files.arrays import Segment
from rlds_cli.base.files.mapping import Addresses
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import files, paths, references, validation

SEGMENT_ROWS = 1 << 16  # the rows of each dataset begin at multiples of it
PAGE_ROWS = 1 << 12  # segments begin at multiples of it: a row of one byte then begins at a page
SEGMENTS = "rlds_segments"  # the attribute
COMPRESSED_INNER_BYTES, SHARD_BYTES = 256 << 10, 64 << 20  # of the zarr encoding, see `compression`
_MOST_CHUNK = 1 << 27  # rows: growing datasets write 4 Mi at most, and 64 MiB of frames
_HINT = "rlds verify ID shows all damage; rlds download ID --force makes the dataset again"


def _map(found: ArrayLayout) -> Array:
    """Map an array, read-only.

    Raises
    ------
    DamagedDataset
        A file is missing or has another size. Other Zarr readers would silently read missing bytes as zeros.
    """
    count, width = math.prod(found.shape), arrays.row_bytes(found.shape, found.dtype)
    if count == 0:
        empty = np.zeros(found.shape, found.dtype)
        empty.flags.writeable = False
        return empty
    if found.segmented:
        addresses = Addresses(count * found.dtype.itemsize)
        for s in (s for s in found.segments if s.size):
            with open_sized(s.file, s.size) as f:
                addresses.map(s.start * width, s.rows * width, f.fileno())
        buffer = addresses.view()
    else:
        with open_sized(found.segments[0].file, found.segments[0].size) as f:
            buffer = mmap.mmap(f.fileno(), found.segments[0].size, access=mmap.ACCESS_READ)
    mapped: Array = np.frombuffer(buffer, found.dtype.newbyteorder("<"), count).reshape(found.shape)
    mapped.flags.writeable = False
    return mapped


def joined(shape: tuple[int, ...], dtype: np.dtype[Any], segments: Sequence[Segment]) -> Array:
    """Return segments as one array of ``shape`` [rows, ...], mapped read-only; rows of none are zeros.

    Raises
    ------
    DamagedDataset
        A file is missing or has another size.
    """
    whole = max(1, shape[0])
    return _map(ArrayLayout(shape, dtype, False, whole, whole, tuple(segments), True))


def open_sized(file: Path, size: int) -> io.FileIO:
    """Open a file of a dataset, unbuffered; raises as `check_size`."""
    try:
        f = files.open_regular(file)
    except FileNotFoundError as e:
        raise files.missing(file) or DamagedDataset(f"{file} is missing.", hint=_HINT) from e
    except OSError as e:
        raise DamagedDataset(f"{file} cannot be read: {e.strerror}.", hint=_HINT) from e
    try:
        _compare_size(file, os.fstat(f.fileno()).st_size, size)
    except DamagedDataset:
        f.close()
        raise
    return f


def descriptor(file: Path, size: int) -> int:
    """Return a new descriptor of a file of a dataset; raises as `open_sized`."""
    with open_sized(file, size) as f:
        return os.dup(f.fileno())


def check_size(file: Path, size: int) -> None:
    """Raise DamagedDataset unless ``file`` has ``size`` bytes."""
    try:
        found = file.stat().st_size
    except FileNotFoundError as e:
        raise files.missing(file) or DamagedDataset(f"{file} is missing.", hint=_HINT) from e
    except OSError as e:
        raise DamagedDataset(f"{file} cannot be read: {e.strerror}.", hint=_HINT) from e
    _compare_size(file, found, size)


def _compare_size(file: Path, found: int, size: int) -> None:
    if found != size:
        raise DamagedDataset(f"{file} has {found:,} bytes; {size:,} expected.", hint=_HINT)


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The layout of an array on disk.

    Attributes
    ----------
    compressed : bool
        True in the zarr encoding.
    shard, inner : int
        Rows of a shard and of an inner chunk; those of an array in segments are whole.
    segments : tuple of Segment
        The files of plain rows, in order; none of a compressed array.
    segmented : bool
        True if the segments are arrays of their own.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    compressed: bool
    shard: int
    inner: int
    segments: tuple[Segment, ...] = ()
    segmented: bool = False

    @property
    def shards(self) -> int:
        """Number of shards; 0 for an array without bytes."""
        return -(-self.shape[0] // self.shard) if math.prod(self.shape) else 0


def layout(directory: Path) -> ArrayLayout:
    """Read the layout of the array in ``directory`` from its ``zarr.json``, which must be in the form written here.

    Raises
    ------
    DamagedDataset
        The file cannot be read, or describes an array in another form.
    """
    directory = references.place(directory)
    return _layout(directory, _load(directory))


def _layout(directory: Path, d: dict[str, Any]) -> ArrayLayout:
    """Return the layout of an array in its place, of which ``d`` is the document; raises as `layout`."""
    shape, dtype = _typed(directory, d)
    try:
        if "segments" in d:
            segments, whole = _segments(directory, d["segments"], shape, dtype), max(1, shape[0])
            return ArrayLayout(shape, dtype, False, whole, whole, segments, True)
        plain = arrays.document(shape, dtype)
        grid, codecs = d["chunk_grid"], d["codecs"]
        if d["chunk_key_encoding"] != plain["chunk_key_encoding"]:
            raise ValueError("its chunks have other names")
        if codecs == plain["codecs"] and grid == plain["chunk_grid"]:
            inner = arrays.inner_rows(shape, dtype)
            shard = max(1, -(-shape[0] // inner)) * inner
            return ArrayLayout(shape, dtype, False, shard, inner, (Segment(0, directory, shape, dtype),))
        return _compressed(shape, dtype, grid, codecs)
    except (KeyError, TypeError, ValueError, IndexError) as e:
        why = f"lacks {e}" if isinstance(e, KeyError) else f"{e}"[:200]
        raise DamagedDataset(f"{directory / 'zarr.json'} does not describe the file: {why}.", hint=_HINT) from e


def _segments(directory: Path, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Segment, ...]:
    """Return the segments of an array; raises ValueError and its like if they cannot be those of the array."""
    found, stop = list[Segment](), 0
    for k, (start, rows) in enumerate(given):
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (start, rows)) and rows >= 0
        if not whole or start % PAGE_ROWS or not stop <= start <= stop + SEGMENT_ROWS:
            raise ValueError(f"rows {str(start)[:40]} and {str(rows)[:40]} more in segment {k:,}")
        part = _segment(references.place(directory / str(k)))
        if (part.shape, part.dtype) != ((rows, *shape[1:]), dtype):
            raise ValueError(f"segment {k:,} is {part.dtype} {list(part.shape)}")
        found.append(replace(part, start=start))
        stop = start + rows
    if stop != shape[0]:
        raise ValueError(f"segments end at row {stop:,} of {shape[0]:,}")
    return tuple(found)


def _segment(directory: Path) -> Segment:
    """Return the layout of an array that is a segment: one shard, or one chunk; raises ValueError for others."""
    d, shape, dtype = _described(directory)
    if "segments" not in d and d["codecs"] == arrays.document(shape, dtype)["codecs"][0]["configuration"]["codecs"]:
        chunk = d["chunk_grid"]["configuration"]["chunk_shape"][0]
        whole = isinstance(chunk, int) and not isinstance(chunk, bool) and max(1, shape[0]) <= chunk <= _MOST_CHUNK
        if not whole or d != arrays.chunk_document(shape, dtype, chunk):
            raise ValueError(f"chunks of {str(chunk)[:40]!r} rows")
        return Segment(0, directory, shape, dtype, chunk)
    found = layout(directory)
    if found.compressed or found.segmented:
        raise ValueError(f"{directory.name} is not a file of plain rows")
    return found.segments[0]


def is_segmented(directory: Path) -> bool:
    """Return whether an array is in segments."""
    try:
        return "segments" in _described(directory)[0]
    except DamagedDataset:
        return False


def write_segmented(directory: Path, shape: tuple[int, ...], dtype: npt.DTypeLike, starts: Sequence[int]) -> None:
    """Make one array of the arrays ``0``, ``1``, ... in a directory, whose rows begin at ``starts``."""
    segments = [[start, open_document(directory / str(k))[0][0]] for k, start in enumerate(starts)]
    described = {"shape": list(shape), "data_type": np.dtype(dtype).name, "segments": segments}
    arrays.write_group(directory, {SEGMENTS: described})


def check_files(directory: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    """Raise DamagedDataset unless the files of a plain array have their sizes."""
    directory = references.place(directory)
    size, file = arrays.file_size(shape, dtype), arrays.data_file(directory, len(shape))
    if not size:
        return
    if file.exists() or not is_segmented(directory):
        check_size(file, size)
        return
    for s in layout(directory).segments:
        if s.size:
            check_size(s.file, s.size)


def _described(directory: Path) -> tuple[dict[str, Any], tuple[int, ...], np.dtype[Any]]:
    """Read the ``zarr.json`` of an array, and its shape and dtype; of one in segments, what is said of all of them."""
    d = _load(directory)
    return d, *_typed(directory, d)


def _typed(directory: Path, d: dict[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of an array by its document; raises DamagedDataset if that is not one of an array."""
    try:
        kind = d["data_type"]
        if d["zarr_format"] != 3 or d["node_type"] != "array" or kind not in validation.NUMERIC:
            raise ValueError(f"{str(d['node_type'])[:40]!r} of {str(kind)[:40]!r}")
        if kind not in np.sctypeDict:
            raise ValueError(f"this machine has no {kind}")
        shape = validation.shape(d["shape"], "shape", itemsize=validation.NUMERIC[kind])
        if not shape:
            raise ValueError("an array without rows")
    except (KeyError, TypeError, ValueError) as e:
        why = f"lacks {e}" if isinstance(e, KeyError) else f"{e}"[:200]
        raise DamagedDataset(f"{directory / 'zarr.json'} cannot be read: {why}.", hint=_HINT) from e
    return shape, np.dtype(kind)


def _compressed(shape: tuple[int, ...], dtype: np.dtype[Any], grid: Any, codecs: Any) -> ArrayLayout:
    """Return the layout of the zarr encoding; raises ValueError and its like for any other encoding."""
    shard, *tail = grid["configuration"]["chunk_shape"]
    inner, *inner_tail = codecs[0]["configuration"]["chunk_shape"]
    plain = arrays.document(shape, dtype)["codecs"][0]["configuration"]
    zstd = codecs[0]["configuration"]["codecs"][1]["configuration"]
    written = {
        "chunk_shape": [inner, *inner_tail],
        "codecs": [*plain["codecs"], {"name": "zstd", "configuration": zstd}],
        "index_codecs": [*plain["index_codecs"], {"name": "crc32c"}],
        "index_location": "end",
    }
    width = max(1, arrays.row_bytes(shape, dtype))
    sides = [max(1, d) for d in shape[1:]]
    if grid["name"] != "regular" or codecs != [{"name": "sharding_indexed", "configuration": written}]:
        raise ValueError("codecs that this program does not write")
    for rows in (shard, inner):
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise ValueError(f"chunks of {str(rows)[:40]!r} rows")
    if tail != sides or inner_tail != sides or shard % inner:
        raise ValueError(f"chunks of {[shard, *tail]} and {[inner, *inner_tail]}")
    if (inner > 1 and inner * width > COMPRESSED_INNER_BYTES) or (shard > inner and shard * width > SHARD_BYTES):
        raise ValueError(f"chunks of {shard:,} and {inner:,} rows, which are too large")
    return ArrayLayout(shape, dtype, True, shard, inner)


def open_document(directory: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read shape and dtype of the array in ``directory`` from its ``zarr.json``; raises DamagedDataset."""
    return _described(directory)[1:]


def array_files(dataset: Path, array: str) -> dict[str, int]:
    """Return the file of a raw array, with its size, by its path below the dataset; nothing of an array without bytes.

    Its document exists, and raises DamagedDataset if it cannot be read.
    """
    shape, dtype = open_document(dataset / array)
    size = arrays.file_size(shape, dtype)
    return {arrays.data_file(Path(array), len(shape)).as_posix(): size} if size else {}


def _load(directory: Path) -> dict[str, Any]:
    """The ``zarr.json`` of an array or a group. An array in segments is described by ``shape data_type segments``."""
    path = directory / "zarr.json"
    try:
        found = documents.loads(files.read_regular(path, documents.LONGEST))
    except (OSError, ValueError) as e:
        if references.is_reference(directory):
            return _load(references.place(directory))
        elsewhere = files.missing(path) if isinstance(e, FileNotFoundError) else None
        raise elsewhere or DamagedDataset(f"{path} cannot be read: {e}") from e
    if not isinstance(found, dict):
        raise DamagedDataset(f"{path} cannot be read: {type(found).__name__}; an object expected.")
    attributes = found.get("attributes")
    if found.get("node_type") == "group" and isinstance(attributes, dict) and SEGMENTS in attributes:
        described = attributes[SEGMENTS]
        if not isinstance(described, dict) or not isinstance(described.get("segments"), list):
            raise DamagedDataset(f"{path} does not describe segments.", hint=_HINT)
        return {**described, "zarr_format": found.get("zarr_format"), "node_type": "array"}
    return found


def attributes(directory: Path) -> dict[str, Any]:
    """Return the attributes of an array or a group; raises DamagedDataset if its ``zarr.json`` cannot be read."""
    found = _load(directory).get("attributes")
    return found if isinstance(found, dict) else {}


def is_array(directory: Path) -> bool:
    """Return whether ``directory`` holds an array, in segments too, and not a group."""
    try:
        return bool(_load(directory).get("node_type") == "array")
    except DamagedDataset:
        return False


def check_group(directory: Path) -> None:
    """Raise DamagedDataset unless the ``zarr.json`` in ``directory`` is that of a group."""
    kind = _load(directory).get("node_type")
    if kind != "group":
        raise DamagedDataset(f"{directory / 'zarr.json'} is of a node of type {str(kind)[:40]!r}.")


def read(directory: Path) -> Array:
    """Map the array in ``directory``, as its ``zarr.json`` describes it; raises DamagedDataset."""
    return mapped(directory, layout(directory))


def find(directory: Path) -> Array | None:
    """Map the array in ``directory``, as `read` does; None if there is a group, or nothing that can be read."""
    try:
        place = references.place(directory)
        d = _load(place)
    except DamagedDataset:
        return None
    return mapped(directory, _layout(place, d)) if d.get("node_type") == "array" else None


def finish(directory: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Turn a file of raw rows into an array, as `arrays.finish` does, and map it."""
    arrays.finish(directory, shape, dtype)
    kind, whole = np.dtype(dtype), max(1, shape[0])
    return _map(ArrayLayout(shape, kind, False, whole, whole, (Segment(0, directory, shape, kind),)))


def mapped(directory: Path, found: ArrayLayout) -> Array:
    """Map the array in ``directory``, whose layout is known; raises DamagedDataset, also if it is compressed."""
    if found.compressed:
        raise DamagedDataset(f"{directory} is compressed; an array that can be mapped is expected.", hint=_HINT)
    return _map(found)


def read_strings(directory: Path) -> list[str]:
    """The strings of ``write_strings``; raises DamagedDataset."""
    stored, offsets = read(directory / "bytes"), read(directory / "offsets")
    check_offsets(directory / "offsets", offsets, stored)
    data = stored.tobytes()
    return [data[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(offsets.tolist())]


def read_string(directory: Path) -> str:
    """The one string that was written there; raises DamagedDataset."""
    found = read_strings(directory)
    if len(found) != 1:
        raise DamagedDataset(f"{directory} holds {len(found):,} texts; one expected.", hint=_HINT)
    return found[0]


def check_offsets(directory: Path, offsets: Array, data: Array) -> None:
    """Raise DamagedDataset unless ``offsets`` [n+1] rise from 0 to the end of the bytes ``data``."""
    fits = offsets.ndim == data.ndim == 1 and offsets.dtype == np.int64 and data.dtype == np.uint8 and len(offsets)
    if not fits or offsets[0] != 0 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
        raise DamagedDataset(f"{directory} do not increase from 0 to the {data.size:,} bytes beside them.", hint=_HINT)


def write_groups(directory: Path) -> None:
    """Write the ``zarr.json`` of a Zarr group into every directory above arrays that has none."""
    with os.scandir(directory) as entries:
        below = [Path(entry.path) for entry in entries if entry.is_dir()]
    for path in below:
        with os.scandir(path) as entries:
            names = {entry.name for entry in entries}
        if not names.isdisjoint((paths.REFERENCE, paths.LOOKUP)):
            continue
        if "zarr.json" not in names:
            arrays.write_group(path)
        elif is_array(path):
            continue
        write_groups(path)
