"""Actions that lie at their bounds most of the time, so that they hardly tell how much was wanted.

How often continuous actions lie at their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.checks.findings import Finding, Severity
from rlds_cli.checks.subject import Skipped, Subject
from rlds_cli.dataset import Dataset
from rlds_cli.ted import Array, Field, IntArray, spaces, split_name

NAME = "saturated"
# Shares of steps: a third is usual for squashed policies, such as those of D4RL's MuJoCo tasks.
_NOTE, _WARNING = 0.5, 0.9


def find(s: Subject) -> Iterator[Finding]:
    """Continuous actions with an element at a bound, from a sample of the steps."""
    actions = s.fields("action", kinds="f")
    if not actions:
        raise Skipped("no continuous actions")
    if s.ds.encoding != "memmap":
        raise Skipped("rows are compressed")
    if not s.thorough:
        return
    for f in actions:
        found = saturation(s.ds, f)
        if found is None or found.share < _NOTE:
            continue
        severity: Severity = "warning" if found.share >= _WARNING else "note"
        bounds = "a bound of the action space" if found.of == "space" else "its least or greatest value"
        text = f"in {100 * found.share:.0f} % of {found.steps:,} steps an element of {f.name} is at {bounds}"
        yield Finding(NAME, "saturated", severity, text, round(found.share * found.steps), f.name)


_BLOCKS, _BLOCK = 128, 32
_MARGIN = 1e-3  # of the range: a squashed policy comes near its bounds and never reaches them
_OFTEN = 0.01
Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Saturation:
    """Share of steps with an element within 0.1 % of the range from a bound.

    ``of`` says which bounds: those of the action ``space``, or the least and greatest values (``extremes``), which are
    taken for bounds where both occur in more than 1 % of the steps. ``steps`` is how many were looked at.
    """

    share: float
    of: Literal["space", "extremes"]
    steps: int


def saturation(ds: Dataset, f: Field) -> Saturation | None:
    """Saturation of a field, from at most 4,096 of its steps; None where it has no bounds, or is compressed."""
    if f.kind != "array" or np.dtype(f.dtype).kind != "f" or 0 in (*f.shape, ds.num_steps) or ds.encoding != "memmap":
        return None
    values = np.asarray(ds.store.rows(f.name)[_sample(ds)], np.float64).reshape(-1, int(np.prod(f.shape)))
    bounds = _of_space(ds.manifest.spaces.get("action"), f)
    if bounds is not None:
        return Saturation(_share(values, *bounds), "space", len(values))
    extremes = _of_values(ds, f, values)
    return Saturation(_share(values, *extremes), "extremes", len(values)) if extremes is not None else None


def _sample(ds: Dataset) -> IntArray:
    """Rows of evenly spaced blocks of steps: neighbours, since single rows of a cold file cost a page each."""
    steps, ends = ds.num_steps, np.cumsum(ds.episodes["length"])
    if steps <= _BLOCKS * _BLOCK:
        chosen = np.arange(steps)
    else:
        first = np.linspace(0, steps - _BLOCK, _BLOCKS).astype(np.int64)
        chosen = (first[:, None] + np.arange(_BLOCK)).ravel()
    episode = np.searchsorted(ends, chosen, "right")
    rows: IntArray = ds.episodes["start"][episode] + chosen - (ends - ds.episodes["length"])[episode]
    return rows


def _of_space(space: Mapping[str, Any] | None, f: Field) -> tuple[Float, Float] | None:
    own = spaces.subspace(space, split_name(f.name)[1:]) if space else None
    if not own or own.get("type") != "Box":
        return None
    low, high = (_flat(own.get(side), f.shape) for side in ("low", "high"))
    return (low, high) if low is not None and high is not None and np.isfinite([low, high]).all() else None


def _flat(bound: Any, shape: tuple[int, ...]) -> Float | None:
    try:
        values = np.array(bound, object).astype(np.float64)  # "Infinity" may be among the numbers
        return np.broadcast_to(values, shape or (1,)).reshape(-1)
    except (TypeError, ValueError):
        return None


def _of_values(ds: Dataset, f: Field, values: Array) -> tuple[Float, Float] | None:
    stats = ds.stats[f.name]
    low, high = (np.ravel(np.asarray(x, np.float64)) for x in (stats.min, stats.max))
    if low.size != values.shape[1]:  # pooled
        low, high = (np.broadcast_to(x, values.shape[1]) for x in (low, high))
    at_low, at_high = _at(values, low, high)
    often = (at_low.mean(0) > _OFTEN) & (at_high.mean(0) > _OFTEN) & (high > low)
    if not often.any():
        return None
    return np.where(often, low, -np.inf), np.where(often, high, np.inf)


def _at(values: Array, low: Float, high: Float) -> tuple[Array, Array]:
    with np.errstate(invalid="ignore"):
        margin = np.where(np.isfinite(high - low), _MARGIN * (high - low), 0)
        return values <= low + margin, values >= high - margin


def _share(values: Array, low: Float, high: Float) -> float:
    at_low, at_high = _at(values, low, high)
    return float((at_low | at_high).any(1).mean())
