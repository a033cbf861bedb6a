"""The sha256 of many pieces of one buffer: sha256.c hashes all of them in one call, during which other threads run."""

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
def _load() -> tuple[Any, bool]:
    """Return the compiled function, if it was compiled, and whether it uses instructions for sha256."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None, False
    p, i = ctypes.c_void_p, ctypes.c_int64
    library.rlds_sha256.argtypes, library.rlds_sha256.restype = (p, p, p, i, ctypes.c_int, p), None
    return library.rlds_sha256, bool(library.rlds_sha256_is_fast())


def of_pieces(data: bytes | memoryview, start: npt.ArrayLike, size: npt.ArrayLike) -> npt.NDArray[np.uint8]:
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
    function, fast = _load()
    if function is None or (not fast and int(size.sum()) > _LONG * len(size)):
        pieces = (data[a : a + n] for a, n in zip(start.tolist(), size.tolist(), strict=True))
        found.reshape(-1)[:] = np.frombuffer(b"".join(hashlib.sha256(piece).digest() for piece in pieces), np.uint8)
    else:
        buffer = np.frombuffer(data, np.uint8)  # keeps the bytes as long as their address is used
        function(*(x.ctypes.data for x in (buffer, start, size)), len(start), fast, found.ctypes.data)
    return found
