"""Undo the filters of HDF5's chunks without HDF5, and refuse a heap in which the library loops for ever.

HDF5 unpacks a chunk until its data end, whatever size the dataset states: 4 MB of deflate may become 4 GB in memory.
What it takes is bounded by the limit of the process that reads an archive (`files.child`), and here by the size.

A text, or a list of any length, is stored as its length and its place in a heap (HDF5 file format, III.E, the global
heap).
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.errors import CorruptArchive

DEFLATE, SHUFFLE, FLETCHER = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
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


def is_variable(kind: h5py.h5t.TypeID) -> bool:
    """Return whether values of a type, or parts of them, are of variable length."""
    match kind.get_class():
        case h5py.h5t.STRING:
            return bool(kind.is_variable_str())
        case h5py.h5t.VLEN:
            return True
        case h5py.h5t.ARRAY:
            return is_variable(kind.get_super())
        case h5py.h5t.COMPOUND:
            return any(is_variable(kind.get_member_type(i)) for i in range(kind.get_nmembers()))
        case _:
            return False


def check_heap(item: h5py.h5g.GroupID | h5py.h5d.DatasetID, path: Path) -> None:
    """Refuse a heap with free space of size 0.

    Raises
    ------
    CorruptArchive
        The file has such a heap.
    """
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


def _places(content: mmap.mmap, what: bytes) -> Iterator[int]:
    """Yield the places of some bytes in a mapped file; pages that were searched do not stay in memory."""
    for window in range(0, len(content), _WINDOW):
        end = min(window + _WINDOW, len(content))
        at = content.find(what, window, end + len(what) - 1)
        while at >= 0:
            yield at
            at = content.find(what, at + 1, end + len(what) - 1)
        content.madvise(mmap.MADV_DONTNEED, window, end - window)
