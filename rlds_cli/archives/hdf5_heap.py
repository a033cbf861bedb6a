"""Values of variable length in HDF5 files, measured before they are read.

A text, or a list of any length, is stored as its length and its place in a heap (HDF5 file format, III.E, the global
heap). Many values may name the same place: 2 MB of a file then stand for 40 GB in memory. Lengths are therefore added
up as they are stored. Where they cannot be read so, no value can be larger than the largest collection of the heap.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives import hdf5_chunks
from rlds_cli.errors import CorruptArchive, UnsafeArchive
from rlds_cli.ted import Array

FREE_BYTES = 64 << 20  # what may become of a file of any size
MAX_ATTRIBUTE = 16 << 20  # bytes; most versions of HDF5 write 64 KiB at most, and texts of any length elsewhere
MAX_UNMEASURED = 256 << 20  # of attributes, and other values whose lengths are known roughly
BLOCK = 4 << 20
MAX_SEARCHED = 4 << 30  # bytes of a file whose heap is looked through
_COLLECTION = b"GCOL\x01"
_OBJECT = 16  # bytes of the header of an object, and of a collection


def check(name: str, d: h5py.h5d.DatasetID, path: Path) -> None:
    """Refuse a dataset whose values of variable length would take more memory than the file has bytes.

    Raises
    ------
    UnsafeArchive
        They would.
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
        raise _refused(f"{path.name}: {name}", claimed, size)


def check_attribute(item: h5py.Group | h5py.Dataset, name: str | bytes, path: Path) -> None:
    """Refuse an attribute in the same way; raises as `check`. A name that is no UTF-8 comes as bytes."""
    raw = name if isinstance(name, bytes) else name.encode()
    size = h5py.h5a.get_info(item.id, raw).data_size
    if size > MAX_ATTRIBUTE:
        raise UnsafeArchive(
            f"{path.name}: the attribute {name!r} of {item.name} has {size:,} bytes, more than {MAX_ATTRIBUTE:,}.",
            hint="it is not read; rlds_cli.create takes episodes that you read yourself, where you trust it",
        )
    attribute = h5py.h5a.open(item.id, raw)
    kind, count = attribute.get_type(), math.prod(attribute.shape or ())
    if is_variable(kind):
        _check_heap(item.id, path)
        _check_roughly(f"{path.name}: the attribute {name!r} of {item.name}", kind, count, path)


def is_variable(kind: h5py.h5t.TypeID) -> bool:
    """Whether values of a type, or parts of them, are of variable length."""
    return _most(kind, 1) > 0


def _most(kind: h5py.h5t.TypeID, largest: int) -> int:
    """Bytes of variable length that one value of a type may have, where none of its lists has more than ``largest``."""
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
    """Bytes of a value where it lies in a heap; of one of variable length, those of its length and place."""
    is_list = kind.get_class() == h5py.h5t.VLEN
    is_text = kind.get_class() == h5py.h5t.STRING and kind.is_variable_str()
    return 16 if is_list or is_text else int(kind.get_size())


def _check_roughly(what: str, kind: h5py.h5t.TypeID, count: int, path: Path) -> None:
    stat = path.stat()
    allowed = MAX_UNMEASURED + stat.st_size
    if count * _most(kind, stat.st_size) > allowed:
        claimed = count * _most(kind, _largest(str(path), stat.st_size, stat.st_mtime_ns))
        if claimed > allowed:
            raise _refused(what, claimed, stat.st_size)


def _claimed(d: h5py.h5d.DatasetID, kind: h5py.h5t.TypeID, count: int, path: Path) -> int | None:
    """Bytes of all values, by their lengths as they are stored; None where these cannot be read."""
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
    """The lengths of the values that were written, block by block; None where the layout or a filter is another."""
    plist = d.get_create_plist()
    place = h5py.h5i.get_file_id(d).get_create_plist().get_sizes()[0]
    one = np.dtype({"names": ["length"], "formats": ["<u4"], "itemsize": 4 + place + 4})
    layout = plist.get_layout()
    if layout == h5py.h5d.CONTIGUOUS and not plist.get_external_count():
        return _contiguous(d, path, one)
    known = {hdf5_chunks.DEFLATE, hdf5_chunks.SHUFFLE, hdf5_chunks.FLETCHER}
    if layout != h5py.h5d.CHUNKED or set(hdf5_chunks.filters(d)) - known:
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
    codes = hdf5_chunks.filters(d)
    for mask, data in hdf5_chunks.stored(d):
        values = hdf5_chunks.unpacked(data, mask, codes, size, one.itemsize) or b""
        yield np.frombuffer(values, one, len(values) // one.itemsize)["length"]


@lru_cache(maxsize=64)
def _largest(path: str, size: int, changed: int) -> int:
    """Bytes of the largest collection of the heap; no object in it is larger."""
    found = 0
    with Path(path).open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(_COLLECTION)
        while at >= 0:
            found = max(found, min(int.from_bytes(content[at + 8 : at + 16], "little"), size - at))
            at = content.find(_COLLECTION, at + 1)
    return found


def _check_heap(item: h5py.h5g.GroupID | h5py.h5d.DatasetID, path: Path) -> None:
    """Refuse a heap with free room of no size: the HDF5 library never comes to its end."""
    stat = path.stat()
    width = h5py.h5i.get_file_id(item).get_create_plist().get_sizes()[1]
    if stat.st_size <= MAX_SEARCHED and _is_endless(str(path), stat.st_size, stat.st_mtime_ns, width):
        raise CorruptArchive(f"{path.name}: a heap of texts or lists is damaged.", hint="fetch or write it again")


@lru_cache(maxsize=64)
def _is_endless(path: str, size: int, changed: int, width: int) -> bool:
    """Whether a collection has free room of no size, or collections overlap; ``width`` is that of lengths."""
    left = size // _OBJECT  # objects that fit into the file
    with Path(path).open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(_COLLECTION + bytes(3))
        while start >= 0:
            at = start + _OBJECT
            end = min(start + int.from_bytes(content[start + 8 : start + 8 + width], "little"), size)
            while at + _OBJECT <= end:
                number = content[at] | content[at + 1]
                length = int.from_bytes(content[at + 8 : at + 8 + width], "little")
                left -= 1
                if left < 0 or not (number or length):
                    return True
                at += _OBJECT + (length + 7 & ~7) if number else length
            start = content.find(_COLLECTION + bytes(3), start + 1)
    return False


def _refused(what: str, claimed: int, size: int) -> UnsafeArchive:
    return UnsafeArchive(
        f"{what} stands for {claimed:,} bytes of texts or lists, in a file of {size:,}.",
        hint="it is not read; rlds_cli.create takes episodes that you read yourself, where you trust it",
    )
