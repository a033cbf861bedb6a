"""Actions outside the action space that the archive describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_cli.checks.findings import Finding
from rlds_cli.checks.subject import Skipped, Subject, plural
from rlds_cli.ted import Array, BoolArray, Field, spaces, split_name

NAME = "bounds"

_ROUNDING = 1e-6  # a bound kept in another precision than the actions


def find(s: Subject) -> Iterator[Finding]:
    """Steps whose action an environment would clip or refuse."""
    space = s.ds.manifest.spaces.get("action")
    bounded = [(f, b) for f in s.fields("action") if (b := bounds(space, f)) is not None]
    if not bounded:
        raise Skipped("no bounds of the actions are known")
    for f, (low, high) in bounded:
        stats = s.ds.stats.get(f.name)
        if stats is None or not stats.count:
            continue
        least, greatest = (np.ravel(np.asarray(x, np.float64)) for x in (stats.min, stats.max))
        out = (least < low) | (greatest > high)
        if not out.any():
            continue
        k = int(np.argmax(np.fmax(low - least, greatest - high)))
        worst = least[k] if low[k] - least[k] > greatest[k] - high[k] else greatest[k]
        span = f"{worst:g} in [{low[k]:g}, {high[k]:g}]"
        if not s.thorough:
            yield Finding(NAME, "out-of-bounds", "warning", f"{f.name} leaves the action space: {span}", 1, f.name)
            continue
        seen = s.steps_where(f.name, _Outside(low, high))
        text = f"{plural(seen.count, 'step', 'has', 'have')} an {f.name} outside the action space, e.g. {span}"
        yield Finding(NAME, "out-of-bounds", "warning", text, seen.count, f.name, seen.places)


class _Outside:
    def __init__(self, low: Array, high: Array) -> None:
        self._low, self._high = low, high

    def __call__(self, values: Array) -> BoolArray:
        flat = values.reshape(len(values), -1)
        if (flat.min(axis=0) >= self._low).all() and (flat.max(axis=0) <= self._high).all():
            return np.zeros(len(values), bool)
        return np.asarray(((flat < self._low) | (flat > self._high)).any(axis=1))


def bounds(space: Mapping[str, Any] | None, f: Field) -> tuple[Array, Array] | None:
    """Least and greatest value of every element of a row, rounding allowed for; None where nothing bounds them."""
    own = spaces.subspace(space, split_name(f.name)[1:]) if space else None
    try:
        low, high = _limits(own or {})
        low, high = (np.broadcast_to(np.array(x, object).astype(np.float64), f.shape).ravel() for x in (low, high))
    except (TypeError, ValueError, OverflowError):
        return None
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return None
    slack = [_ROUNDING * np.maximum(1, np.abs(np.where(np.isfinite(x), x, 0))) for x in (low, high)]
    return low - slack[0], high + slack[1]


def _limits(space: Mapping[str, Any]) -> tuple[Any, Any]:
    start = space.get("start") or 0
    match space.get("type"):
        case "Box":
            return space.get("low"), space.get("high")
        case "Discrete":
            return start, start + int(space.get("n", 0)) - 1
        case "MultiDiscrete":
            return start, np.asarray(space.get("nvec"), np.int64) + np.asarray(start) - 1
        case "MultiBinary":
            return 0, 1
    return None, None
