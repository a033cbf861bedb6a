"""The ``zarr`` encoding: the same arrays with zstd-compressed inner chunks in shards, by zarr-python."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import arrays, disk, trees, zstandard
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import DamagedDataset, NeedsMemory
from rlds_cli.store import files, layouts, references
from rlds_cli.store.layouts import COMPRESSED_INNER_BYTES as INNER_BYTES
from rlds_cli.store.layouts import SHARD_BYTES, ArrayLayout
from rlds_cli.ted import VIDEO, Field

LEVEL = 3
_HINT = "rlds verify ID shows all damage; --force makes the dataset again"
_CRC_BYTES = 4
_ABSENT = (1 << 64) - 1  # in the index: a chunk that was not written


def column_arrays(f: Field, path: Path) -> list[Path]:
    """Return the arrays that hold the rows of a field: one, or ``bytes`` and ``offsets``."""
    return [path / "bytes", path / "offsets"] if f.kind == "frames" and f.codec != VIDEO else [path]


def compress(path: Path, f: Field) -> None:
    """Turn the memmap-encoded arrays of a field into compressed ones, in place."""
    for array in column_arrays(f, path):
        aside = array.with_name(f"{array.name}.new")
        trees.discard(aside)
        _write_compressed(array, aside)
        trees.remove(array)
        aside.rename(array)


def encode(source: Path, target: Path, f: Field, *, compressed: bool) -> None:
    """Write the arrays of a field that lie in ``source`` to ``target``, in the other encoding."""
    write = _write_compressed if compressed else _write_plain
    for old, new in zip(column_arrays(f, source), column_arrays(f, target), strict=True):
        write(old, new)
    if len(column_arrays(f, target)) > 1:
        arrays.write_group(target)


def _write_compressed(source: Path, target: Path) -> None:
    import zarr
    from zarr.codecs import ZstdCodec

    values = layouts.read(source)
    width = max(1, arrays.row_bytes(values.shape, values.dtype))
    inner = max(1, INNER_BYTES // width)
    shard = inner * max(1, min(SHARD_BYTES // (inner * width), -(-len(values) // inner)))
    tail = tuple(max(1, d) for d in values.shape[1:])
    out = zarr.create_array(
        str(target),
        shape=values.shape,
        dtype=values.dtype,
        chunks=(inner, *tail),
        shards=(shard, *tail),
        compressors=ZstdCodec(level=LEVEL, checksum=True),
        fill_value=np.zeros((), values.dtype).item(),
        config={"write_empty_chunks": True},  # so that a missing shard is always damage
    )
    try:
        for a in range(0, len(values), shard):
            out[a : a + shard] = values[a : a + shard]
    except OSError as e:
        raise disk.disk_error(e, target, kept="Finished parts are kept.") from e


def _write_plain(source: Path, target: Path) -> None:
    values = Compressed(source)
    file = arrays.data_file(target, values.ndim)
    safe_files.make(file.parent.parent)
    file.parent.mkdir(safe_files.DIRECTORY)
    step = max(1, SHARD_BYTES // max(1, arrays.row_bytes(values.shape, values.dtype)))
    with file.open("wb") as out:
        for a in range(0, values.shape[0], step):
            out.write(arrays.raw(values[a : a + step]))
    arrays.finish(target, values.shape, values.dtype)


class Compressed:
    """The rows of a compressed array. A slice decodes its own rows, once their chunks have been checked.

    Raises
    ------
    DamagedDataset
        A shard is missing, its index points elsewhere, or what is in it does not decode.
    """

    def __init__(self, array: Path) -> None:
        import zarr

        self._array = array = references.place(array)
        self._layout = layouts.layout(array)
        self._checked: set[int] = set()
        check_shards(array)
        try:
            self._rows = zarr.open_array(str(array), mode="r", zarr_format=3)
        except Exception as e:  # zarr raises errors of all kinds over a wrong zarr.json
            raise DamagedDataset(f"{array} cannot be opened: {e}", hint=_HINT) from e
        self.shape, self.dtype, self.ndim = self._layout.shape, self._layout.dtype, len(self._layout.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        if stop > start and self._layout.shards:
            for shard in range(start // self._layout.shard, -(-stop // self._layout.shard)):
                self._check(shard)
        try:
            return np.asarray(self._rows[start:stop])
        except Exception as e:  # zarr and its codecs raise errors of all kinds
            text = f"{self._array}: rows {start:,}-{stop:,} do not decode: {e}"
            raise DamagedDataset(text, hint=_HINT) from e

    def _check(self, shard: int) -> None:
        if shard not in self._checked:
            _check_shard(_shard_file(self._array, self._layout, shard), self._layout)
            self._checked.add(shard)


def open_rows(array: Path) -> Array | Compressed:
    """Return the rows of an array in either encoding, for slicing: mapped, or decoded slice by slice."""
    found = layouts.layout(array)
    return Compressed(array) if found.compressed else layouts.mapped(array, found)


def read_range(array: Path, start: int, stop: int) -> Array:
    """Read rows ``start`` to ``stop`` of the array in ``array``: mapped, or copied if they are compressed.

    Raises
    ------
    DamagedDataset
        A file is missing, or what is in it does not decode.
    """
    return open_rows(array)[start:stop]


def open_column(array: Path) -> Array:
    """Return all rows of an array in either encoding: mapped, or decoded into memory.

    Raises
    ------
    DamagedDataset
        A file is missing, short, or does not decode.
    NeedsMemory
        It takes more than there is.
    """
    rows = open_rows(array)
    if not isinstance(rows, Compressed):
        return rows
    needed, memory = (
        math.prod(rows.shape) * rows.dtype.itemsize,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    if needed > memory:
        text = f"{array} takes {needed:,} bytes decoded; this machine has {memory:,}."
        raise NeedsMemory(text, hint="rlds convert ID --to memmap")
    decoded = rows[:]
    decoded.flags.writeable = False
    return decoded


def check_shards(array: Path) -> None:
    """Raise DamagedDataset if a shard is missing: Zarr readers would return zeros for it."""
    array = references.place(array)
    found = layouts.layout(array)
    for shard in range(found.shards):
        file = _shard_file(array, found, shard)
        if not file.is_file():
            raise files.missing(file) or DamagedDataset(f"{file} is missing.", hint=_HINT)


def _shard_file(array: Path, found: ArrayLayout, shard: int) -> Path:
    return array.joinpath("c", str(shard), *["0"] * (len(found.shape) - 1))


def _check_shard(file: Path, found: ArrayLayout) -> None:
    """Refuse a shard whose index points outside of it, or whose chunks decode to another size by their headers."""
    chunks = found.shard // found.inner
    size = found.inner * arrays.row_bytes(found.shape, found.dtype)
    with files.open_regular(file) as f:
        end = f.seek(0, os.SEEK_END) - 16 * chunks - _CRC_BYTES
        if end < 0:
            raise DamagedDataset(f"{file} is shorter than its index.", hint=_HINT)
        f.seek(end)
        index = np.frombuffer(f.read(16 * chunks), "<u8").reshape(-1, 2)
        for offset, length in index[index[:, 0] != _ABSENT].tolist():
            if offset + length > end:
                raise DamagedDataset(f"{file} has an index that points outside of it.", hint=_HINT)

            def read(at: int, count: int, offset: int = offset) -> bytes:
                f.seek(offset + at)
                return f.read(count)

            if not zstandard.is_chunk(read, length, size):
                raise DamagedDataset(f"{file} holds a chunk that does not decode to {size:,} bytes.", hint=_HINT)
