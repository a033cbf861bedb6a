"""Rows of the ``zarr`` encoding at an address: chunks are fetched, decoded, and kept as blocks of plain rows.

Two layers of blocks lie on each other: those of the files as they are at the address, checked by their hashes, and
those of the rows that they hold. Both leave by their last use.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.files import arrays, zstandard
from rlds_cli.errors import DamagedDataset
from rlds_cli.places.remote.cache import BlockFiles
from rlds_cli.places.remote.fetching import Take, TransferStats
from rlds_cli.places.remote.presence import BlockFile, Room
from rlds_cli.store.layouts import ArrayLayout

_CRC_BYTES = 4
_HINT = "rlds verify ID where it was pushed from"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A compressed array: its directory below the dataset, and how it is laid out."""

    directory: Path
    layout: ArrayLayout

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return arrays.row_bytes(self.layout.shape, self.layout.dtype)

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return math.prod(self.layout.shape) * self.layout.dtype.itemsize

    @property
    def longest(self) -> int:
        """The greatest number of bytes of a shard: its chunks, and its index."""
        inner, chunks = self.layout.inner, self.layout.shard // self.layout.inner
        return chunks * (zstandard.longest_chunk(inner * self.width) + 16) + _CRC_BYTES

    def shard(self, number: int) -> str:
        """Return the path of a shard."""
        return self.directory.joinpath("c", str(number), *["0"] * (len(self.layout.shape) - 1)).as_posix()


def open_decoded(
    room: Room,
    name: str,
    encoded: Mapping[str, Encoded],
    films: Mapping[str, int],
    raw: BlockFiles,
    *,
    timeout: float,
    stats: TransferStats,
) -> BlockFiles:
    """Return the rows of compressed arrays, and files that are not compressed, as files of rows.

    Parameters
    ----------
    room, name
        Where their blocks are.
    encoded : mapping of str to Encoded
        Arrays by the paths that their rows get.
    films : mapping of str to int
        Paths and sizes of files that are taken as they are.
    raw : BlockFiles
        The files at the address.
    """
    files = [*(BlockFile(path, e.size) for path, e in encoded.items()), *(BlockFile(p, s) for p, s in films.items())]
    decoders = {path: ChunkDecoder(e, raw) for path, e in encoded.items()}

    def source(file: int, start: int, length: int, take: Take) -> None:
        path = files[file].path
        if path in decoders:
            decoders[path].read(start, length, take)
        else:
            take(raw.read(raw.number(path), start, length))

    return BlockFiles(
        room,
        name,
        files,
        source,
        whole=range(len(files)),  # a chunk is decoded once for all of its blocks
        timeout=timeout,
        where=raw.where,
        stats=stats,
        counts=False,
    )


class ChunkDecoder:
    """Reads ranges of the rows of a compressed array, whose shards are files of ``raw``."""

    def __init__(self, of: Encoded, raw: BlockFiles) -> None:
        self._of, self._raw = of, raw
        self._tables: dict[int, IntArray] = {}  # place and size of the chunks of each shard that was read
        self._lock = threading.Lock()

    def read(self, start: int, length: int, take: Take) -> None:
        """Give bytes of the rows to ``take``, chunk by chunk."""
        size = self._of.layout.inner * self._of.width
        at, end = start, start + length
        while at < end:
            chunk = at // size
            rows = self._chunk(chunk)
            part = memoryview(rows)[at - chunk * size : end - chunk * size]
            take(part)
            at += len(part)

    def _chunk(self, number: int) -> bytes:
        """Return the rows of an inner chunk, decoded."""
        of, layout = self._of, self._of.layout
        per = layout.shard // layout.inner
        shard, within = divmod(number, per)
        size = layout.inner * of.width
        path = of.shard(shard)
        offset, length = self._table(shard, per)[within].tolist()
        if offset < 0 or length < 0 or offset + length > self._size(path) or length > zstandard.longest_chunk(size):
            raise DamagedDataset(f"{path} of {self._raw.where} has no chunk {within:,}.", hint=_HINT)
        decoded = _decoded(self._read(path, offset, length), size)
        if decoded is None:
            raise DamagedDataset(f"Chunk {within:,} of {path} of {self._raw.where} does not decode.", hint=_HINT)
        return decoded

    def _table(self, shard: int, chunks: int) -> IntArray:
        """Return place and size [chunks, 2] of the chunks of a shard, -1 for one that was not written."""
        with self._lock:
            known = self._tables.get(shard)
        if known is not None:
            return known
        path = self._of.shard(shard)
        size = 16 * chunks
        start = self._size(path) - size - _CRC_BYTES
        if start < 0:
            raise DamagedDataset(f"{path} of {self._raw.where} is shorter than its index.", hint=_HINT)
        found = np.frombuffer(self._read(path, start, size), "<i8").reshape(chunks, 2).astype(np.int64)
        with self._lock:
            self._tables[shard] = found
        return found

    def _size(self, path: str) -> int:
        try:
            return self._raw.files[self._raw.number(path)].size
        except KeyError:
            raise DamagedDataset(f"{self._raw.where} has no {path}.", hint=_HINT) from None

    def _read(self, path: str, start: int, length: int) -> bytes:
        return self._raw.read(self._raw.number(path), start, length)


def _decoded(data: bytes, size: int) -> bytes | None:
    """Decode a chunk of ``size`` bytes; None for anything else, for which no memory is taken."""
    from numcodecs import Zstd  # type: ignore[import-untyped]

    if not zstandard.is_chunk(lambda at, count: data[at : at + count], len(data), size):
        return None
    codec: Any = Zstd()
    try:
        found = bytes(codec.decode(data))
    except (RuntimeError, ValueError):
        return None
    return found if len(found) == size else None
