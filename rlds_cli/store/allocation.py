"""How this process gets its memory."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT = 64 << 20
_FROM_HEAP = 32 << 20  # the most that glibc allows


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of what is freed for what is allocated next, in a process whose arrays come and go.

    By default glibc hands arrays of some 100 kB back to the system as soon as they are freed, and the system zeroes
    the pages of the next ones: twice the time of a NumPy expression on blocks of 16,384 rows.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP)
        mallopt(_TRIM_THRESHOLD, _KEPT)
