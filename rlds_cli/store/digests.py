"""The fingerprint: a hash of a dataset's content that encoding, chunking, workers and times do not enter.

Per field, sha256 of each block of 2**16 rows (raw little-endian rows; for frames and text the rows' lengths as
little-endian int64, -1 for none, then their bytes). The field's digest is the sha256 of a JSON line
``[name, dtype, shape, placement, kind]`` and its block hashes; columns of the episode table count likewise, with
placement ``episode``. The fingerprint is the sha256 of the digests, sorted by (placement is episode, name).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from rlds_cli.store import arrays
from rlds_cli.ted import Array, IntArray

BLOCK_ROWS = 1 << 16

Blocks = npt.NDArray[np.uint8]  # [blocks, 32]


def blocks(rows: int) -> range:
    """First rows of the blocks."""
    return range(0, rows, BLOCK_ROWS)


def array_block(values: Array) -> bytes:
    """Hash of one block of an array field."""
    return hashlib.sha256(arrays.raw(values)).digest()


def ragged_block(lengths: IntArray, data: Array | bytes) -> bytes:
    """Hash of one block of frames or text; ``lengths`` -1 for none."""
    h = hashlib.sha256(np.ascontiguousarray(lengths, "<i8").tobytes())
    h.update(arrays.raw(data) if isinstance(data, np.ndarray) else data)
    return h.digest()


def text_block(values: Sequence[str | None]) -> bytes:
    """Hash of one block of strings."""
    encoded = [None if v is None else v.encode("utf-8", "surrogateescape") for v in values]
    lengths = np.array([-1 if e is None else len(e) for e in encoded], np.int64)
    return ragged_block(lengths, b"".join(e for e in encoded if e))


def as_array(hashes: Iterable[bytes]) -> Blocks:
    """Block hashes as they are stored."""
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)


def field_digest(name: str, dtype: str, shape: Sequence[int], placement: str, kind: str, hashes: Blocks) -> str:
    """Digest of one field, from its block hashes."""
    head = json.dumps([name, dtype, list(shape), placement, kind], separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(head.encode() + b"\n" + hashes.tobytes()).hexdigest()


def column_digest(name: str, values: Array | Sequence[str | None]) -> str:
    """Digest of one column of the episode table."""
    if isinstance(values, np.ndarray):
        hashes = as_array(array_block(values[a : a + BLOCK_ROWS]) for a in blocks(len(values)))
        return field_digest(name, values.dtype.name, values.shape[1:], "episode", "array", hashes)
    hashes = as_array(text_block(values[a : a + BLOCK_ROWS]) for a in blocks(len(values)))
    return field_digest(name, "str", (), "episode", "text", hashes)


def fingerprint(fields: dict[str, str], columns: dict[str, str]) -> str:
    """``rlds1:`` and 64 hexadecimal digits, from the digests of fields and episode columns by name."""
    h = hashlib.sha256()
    for digests in (fields, columns):
        for name in sorted(digests):
            h.update(bytes.fromhex(digests[name]))
    return f"rlds1:{h.hexdigest()}"
