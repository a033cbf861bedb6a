"""The sha256 of many pieces of one buffer, and of bytes that come in order together with that of each of their blocks.

sha256.c hashes all that it is given in one call, during which other threads run.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LIBRARY = Path(__file__).with_name("_sha256.so")
_LONG = 2048  # bytes: hashlib lets go of the GIL, and OpenSSL has code for processors that sha256.c has none for


@lru_cache(maxsize=1)
def _load() -> tuple[Any, int]:
    """Return the compiled functions, if they were compiled, and what they use: 1 instructions for sha256, 2 AVX-512."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None, 0
    p, i = ctypes.c_void_p, ctypes.c_int64
    arguments = {
        "rlds_sha256": (p, p, p, i, ctypes.c_int, p),
        "rlds_sha256_begin": (p,),
        "rlds_sha256_add": (p, p, i, i, p),
        "rlds_sha256_end": (p, p, i, i, p),
    }
    for name, types in arguments.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library, int(library.rlds_sha256_is_fast())


def of_pieces(data: bytes | bytearray | memoryview, start: npt.ArrayLike, size: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return the sha256 of each piece [n, 32]: of ``size[i]`` bytes of ``data`` from ``start[i]`` on.

    Raises
    ------
    ValueError
        A piece does not lie in the buffer.
    """
    start, size = (np.ascontiguousarray(x, np.int64) for x in (start, size))
    if len(start) != len(size) or (len(start) and ((start < 0) | (size < 0) | (start > len(data) - size)).any()):
        raise ValueError(f"pieces lie outside of {len(data):,} bytes")
    found = np.empty((len(start), 32), np.uint8)
    library, fast = _load()
    if library is None or (not fast and int(size.sum()) > _LONG * len(size)):
        pieces = (data[a : a + n] for a, n in zip(start.tolist(), size.tolist(), strict=True))
        found.reshape(-1)[:] = np.frombuffer(b"".join(hashlib.sha256(piece).digest() for piece in pieces), np.uint8)
    else:
        buffer = np.frombuffer(data, np.uint8)  # keeps the bytes as long as their address is used
        library.rlds_sha256(*(x.ctypes.data for x in (buffer, start, size)), len(start), fast, found.ctypes.data)
    return found


class Blocks:
    """Hashes bytes that come in order: all of them, and each block of ``size`` bytes, a multiple of 64.

    With instructions for sha256, two hashes of the same bytes take a fifth less time together than one after the other.
    """

    def __init__(self, size: int) -> None:
        self._size, self._added = size, 0
        library, fast = _load()
        self._library = library if fast else None
        self._hash = hashlib.sha256()  # without the library
        self._state = np.empty(8, np.uint32)
        if fast:
            library.rlds_sha256_begin(self._state.ctypes.data)

    def add(self, data: bytes | bytearray | memoryview) -> bytes:
        """Add whole blocks; return their hashes, end to end."""
        count = len(data) // self._size
        if count * self._size != len(data):
            raise ValueError(f"blocks have {self._size:,} bytes; {len(data):,} are not a multiple of that")
        self._added += len(data)
        if self._library is None:
            self._hash.update(data)
            return of_pieces(data, np.arange(count) * self._size, np.full(count, self._size)).tobytes()
        found, buffer = np.empty((count, 32), np.uint8), np.frombuffer(data, np.uint8)
        where = self._state.ctypes.data, buffer.ctypes.data
        self._library.rlds_sha256_add(*where, self._size, count, found.ctypes.data)
        return found.tobytes()

    def end(self, rest: bytes | bytearray | memoryview) -> bytes:
        """Return the hash of all that was added, and of ``rest`` behind it; nothing can be added then."""
        if self._library is None:
            self._hash.update(rest)
            return self._hash.digest()
        found, buffer = np.empty(32, np.uint8), np.frombuffer(rest, np.uint8)
        where = self._state.ctypes.data, buffer.ctypes.data
        self._library.rlds_sha256_end(*where, len(rest), self._added + len(rest), found.ctypes.data)
        return found.tobytes()
