"""The order in which people count."""

from __future__ import annotations

import re

_LONGEST = 1000  # digits; Python refuses to read numbers of more than 4,300


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which ``Trial2`` comes before ``Trial10``."""
    return tuple((0, int(p)) if p.isdecimal() and len(p) < _LONGEST else (1, p) for p in re.split(r"(\d+)", name) if p)
