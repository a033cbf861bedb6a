"""Text for people: sizes, counts, times, natural order, similar names; and names of fields, joined by ``/``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rlds_cli.base import visible

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{p}{b}": 1000**i for i, p in enumerate("kmgt", 1) for b in ("", "b")}
_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}
_NUMBER = re.compile(r"(\d+)")
_LONGEST = 1000  # digits; Python refuses to read numbers of more than 4,300


def size_of(size: float) -> str:
    """``145.7 MiB``: powers of 1024, one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def bytes_of(size: str) -> int | None:
    """Return the bytes of a size such as ``8GiB`` or ``500 MB``; None for anything else."""
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", size.lower())
    return int(float(parts[1]) * _UNITS[parts[2]]) if parts and parts[2] in _UNITS else None


def ends_in_words(rule: str) -> str:
    """Return how episodes end: a rule of ``--episodes-by``, or for a list of a file or of its rows what it holds."""
    return "stated ends or lengths" if rule.startswith("field:ends:") else rule


def plural(n: int, word: str) -> str:
    """Return the count with its noun: ``1 episode``, ``2,187 episodes``, ``2 batches``."""
    ending = "" if n == 1 else "es" if word.endswith("ch") else "s"
    return f"{n:,} {word}{ending}"


def duration(seconds: float) -> str:
    """``3.5 ms``, ``40 s``, ``12 min``, ``2.5 h``."""
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key under which ``Trial2`` comes before ``Trial10``."""
    parts = enumerate(_NUMBER.split(name))  # of which every second one is a number
    return tuple([(0, int(p)) if k & 1 and len(p) < _LONGEST else (1, p) for k, p in parts if p])


def natural_path(path: str) -> tuple[tuple[int, int | str], ...]:
    """The sort key `natural` of a path, for thousands in the same folders or of the same names."""
    folder, slash, name = path.rpartition("/")
    above, own = _natural_kept(folder + slash), _natural_kept(name)
    if not above or name[:1].isdecimal():
        return above + own
    return (*above[:-1], (1, f"{above[-1][1]}{own[0][1]}"), *own[1:]) if own else above  # the text goes on


_natural_kept = lru_cache(1 << 12)(natural)


def is_below(name: str, above: str) -> bool:
    """Return whether ``name`` is the name ``above`` or a part of it: ``observation/image`` is below ``observation``."""
    return name == above or name.startswith(f"{above}/")


def split_name(key: str | tuple[str, ...]) -> tuple[str, ...]:
    """Split a field name into components; a tuple means the same as a name with ``/``, and its parts may have some."""
    return tuple(join_name(key).split("/"))


def join_name(key: str | tuple[str, ...]) -> str:
    """Return the field name of ``key``."""
    return key if isinstance(key, str) else "/".join(key)


def similar(name: str, known: Iterable[str], count: int, cutoff: float = 0.6) -> list[str]:
    """Return at most ``count`` names in ``known`` that are spelt like ``name``, the most similar first.

    ``cutoff`` is the least similarity, from 0 to 1, as of `difflib.get_close_matches`.
    """
    from difflib import get_close_matches  # 3 ms, and only messages of errors need it

    return get_close_matches(name, known, count, cutoff)


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name in ``known`` that is spelt most like ``name``, or None if none comes near; see `similar`."""
    return next(iter(similar(name, known, 1, cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `` Did you mean "..."?`` with the closest name, to follow a sentence; empty if none comes near."""
    found = closest(name, known, cutoff)
    return "" if found is None else f' Did you mean "{found}"?'


def screen(head: str, lines: Sequence[str], most: int = 20) -> str:
    """Return a heading and indented lines, made safe to print; beyond ``most`` they are counted."""
    more = len(lines) - most
    return "\n  ".join([head, *map(visible.line, lines[:most]), *([f"... {more:,} more"] if more > 0 else [])])
