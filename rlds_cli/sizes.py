"""Bytes and counts for people."""

from __future__ import annotations


def text(size: float) -> str:
    """``145.7 MiB``: powers of 1024, one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(n: int, word: str) -> str:
    """``1 episode``, ``2,187 episodes``."""
    return f"{n:,} {word}{'' if n == 1 else 's'}"
