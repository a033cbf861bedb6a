"""Where episodes end, by the rules ``flags``, ``timeouts``, ``jumps``, ``field:KEY`` and ``file``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlds_cli.archives.d4rl import jumps
from rlds_cli.archives.d4rl.jumps import Limits
from rlds_cli.archives.d4rl.layout import Layout
from rlds_cli.archives.tables import Table
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import Array, BoolArray, IntArray

DEFAULT = "flags"
RULES = ("flags", "timeouts", "jumps", "field:KEY", "file")
SCAN_ROWS = 1 << 18
SCAN_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for one file.

    ``kind`` is the part before the colon, ``key`` the column that ``field`` looks at, ``limits`` what ``jumps`` goes by
    where there are no next observations.
    """

    kind: str
    layout: Layout
    key: str | None = None
    limits: Limits = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """What the rule and the flags need to see."""
        return {k for k in (self.layout.terminals, self.layout.timeouts, self.key, *self.limits) if k is not None}

    def ends(self, seen: Mapping[str, Array], rows: int, *, last: bool) -> BoolArray:
        """Which of the first ``rows`` rows end an episode; ``last``: the file ends with them. bool [rows].

        ``seen`` holds what ``keys`` names, with one row more than ``rows`` unless the file ends.
        """
        ends = np.zeros(rows, bool)
        if self.kind == "flags":
            ends |= is_set(seen, self.layout.terminals, rows)
        if self.kind in ("flags", "timeouts"):
            ends |= is_set(seen, self.layout.timeouts, rows)
        if self.key is not None:
            value = seen[self.key].reshape(-1)
            ends[: len(value) - 1] = differs(value[:-1], value[1:])[:rows]
        for key, limit in self.limits.items():
            ends |= jumps.ends(seen[key], limit, rows)
        if last and rows:
            ends[-1] = True
        return ends


def rule(text: str | None, layout: Layout, f: Table, path: Path, *, limits: Limits | None = None) -> Rule:
    """The rule that ``text`` names, for one file; ``limits`` as found before, when it has been planned.

    Raises
    ------
    UnknownLayout
        There is no such rule, or the file lacks what it needs.
    """
    kind, _, key = (text or DEFAULT).partition(":")
    if kind not in [r.partition(":")[0] for r in RULES] or bool(key) != (kind == "field"):
        raise UnknownLayout(f'"{text}" is no rule for where episodes end.', hint=f"one of {', '.join(RULES)}")
    if kind == "timeouts" and layout.timeouts is None:
        raise UnknownLayout(
            f'{path.name} has no "timeouts", at which its episodes are said to end.',
            hint="--episodes-by flags, or --map truncated=KEY",
        )
    if kind == "jumps" and not layout.comparable:
        return Rule(kind, layout, limits=jumps.limits(path, f, layout) if limits is None else limits)
    return Rule(kind, layout, _boundary(key, layout, f, path.name) if kind == "field" else None)


def _boundary(key: str, layout: Layout, f: Table, name: str) -> str:
    key = layout.columns.get(key, key)
    f.derive([key])
    d = f.get(key)
    if d is None or not d.shape or d.shape[0] != layout.rows or d.shape[1:] not in ((), (1,)):
        raise UnknownLayout(
            f'{name} has no column "{key}" with one value per row, by which its episodes are said to end.',
            hint=f"columns: {', '.join(layout.columns.values())}",
        )
    return key


def scan(path: Path, f: Table, by: Rule) -> IntArray:
    """The last row of every episode, int64 [E], as far as the rule can tell without the observations."""
    found = [np.zeros(0, np.int64)]
    width = sum(8 * int(np.prod(f[key].shape[1:], dtype=np.int64)) for key in by.keys)
    size = max(1, min(SCAN_ROWS, SCAN_BYTES // max(width, 1)))
    with f.rows(by.keys) as reader:
        for start in range(0, by.layout.rows, size):
            stop = min(start + size, by.layout.rows)
            seen = reader.read(start, min(stop + 1, by.layout.rows))
            found.append(start + np.flatnonzero(by.ends(seen, stop - start, last=stop == by.layout.rows)))
    return np.concatenate(found)


def is_set(seen: Mapping[str, Array], key: str | None, rows: int) -> BoolArray:
    """A flag of any number type, (N,) or (N, 1), as bool [rows]; NaN is not set; False where there is none.

    Raises
    ------
    CorruptArchive
        The column holds something else: it is no flag.
    """
    if key is None:
        return np.zeros(rows, bool)
    value = seen[key][:rows].reshape(-1)
    if value.dtype.kind == "b":
        return value
    is_set = (value != 0) & (value == value)
    strange = is_set & (value != 1)
    if strange.any():
        raise CorruptArchive(
            f"{key} holds {value[strange][0]}; flags are 0 or 1.",
            hint="--map terminated=KEY or truncated=KEY names another",
        )
    return np.asarray(is_set)


def differs(a: Array, b: Array) -> BoolArray:
    """Where two columns differ; NaN equals itself."""
    if a.dtype.kind in "fc":
        return np.asarray((a != b) & ((a == a) | (b == b)))
    return np.asarray(a != b, bool)
