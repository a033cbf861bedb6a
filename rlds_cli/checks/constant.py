"""Fields, or elements of them, that never change: sensors that were off, rewards that are never given."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import Finding
from rlds_cli.checks.subject import Subject
from rlds_cli.ted import FLAGS, REWARD, Field

NAME = "constant"

_USED = ("observation", "action")
_NAMED = 4


def find(s: Subject) -> Iterator[Finding]:
    """Whole observations, actions and rewards of zero are warnings; elements, other rewards and infos notes."""
    others = []
    for f in s.fields():
        still = _still(s, f)
        if still is None or f.name in FLAGS or not still.any():
            continue
        if f.name.split("/")[0] in _USED:
            yield _used(s, f, still)
        elif f.name == REWARD and still.all():
            yield _reward(s)
        elif still.all():
            others.append(f.name)
    if others:
        text = f"{', '.join(others[:_NAMED])}{f' and {len(others) - _NAMED} more' if len(others) > _NAMED else ''}"
        yield Finding(
            NAME, "constant-info", "note", f"{text} never change{'s' if len(others) == 1 else ''}", len(others)
        )


def _still(s: Subject, f: Field) -> np.ndarray | None:
    """Which elements of a row have one value in all steps; None where that says nothing."""
    stats = s.ds.stats.get(f.name)
    if stats is None or stats.count < 2 or 0 in f.shape:
        return None
    low, high = (np.ravel(np.asarray(x, np.float64)) for x in (stats.min, stats.max))
    return np.asarray((low == high) & (stats.nonfinite == 0))


def _value(s: Subject, name: str) -> float | None:
    """The one value that all elements of a constant field have."""
    low = np.ravel(np.asarray(s.ds.stats[name].min, np.float64))
    return float(low[0]) if (low == low[0]).all() else None


def _used(s: Subject, f: Field, still: np.ndarray) -> Finding:
    if still.all():
        found = _value(s, f.name)
        value = "" if found is None else f" ({found:g})"
        return Finding(NAME, "constant", "warning", f"{f.name} is the same{value} in every step", 1, f.name)
    at = np.flatnonzero(still)
    named = ", ".join(str(i) for i in at[:_NAMED]) + (", ..." if len(at) > _NAMED else "")
    text = f"{len(at):,} of {len(still):,} elements of {f.name} never change ({named})"
    return Finding(NAME, "constant-element", "note", text, len(at), f.name)


def _reward(s: Subject) -> Finding:
    value = _value(s, REWARD)
    if value == 0:
        return Finding(NAME, "no-reward", "warning", "no step is rewarded: next/reward is 0 everywhere", 1, REWARD)
    same = "the same" if value is None else f"{value:g}"
    return Finding(NAME, "constant-reward", "note", f"next/reward is {same} in every step", 1, REWARD)
