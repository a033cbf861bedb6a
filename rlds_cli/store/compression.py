"""The ``zarr`` encoding: the same arrays with zstd-compressed inner chunks in shards, by zarr-python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from rlds_cli import space
from rlds_cli.errors import DamagedDataset
from rlds_cli.store import arrays
from rlds_cli.ted import VIDEO, Array, Field

INNER_BYTES = 256 << 10
SHARD_BYTES = 64 << 20
LEVEL = 3


def column_arrays(f: Field, path: Path) -> list[Path]:
    """The arrays that hold the rows of a field: one, or ``bytes`` and ``offsets``."""
    return [path / "bytes", path / "offsets"] if f.kind == "frames" and f.codec != VIDEO else [path]


def compress(path: Path, f: Field) -> None:
    """Turn the memmap-encoded arrays of a field into compressed ones, in place."""
    for array in column_arrays(f, path):
        aside = array.with_name(f"{array.name}.new")
        shutil.rmtree(aside, ignore_errors=True)
        _write_compressed(array, aside)
        shutil.rmtree(array)
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

    values = arrays.read(source)
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
        raise space.disk_error(e, target, kept="Finished parts are kept.") from e


def _write_plain(source: Path, target: Path) -> None:
    import zarr

    values = zarr.open_array(str(source), mode="r")
    file = arrays.data_file(target, values.ndim)
    file.parent.mkdir(parents=True)
    step = max(1, SHARD_BYTES // max(1, arrays.row_bytes(values.shape, values.dtype)))
    with file.open("wb") as out:
        for a in range(0, values.shape[0], step):
            out.write(arrays.raw(np.asarray(values[a : a + step])))
    arrays.finish(target, values.shape, values.dtype)


def is_compressed(array: Path) -> bool:
    """Whether the array in ``array`` is zarr-encoded."""
    return _chunk_compression(_document(array)) is not None


def _document(array: Path) -> dict[str, object]:
    try:
        document = json.loads((array / "zarr.json").read_text())
    except (OSError, ValueError) as e:
        raise DamagedDataset(f"{array / 'zarr.json'} cannot be read: {e}") from e
    assert isinstance(document, dict)
    return document


def _chunk_compression(document: object) -> str | None:
    text = json.dumps(document)
    return "zstd" if '"zstd"' in text else None


def open_column(array: Path) -> Array:
    """All rows of an array of either encoding: mapped, or decoded into memory.

    Raises
    ------
    DamagedDataset
        A file is missing, short, or does not decode.
    """
    if not is_compressed(array):
        return arrays.read(array)
    import zarr

    values = zarr.open_array(str(array), mode="r")
    check_shards(array)
    try:
        decoded = np.asarray(values[...])
    except (ValueError, RuntimeError, OSError) as e:
        raise DamagedDataset(f"{array} does not decode: {e}", hint="rlds verify ID; --force makes it anew") from e
    decoded.flags.writeable = False
    return decoded


def check_shards(array: Path) -> None:
    """Raise DamagedDataset where a shard is missing: Zarr readers would give zeros."""
    document = _document(array)
    shape = document["shape"]
    grid = document["chunk_grid"]
    assert isinstance(shape, list)
    assert isinstance(grid, dict)
    shards = -(-shape[0] // grid["configuration"]["chunk_shape"][0])
    if any(d == 0 for d in shape):
        return
    tail = ["0"] * (len(shape) - 1)
    for i in range(shards):
        file = array.joinpath("c", str(i), *tail)
        if not file.exists():
            raise DamagedDataset(f"{file} is missing.", hint="rlds verify ID; --force makes it anew")
