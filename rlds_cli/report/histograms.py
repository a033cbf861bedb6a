"""Histograms, and lines of block characters that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

BINS = 16
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*%#"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of equal bins over [low, high]; the last bin includes ``high``."""

    counts: tuple[int, ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Summary of a list of numbers, such as one per episode."""

    min: float
    median: float
    mean: float
    max: float
    histogram: Histogram


def distribution(values: npt.ArrayLike, *, bins: int = BINS) -> Distribution | None:
    """Summarise the finite ``values`` [n]; None if there are none."""
    x = np.asarray(values, np.float64)
    x = x[np.isfinite(x)]
    if x.size == 0:
        return None
    low, high = float(x.min()), float(x.max())
    counts = np.histogram(x, bins, (low, high))[0] if high > low else np.array([x.size])
    shown = Histogram(tuple(counts.tolist()), low, high)
    return Distribution(low, float(np.median(x)), float(x.mean()), high, shown)


def sparkline(counts: Sequence[int], *, width: int | None = None, ascii_only: bool = False) -> str:
    """Draw one character per bin, as high as its count, and a blank for 0. ``width`` joins bins to fit."""
    joined = _join(counts, width)
    top = max(joined, default=0)
    marks = _ASCII if ascii_only else _BLOCKS
    return "".join(marks[-(-c * (len(marks) - 1) // top)] if top else " " for c in joined)


def _join(counts: Sequence[int], width: int | None) -> list[int]:
    if width is None or len(counts) <= width:
        return list(counts)
    edges = [len(counts) * i // width for i in range(width + 1)]
    return [sum(counts[a:b]) for a, b in pairwise(edges)]


def trace(values: Sequence[float | None], *, ascii_only: bool = False) -> str:
    """Draw one character per value, as high as the value between the least and the greatest; a blank for NaN."""
    known = [v for v in values if v is not None and np.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    marks = (_ASCII if ascii_only else _BLOCKS)[1:]
    return "".join(" " if v is None or not np.isfinite(v) else marks[_level(v, low, high, len(marks))] for v in values)


def _level(value: float, low: float, high: float, levels: int) -> int:
    return min(levels - 1, int((value - low) / (high - low) * levels)) if high > low else 0


def resample(values: npt.NDArray[np.float64], width: int) -> tuple[float | None, ...]:
    """Means over ``width`` equal ranges of ``values`` [T], or the values themselves if there are fewer."""
    if len(values) > width:
        edges = np.arange(width + 1) * len(values) // width
        values = np.array([_mean(values[a:b]) for a, b in pairwise(edges)])
    return tuple(float(v) if np.isfinite(v) else None for v in values)


def _mean(values: npt.NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
