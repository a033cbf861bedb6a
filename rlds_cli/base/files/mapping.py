"""Parts of files as memory; and a range of addresses, into which files are mapped side by side and read as one array.

::

    addresses   0          64 KiB                 192 KiB
    reads       file a     zeros     file b       zeros
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, BinaryIO

from rlds_cli.errors import DamagedDataset

MOST = 1 << 46  # bytes of a range: a process has 2**47 addresses
HUGE_PAGE = 2 << 20  # of most systems; a file is mapped in such pages where its first byte has one of its own

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FIXED, _NO_RESERVE = 0x10, getattr(mmap, "MAP_NORESERVE", 0)
_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_ZEROS = _MEMORY | _NO_RESERVE
_FAILED = ctypes.c_void_p(-1).value


class Addresses:
    """A reserved range of ``size`` addresses, which takes no memory. It stays while a `view` of it is used.

    It begins at a multiple of the size of a huge page.

    Raises
    ------
    DamagedDataset
        The process cannot have as many addresses.
    """

    def __init__(self, size: int) -> None:
        if not 0 < size <= MOST:
            raise DamagedDataset(f"{size:,} bytes cannot be mapped as one array.", hint="rlds verify ID")
        self._size = size
        reserved = _mapped(None, size + HUGE_PAGE, _ZEROS, -1)
        self._at = -(-reserved // HUGE_PAGE) * HUGE_PAGE
        self._raw = (ctypes.c_char * size).from_address(self._at)
        weakref.finalize(self._raw, _libc.munmap, reserved, size + HUGE_PAGE).atexit = False  # threads may read then

    def map(self, at: int, size: int, descriptor: int) -> None:
        """Map the first ``size`` bytes of a file at a multiple of the page size; the rest of its last page, too."""
        self._check(at, size)
        _mapped(self._at + at, size, mmap.MAP_SHARED | _FIXED, descriptor)

    def unmap(self, at: int, size: int) -> None:
        """Let go of what is mapped there: the disk has it back then, if it was removed."""
        self._check(at, size)
        _mapped(self._at + at, size, _ZEROS | _FIXED, -1)

    def memory(self, at: int, size: int) -> Any:
        """Put zeroed memory of this process at a multiple of the page size; return it as a buffer to write to."""
        self._check(at, size)
        _mapped(self._at + at, size, _MEMORY | _FIXED, -1, mmap.PROT_READ | mmap.PROT_WRITE)
        written: Any = (ctypes.c_char * size).from_address(self._at + at)
        written.kept = self._raw
        return written

    def _check(self, at: int, size: int) -> None:
        """Refuse other addresses: what the process has there would be gone."""
        if not 0 <= at <= at + size <= self._size:
            raise ValueError(f"bytes {at:,} to {at + size:,} of {self._size:,}")

    def view(self, hold: object = None) -> Any:
        """Return the bytes as a buffer, which keeps ``hold``; they must not be written to."""
        view: Any = type(self._raw).from_address(self._at)
        view.kept = self._raw, hold
        return view


def let_go(address: int, size: int) -> None:
    """Unmap the pages of mapped files, which count as memory in use; their bytes are read again when they are used."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(first, address + size - first, mmap.MADV_DONTNEED)


def fetch(address: int, size: int) -> None:
    """Read the pages of a mapped file in order, into huge pages where the system has some for files."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _libc.madvise(first, address + size - first, mmap.MADV_HUGEPAGE)
    for at in range(address, address + size, HUGE_PAGE):
        ctypes.c_ubyte.from_address(at).value  # noqa: B018


def mapped(file: BinaryIO, at: int, size: int) -> memoryview | None:
    """Map bytes of a file, or read them where its file system maps none; None if it ends before.

    They must not be cut off as long as they are used, which would end the process: files of datasets never are.
    """
    try:
        descriptor = file.fileno()
        passed = at % mmap.ALLOCATIONGRANULARITY
        found = mmap.mmap(descriptor, passed + size, access=mmap.ACCESS_READ, offset=at - passed)
    except OSError:  # of content in memory, too
        file.seek(at)
        data = file.read(size)
        return memoryview(data) if len(data) == size else None
    except ValueError:  # beyond its end
        return None
    return memoryview(found)[passed:]


def _mapped(at: int | None, size: int, how: int, descriptor: int, access: int = mmap.PROT_READ) -> int:
    found = _libc.mmap(at, size, access, how, descriptor, 0)
    if found == _FAILED or found is None:
        code = ctypes.get_errno()
        raise DamagedDataset(f"{size:,} bytes cannot be mapped: {os.strerror(code)}.", hint="ulimit -v unlimited")
    return int(found)
