"""Stored chunks of HDF5 datasets: what unpacks them, and that none becomes more than its dataset says.

HDF5 unpacks a chunk until its data end, however large a chunk is said to be: 4 MB of deflate may become 4 GB in memory.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.errors import CorruptArchive, UnsafeArchive

MAX_CHUNK = 256 << 20  # bytes; chunks are unpacked whole, and h5py writes them of a megabyte at most
MAX_STORED_CHUNK = 1 << 30  # chunks that are larger and not much smaller as they are stored
MAX_PACKED = 4  # how much smaller
# Deflate packs at most 1,032 to 1: what is stored in less becomes no more than half a gigabyte, and needs no look.
HARMLESS = 512 << 10
HARMLESS_LZF = 8 << 20  # LZF packs at most about 90 to 1
PIECE = 16 << 10

DEFLATE, SHUFFLE, FLETCHER = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
COUNTED = (h5py.h5z.FILTER_SCALEOFFSET, h5py.h5z.FILTER_NBIT)  # their parameters say what they unpack to
_SZIP, _LZF = h5py.h5z.FILTER_SZIP, h5py.h5z.FILTER_LZF
_PACKING = (DEFLATE, _SZIP, _LZF)  # what they unpack to is counted here
_CHECKSUM = 4  # bytes of Fletcher32
MOST_KNOWN = 1 << 16

_sound: set[tuple[str, int, int, int]] = set()  # datasets whose large chunks were looked at


def filters(d: h5py.h5d.DatasetID) -> list[int]:
    """The filters of a dataset, in the order in which they were applied."""
    plist = d.get_create_plist()
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def inflated(data: bytes, size: int) -> bytes:
    """What a chunk of ``size`` bytes was deflated to; HDF5, which would unpack all that there is, is not asked."""
    inner = zlib.decompressobj()
    found = inner.decompress(data, size + 1)
    if len(found) > size:
        raise CorruptArchive(f"a chunk of {size:,} bytes unpacks to more")
    if not inner.eof:
        raise zlib.error("incomplete stream")
    return found


def unshuffled(data: bytes, itemsize: int) -> bytes:
    """Undo the filter that puts the first bytes of all values first, then the second ones, and so on."""
    planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    return np.ascontiguousarray(planes.T).data.cast("B")  # type: ignore[return-value]  # bytes-like is enough


def unpacked(data: bytes, mask: int, codes: list[int], size: int, itemsize: int) -> bytes | None:
    """A chunk of ``size`` bytes as it was before its filters; None where one of them is not undone here.

    Deflate, shuffle and Fletcher32 are. Bit k of ``mask`` says that the chunk went without filter k.
    """
    for k, code in reversed(list(enumerate(codes))):
        if mask >> k & 1:
            continue
        if code == DEFLATE:
            data = inflated(data, size + _CHECKSUM)
        elif code == SHUFFLE:
            data = unshuffled(data, itemsize)
        elif code == FLETCHER:
            data = data[:-_CHECKSUM]
        else:
            return None
    return data


def stored(d: h5py.h5d.DatasetID) -> Iterator[tuple[int, bytes]]:
    """The filter mask and the bytes of every chunk that was written."""
    places: list[tuple[int, ...]] = []
    d.chunk_iter(lambda chunk: places.append(chunk.chunk_offset))
    for place in places:
        yield d.read_direct_chunk(place)


def check(name: str, d: h5py.h5d.DatasetID, path: Path) -> None:
    """Refuse a dataset of which a chunk is too large, or becomes larger than it should when it is unpacked.

    Raises
    ------
    UnsafeArchive
        There is one.
    """
    plist = d.get_create_plist()
    if plist.get_layout() != h5py.h5d.CHUNKED:
        return
    chunk, itemsize = plist.get_chunk(), d.get_type().get_size()
    size, what = math.prod(chunk) * itemsize, f"{path.name}: {name}"
    codes = filters(d)
    if size > MAX_STORED_CHUNK or (size > MAX_CHUNK and size > MAX_PACKED * d.get_storage_size()):
        raise _refused(f"{what} is stored in chunks of {list(chunk)} values ({size:,} bytes).")
    for i, code in enumerate(codes):
        values = plist.get_filter(i)[2]
        if code in COUNTED and (len(values) < 5 or values[2] != math.prod(chunk) or values[4] != itemsize):
            raise _refused(f"{what}: the parameters of filter {code} are not those of chunks of {list(chunk)} values.")
    if not codes:
        return
    _check_order(what, codes)
    sizes: list[int] = []
    d.chunk_iter(lambda c: sizes.append(c.size))
    largest, there = max(sizes, default=0), path.stat().st_size
    if largest > there:
        raise _refused(f"{what} claims a chunk of {largest:,} bytes as it is stored, and the file has {there:,}.")
    if (DEFLATE in codes and largest > HARMLESS) or (_LZF in codes and largest > HARMLESS_LZF):
        _check_large(name, d, size, path)
    if _SZIP in codes:
        position = codes.index(_SZIP)
        for mask, data in stored(d):
            if not mask >> position & 1 and int.from_bytes(data[:4], "little") > 2 * size + PIECE:
                raise _refused(f"{what}: a chunk of {size:,} bytes unpacks to more.")


def _check_order(what: str, codes: list[int]) -> None:
    """Refuse what is packed twice, or altered after it was packed: what it becomes cannot be counted piece by piece."""
    packed = next((k for k, code in enumerate(codes) if code in _PACKING), None)
    if packed is not None and set(codes[packed + 1 :]) - {FLETCHER}:
        raise _refused(f"{what} went through the filters {codes}: after one that packs, only a checksum may follow.")


def _check_large(name: str, d: h5py.h5d.DatasetID, size: int, path: Path) -> None:
    """Inflate all large chunks, several at a time, and keep nothing of them; once for each file and dataset."""
    stat = path.stat()
    known = (str(path), stat.st_size, stat.st_mtime_ns, int(h5py.h5o.get_info(d).addr))
    if known in _sound:
        return
    codes, threads = filters(d), min(4, os.cpu_count() or 1)
    places: list[tuple[int, ...]] = []
    d.chunk_iter(lambda c: places.append(c.chunk_offset) if c.size > HARMLESS else None)
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(places), threads):
            some: list[tuple[int, bytes]] = [d.read_direct_chunk(place) for place in places[first : first + threads]]
            if any(pool.map(lambda found: _exceeds(found[0], found[1], codes, 2 * size + PIECE), some)):
                raise _refused(f"{path.name}: {name}: a chunk of {size:,} bytes unpacks to more.")
    if len(_sound) >= MOST_KNOWN:
        _sound.clear()
    _sound.add(known)


def _exceeds(mask: int, data: bytes, codes: list[int], limit: int) -> bool:
    """Whether the last deflate or LZF of a chunk gives more than ``limit`` bytes; damage is for HDF5 to name."""
    active = [code for k, code in enumerate(codes) if not mask >> k & 1]
    if _LZF in active:
        return _lzf_exceeds(data, limit)
    if DEFLATE not in active:
        return False
    inner, given = zlib.decompressobj(), 0
    try:
        for at in range(0, len(data), PIECE):
            given += len(inner.decompress(data[at : at + PIECE]))
            if given > limit:
                return True
    except zlib.error:
        return False
    return False


def _lzf_exceeds(data: bytes, limit: int) -> bool:
    """Whether a chunk packed by LZF gives more than ``limit`` bytes, by its lengths of literals and references."""
    at = given = 0
    while at < len(data) - 1 and given <= limit:
        control = data[at]
        if control < 32:
            at, given = at + control + 2, given + control + 1
        elif control < 224:
            at, given = at + 2, given + (control >> 5) + 2
        else:
            at, given = at + 3, given + data[at + 1] + 9
    return given > limit


def _refused(what: str) -> UnsafeArchive:
    return UnsafeArchive(
        what, hint="it is not read; rlds_cli.create takes episodes that you read yourself, where you trust it"
    )
