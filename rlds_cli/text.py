"""Bytes, counts and times for people.

The order in which people count.
"""

from __future__ import annotations

import re

from rlds_cli.errors import RldsError


def size_of(size: float) -> str:
    """``145.7 MiB``: powers of 1024, one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def rate(text: str) -> int:
    """Bytes a second of ``10M``, ``500k``, ``1.5MiB`` or a plain number: powers of 1024.

    Raises
    ------
    RldsError
        It is none of these, or not more than 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([kmgt]?)(?:i?b)?(?:/s)?", text.strip().lower())
    value = float(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else 0
    if value < 1:
        raise RldsError(f'"{text}" is not a rate of bytes a second.', hint="as in 500k, 10M or 1.5M")
    return int(value)


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
