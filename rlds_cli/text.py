"""Bytes, counts and times for people.

The order in which people count.
"""

from __future__ import annotations

import re


def size_of(size: float) -> str:
    """``145.7 MiB``: powers of 1024, one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(n: int, word: str) -> str:
    """``1 episode``, ``2,187 episodes``."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"


def duration(seconds: float) -> str:
    """``3.5 ms``, ``40 s``, ``12 min``, ``2.5 h``."""
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


_LONGEST = 1000  # digits; Python refuses to read numbers of more than 4,300


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which ``Trial2`` comes before ``Trial10``."""
    return tuple((0, int(p)) if p.isdecimal() and len(p) < _LONGEST else (1, p) for p in re.split(r"(\d+)", name) if p)
