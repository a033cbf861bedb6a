"""The C library's memory, between one gather and the next."""

from __future__ import annotations

import numpy as np

_MOST = (32 << 20) - (64 << 10)  # glibc learns nothing from what is larger than 32 MiB


def keep_freed() -> None:
    """Make the C library keep the memory that is freed, instead of giving it back and asking for it at every gather.

    glibc maps what is larger than a threshold, and returns the top of its heap when twice that much of it is free; the
    threshold is at first 128 KiB, and rises to the size of any mapped piece that is freed (mallopt(3)). With gathers of
    some MiB whether each of them starts with hundreds of page faults is then a matter of luck: 54 or 14 µs a batch.
    One large piece that is freed untouched settles it, for 10 µs. It does nothing in other C libraries.
    """
    np.empty(_MOST, np.uint8)
