"""The fingerprint of a growing dataset: a hash of the set of its episodes, in time that depends on what changed alone.

An episode's digest is the sha256 of one JSON line, ``[length, end, number of observations, seed, options, splits]``,
and of the sha256 of the rows of each field by name: its T+1 rows, little-endian; of text, the JSON list of the strings.

The hash of a set of episodes is LtHash: each digest is stretched to 1,024 numbers of 16 bits by SHAKE-128, and these
are added up modulo 2**16. Episodes are so added and taken away in any order. Source: Bellare and Micciancio, "A New
Paradigm for Collision-free Hashing: Incrementality at Reduced Cost" (1997), with the parameters of Lewi et al.,
"Securing Update Propagation with Homomorphic Hashing" (2019), which are secure to 200 bits.

The fingerprint is ``rlds2:`` and the sha256 of one JSON line of the fields, and of the sums.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlds_cli.files import safe as safe_files
from rlds_cli.growing import logs
from rlds_cli.store import arrays
from rlds_cli.ted import Array, Field

Sums = npt.NDArray[np.uint16]  # [1024]
_LANES = 1024
_RECORD = 8 + 2 * _LANES + 4  # bytes: generation, sums, CRC-32
FILE = "sums"


def no_sums() -> Sums:
    """Return the sums of no episodes."""
    return np.zeros(_LANES, "<u2")


def stretched(digest: bytes) -> Sums:
    """Return the numbers of one episode."""
    return np.frombuffer(hashlib.shake_128(digest).digest(2 * _LANES), "<u2")


def changed(sums: Sums, added: Iterable[bytes], removed: Iterable[bytes] = ()) -> Sums:
    """Return sums with the episodes of some digests added, and of others taken away."""
    sums = sums.copy()
    for digest in added:
        sums += stretched(digest)
    for digest in removed:
        sums -= stretched(digest)
    return sums


def content(fields: Sequence[Field], sums: Sums) -> bytes:
    """Return the hash of a fingerprint."""
    described = [[f.name, f.dtype, list(f.shape), f.placement, f.kind] for f in sorted(fields, key=lambda f: f.name)]
    line = json.dumps(described, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(line.encode() + b"\n" + sums.astype("<u2").tobytes()).digest()


def episode_digest(about: Sequence[object], rows: Mapping[str, Array | list[str | None]]) -> bytes:
    """Return the digest of one episode: ``about`` it, and the rows of each field."""
    h = hashlib.sha256(json.dumps(list(about), separators=(",", ":"), ensure_ascii=True).encode() + b"\n")
    for name in sorted(rows):
        values = rows[name]
        array = isinstance(values, np.ndarray)
        data = arrays.raw(arrays.little_endian(values)) if array else json.dumps(values).encode()  # type: ignore[arg-type]
        h.update(hashlib.sha256(data).digest())
    return h.digest()


def save(dataset: Path, generation: int, sums: Sums) -> None:
    """Keep the sums of a generation, in one of two places by turns: a commit that is killed spoils one at most."""
    descriptor = safe_files.open_own(dataset / FILE, os.O_RDWR | os.O_CREAT)
    try:
        logs.write(descriptor, _record(generation, sums), generation % 2 * _RECORD)
    finally:
        os.close(descriptor)


def file_with(generation: int, sums: Sums) -> bytes:
    """Return the content of a file that keeps the sums of one generation."""
    return bytes(generation % 2 * _RECORD) + _record(generation, sums)


def _record(generation: int, sums: Sums) -> bytes:
    record = generation.to_bytes(8, "little") + sums.astype("<u2").tobytes()
    return record + zlib.crc32(record).to_bytes(4, "little")


def load(dataset: Path, generation: int) -> Sums | None:
    """Return the sums of a generation; None where they are not kept."""
    try:
        descriptor = safe_files.open_shared(dataset / FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        record = os.pread(descriptor, _RECORD, generation % 2 * _RECORD)
    finally:
        os.close(descriptor)
    sound = len(record) == _RECORD and zlib.crc32(record[:-4]) == int.from_bytes(record[-4:], "little")
    if not sound or int.from_bytes(record[:8], "little") != generation:
        return None
    return np.frombuffer(record[8:-4], "<u2").copy()
