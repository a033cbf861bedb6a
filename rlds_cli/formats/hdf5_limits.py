"""Bound the memory that HDF5 datasets take: chunks when they are unpacked, and values of variable length.

HDF5 unpacks a chunk until its data end, whatever size the dataset states: 4 MB of deflate may become 4 GB in memory.

A text, or a list of any length, is stored as its length and its place in a heap (HDF5 file format, III.E, the global
heap). Many values may name the same place: 2 MB of a file then stand for 40 GB in memory. The stored lengths are
therefore added up before reading. If they cannot be read, the largest collection of the heap bounds each value.
"""

from __future__ import annotations

import math
import mmap
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.array_types import Array
from rlds_cli.errors import CorruptArchive, UnsafeArchive

MAX_CHUNK = 256 << 20  # bytes; chunks are unpacked whole, and h5py writes them of a megabyte at most
MAX_STORED_CHUNK = 1 << 30  # chunks that are larger and not much smaller as they are stored
MAX_PACKED = 4  # how much smaller
# Deflate packs at most 1,032 to 1: fewer stored bytes cannot become more than half a gigabyte, and are not checked.
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
FREE_BYTES = 64 << 20  # any file may become so large in memory
MAX_ATTRIBUTE = 16 << 20  # bytes; most versions of HDF5 write 64 KiB at most, and texts of any length elsewhere
MAX_UNMEASURED = 256 << 20  # of attributes, and other values whose lengths are known roughly
BLOCK = 4 << 20
MAX_SEARCHED = 4 << 30  # bytes of a file whose heap is looked through
_WINDOW = 16 << 20  # bytes that are searched at a time, whole pages
_COLLECTION = b"GCOL\x01"
_OBJECT = 16  # bytes of the header of an object, and of a collection


def filters(d: h5py.h5d.DatasetID) -> list[int]:
    """The filters of a dataset, in the order in which they were applied."""
    plist = d.get_create_plist()
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def inflated(data: bytes, size: int) -> bytes:
    """Inflate a chunk to ``size`` bytes, without HDF5, which would unpack all data whatever their size."""
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
    """Return a chunk of ``size`` bytes with its filters undone; None if this function does not know one of them.

    It knows deflate, shuffle and Fletcher32. Bit k of ``mask`` is set if filter k was not applied to the chunk.
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


def check_chunks(name: str, d: h5py.h5d.DatasetID, path: Path) -> None:
    """Refuse a dataset with a chunk that is too large, or unpacks to more than its size.

    Raises
    ------
    UnsafeArchive
        There is such a chunk.
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
    """Refuse data that are packed twice, or altered after packing: their unpacked size cannot be counted in pieces."""
    packed = next((k for k, code in enumerate(codes) if code in _PACKING), None)
    if packed is not None and set(codes[packed + 1 :]) - {FLETCHER}:
        raise _refused(f"{what} went through the filters {codes}: after one that packs, only a checksum may follow.")


def _check_large(name: str, d: h5py.h5d.DatasetID, size: int, path: Path) -> None:
    """Inflate all large chunks, several at a time, to count their bytes; once for each file and dataset."""
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
    """Return whether the last deflate or LZF of a chunk gives more than ``limit`` bytes; HDF5 reports damage."""
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
    """Return whether an LZF chunk unpacks to more than ``limit`` bytes, by its lengths of literals and references."""
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
        what, hint="it is not read; if you trust it, read it yourself and pass the episodes to rlds_cli.create"
    )


def check_heap(name: str, d: h5py.h5d.DatasetID, path: Path) -> None:
    """Refuse a dataset whose values of variable length would take more memory than the file has bytes.

    Raises
    ------
    UnsafeArchive
        The values would take more.
    """
    kind, count = d.get_type(), math.prod(d.shape or ())
    if not is_variable(kind):
        return
    _check_heap(d, path)
    size = path.stat().st_size
    if count * _most(kind, size) <= FREE_BYTES:
        return
    claimed = _claimed(d, kind, count, path)
    if claimed is None:
        _check_roughly(f"{path.name}: {name}", kind, count, path)
    elif claimed > FREE_BYTES + size:
        raise _too_much_text(f"{path.name}: {name}", claimed, size)


def check_attribute(item: h5py.Group | h5py.Dataset, name: str | bytes, path: Path) -> None:
    """Refuse an attribute as `check` does a dataset. Names that are not UTF-8 are bytes."""
    raw = name if isinstance(name, bytes) else name.encode()
    size = h5py.h5a.get_info(item.id, raw).data_size
    if size > MAX_ATTRIBUTE:
        raise UnsafeArchive(
            f"{path.name}: the attribute {name!r} of {item.name} has {size:,} bytes, more than {MAX_ATTRIBUTE:,}.",
            hint="it is not read; if you trust it, read it yourself and pass the episodes to rlds_cli.create",
        )
    attribute = h5py.h5a.open(item.id, raw)
    kind, count = attribute.get_type(), math.prod(attribute.shape or ())
    if is_variable(kind):
        _check_heap(item.id, path)
        _check_roughly(f"{path.name}: the attribute {name!r} of {item.name}", kind, count, path)


def is_variable(kind: h5py.h5t.TypeID) -> bool:
    """Return whether values of a type, or parts of them, are of variable length."""
    return _most(kind, 1) > 0


def _most(kind: h5py.h5t.TypeID, largest: int) -> int:
    """Return the most bytes of variable length in one value of a type, with lists of at most ``largest`` bytes."""
    match kind.get_class():
        case h5py.h5t.STRING:
            return largest if kind.is_variable_str() else 0
        case h5py.h5t.VLEN:
            inner = kind.get_super()
            return largest + largest // max(1, _stored_size(inner)) * _most(inner, largest)
        case h5py.h5t.ARRAY:
            return int(math.prod(kind.get_array_dims())) * _most(kind.get_super(), largest)
        case h5py.h5t.COMPOUND:
            return sum(_most(kind.get_member_type(i), largest) for i in range(kind.get_nmembers()))
        case _:
            return 0


def _stored_size(kind: h5py.h5t.TypeID) -> int:
    """Return the bytes of a stored value; a value of variable length is stored as its length and place."""
    is_list = kind.get_class() == h5py.h5t.VLEN
    is_text = kind.get_class() == h5py.h5t.STRING and kind.is_variable_str()
    return 16 if is_list or is_text else int(kind.get_size())


def _check_roughly(what: str, kind: h5py.h5t.TypeID, count: int, path: Path) -> None:
    stat = path.stat()
    allowed = MAX_UNMEASURED + stat.st_size
    if count * _most(kind, stat.st_size) > allowed:
        claimed = count * _most(kind, _largest(str(path), stat.st_size, stat.st_mtime_ns))
        if claimed > allowed:
            raise _too_much_text(what, claimed, stat.st_size)


def _claimed(d: h5py.h5d.DatasetID, kind: h5py.h5t.TypeID, count: int, path: Path) -> int | None:
    """Add up the stored lengths of all values; None if they cannot be read."""
    is_text = kind.get_class() == h5py.h5t.STRING
    if not is_text and (kind.get_class() != h5py.h5t.VLEN or is_variable(kind.get_super())):
        return None
    width = 1 if is_text else int(kind.get_super().get_size())
    found = _descriptors(d, path)
    if found is None:
        return None
    there = total = 0
    for lengths in found:
        there += len(lengths)
        total += int(lengths.sum(dtype=np.uint64)) * width
        if total > FREE_BYTES + path.stat().st_size:
            return total
    fill = h5py.Dataset(d).fillvalue if there < count else None
    return total + max(0, count - there) * width * (len(fill) if isinstance(fill, bytes | str | np.ndarray) else 0)


def _descriptors(d: h5py.h5d.DatasetID, path: Path) -> Iterator[Array] | None:
    """Yield the stored lengths of values, block by block; None for unknown layouts and filters."""
    plist = d.get_create_plist()
    place = h5py.h5i.get_file_id(d).get_create_plist().get_sizes()[0]
    one = np.dtype({"names": ["length"], "formats": ["<u4"], "itemsize": 4 + place + 4})
    layout = plist.get_layout()
    if layout == h5py.h5d.CONTIGUOUS and not plist.get_external_count():
        return _contiguous(d, path, one)
    known = {DEFLATE, SHUFFLE, FLETCHER}
    if layout != h5py.h5d.CHUNKED or set(filters(d)) - known:
        return None
    return _chunked(d, math.prod(plist.get_chunk()) * one.itemsize, one)


def _contiguous(d: h5py.h5d.DatasetID, path: Path, one: np.dtype[np.void]) -> Iterator[Array]:
    offset, left = d.get_offset(), math.prod(d.shape or ()) * one.itemsize
    if offset is None:
        return
    step = BLOCK // one.itemsize * one.itemsize
    with path.open("rb") as f:
        f.seek(offset)
        while left and (data := f.read(min(step, left))):
            left -= len(data)
            yield np.frombuffer(data, one, len(data) // one.itemsize)["length"]


def _chunked(d: h5py.h5d.DatasetID, size: int, one: np.dtype[np.void]) -> Iterator[Array]:
    codes = filters(d)
    for mask, data in stored(d):
        values = unpacked(data, mask, codes, size, one.itemsize) or b""
        yield np.frombuffer(values, one, len(values) // one.itemsize)["length"]


@lru_cache(maxsize=64)
def _largest(path: str, size: int, changed: int) -> int:
    """Return the bytes of the largest collection of the heap, which bound the size of every object."""
    found = 0
    with Path(path).open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for at in _places(content, _COLLECTION):
            found = max(found, min(int.from_bytes(content[at + 8 : at + 16], "little"), size - at))
    return found


def _places(content: mmap.mmap, what: bytes) -> Iterator[int]:
    """Yield the places of some bytes in a mapped file; pages that were searched do not stay in memory."""
    for window in range(0, len(content), _WINDOW):
        end = min(window + _WINDOW, len(content))
        at = content.find(what, window, end + len(what) - 1)
        while at >= 0:
            yield at
            at = content.find(what, at + 1, end + len(what) - 1)
        content.madvise(mmap.MADV_DONTNEED, window, end - window)


def _check_heap(item: h5py.h5g.GroupID | h5py.h5d.DatasetID, path: Path) -> None:
    """Refuse a heap with free space of size 0, in which the HDF5 library loops for ever."""
    stat = path.stat()
    width = h5py.h5i.get_file_id(item).get_create_plist().get_sizes()[1]
    if stat.st_size <= MAX_SEARCHED and _is_endless(str(path), stat.st_size, stat.st_mtime_ns, width):
        raise CorruptArchive(f"{path.name}: a heap of texts or lists is damaged.", hint="fetch or write it again")


@lru_cache(maxsize=64)
def _is_endless(path: str, size: int, changed: int, width: int) -> bool:
    """Return whether a collection has free space of size 0, or collections overlap; lengths have ``width`` bytes."""
    left = size // _OBJECT  # objects that fit into the file
    with Path(path).open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for start in _places(content, _COLLECTION + bytes(3)):
            at = start + _OBJECT
            end = min(start + int.from_bytes(content[start + 8 : start + 8 + width], "little"), size)
            while at + _OBJECT <= end:
                number = content[at] | content[at + 1]
                length = int.from_bytes(content[at + 8 : at + 8 + width], "little")
                left -= 1
                if left < 0 or not (number or length):
                    return True
                at += _OBJECT + (length + 7 & ~7) if number else length
    return False


def _too_much_text(what: str, claimed: int, size: int) -> UnsafeArchive:
    return UnsafeArchive(
        f"{what} represents {claimed:,} bytes of texts or lists, in a file of {size:,}.",
        hint="it is not read; if you trust it, read it yourself and pass the episodes to rlds_cli.create",
    )
