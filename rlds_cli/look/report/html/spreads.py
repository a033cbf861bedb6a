"""Histograms of every element of a row, from one pass over a bounded sample of the steps.

Rows are read a few at a time from datasets of either encoding: memory does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array
from rlds_cli.base.bins import in_bins
from rlds_cli.dataset import Rows
from rlds_cli.look.report.columns import Histogram, places
from rlds_cli.ted import Field

if TYPE_CHECKING:
    from rlds_cli.store import Stats

BINS = 32
MOST_ELEMENTS = 64  # of one field
_MOST_WHOLE = 64  # integer values that get a bar each
_TAIL = 6.0  # tails are cut off if the range is wider than this many times the range from 1 % to 99 %
FloatArray = npt.NDArray[np.float64]
SAMPLE_STEPS = 1 << 16  # most steps of a histogram
SAMPLE_BYTES = 64 << 20  # most bytes of one field, for wide rows
_TILE_BYTES = 1 << 20
_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of one element of a field over all steps, and its histogram over ``Spreads.steps`` of them.

    ``outside`` counts sampled values beyond the range of the histogram, which leaves out long tails; ``nonfinite``
    counts NaN and infinities. ``index`` is empty for scalars, and for images, whose pixels are pooled.
    """

    index: str
    min: float
    mean: float
    max: float
    std: float
    histogram: Histogram
    whole: bool
    outside: int
    nonfinite: int


@dataclass(frozen=True, slots=True)
class Spreads:
    """The elements of a field that are shown; ``hidden`` counts the others. ``sampled``: not all steps were read."""

    field: Field
    steps: int
    sampled: bool
    elements: tuple[Spread, ...]
    hidden: int


def spread(rows: Rows, f: Field) -> Spreads | None:
    """Compute the spread of a numeric field; None for other fields, and if no step has a finite value."""
    stats = rows.dataset.stats.get(f.name)
    if f.kind != "array" or stats is None or 0 in f.shape or np.dtype(f.dtype).kind not in "biuf":
        return None
    ranges = _Ranges.of(f, stats)
    if ranges is None:
        return None
    count = _Count(ranges)
    for block in step_blocks(rows, f):
        count.add(block)
    width = 1 if ranges.pooled else int(np.prod(f.shape, dtype=np.int64))
    return Spreads(f, count.steps, len(rows) > _most_rows(f), tuple(count.result(f)), width - len(ranges.low))


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Statistics and histogram ranges of the elements that are shown [elements]."""

    pooled: bool
    stats: dict[str, FloatArray]
    low: FloatArray
    high: FloatArray
    bins: npt.NDArray[np.int64]
    whole: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, f: Field, stats: Stats) -> _Ranges | None:
        known = {k: np.ravel(np.asarray(getattr(stats, k), np.float64)) for k in ("min", "max", "mean", "std")}
        q01, q99 = (np.ravel(np.asarray(q, np.float64)) for q in (stats.q01, stats.q99))
        pooled = f.is_image or known["min"].size != int(np.prod(f.shape, dtype=np.int64))
        if pooled:
            known, q01, q99 = _pooled(known), np.fmin.reduce(q01, keepdims=True), np.fmax.reduce(q99, keepdims=True)
        known = {k: v[:MOST_ELEMENTS] for k, v in known.items()}
        low, high = known["min"], known["max"]
        if not np.isfinite(low).any():
            return None
        integers = np.dtype(f.dtype).kind in "biu"
        low, high = (np.where(np.isfinite(x), x, 0.0) for x in (low, high))
        inner = q99[:MOST_ELEMENTS] - q01[:MOST_ELEMENTS]
        whole = np.full(low.shape, integers) & (high - low < _MOST_WHOLE)
        tails = (inner > 0) & (high - low > _TAIL * inner) & ~whole
        low = np.where(tails, np.maximum(low, q01[:MOST_ELEMENTS] - inner / 2), low)
        high = np.where(tails, np.minimum(high, q99[:MOST_ELEMENTS] + inner / 2), high)
        bins = np.where(whole, high - low + 1, BINS).astype(np.int64)
        low, high = np.where(whole, low - 0.5, low), np.where(whole, high + 0.5, high)
        return cls(pooled, known, low, high, bins, whole)


def _pooled(stats: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Pool the statistics of all elements."""
    mean, std = stats["mean"], stats["std"]
    if not np.isfinite(mean).any():
        return {k: np.array([np.nan]) for k in stats}
    together = np.sqrt(np.nanmean(std**2) + np.nanvar(mean))
    both = {"mean": np.nanmean(mean), "std": together, "min": np.nanmin(stats["min"]), "max": np.nanmax(stats["max"])}
    return {k: np.array([v]) for k, v in both.items()}


class _Count:
    """Histograms of all elements, filled block by block."""

    def __init__(self, ranges: _Ranges) -> None:
        self._ranges = ranges
        self._most = int(ranges.bins.max())
        self.steps = 0
        shown = len(ranges.low)
        self._counts = np.zeros((shown, self._most), np.int64)
        self._outside, self._nonfinite = np.zeros(shown, np.int64), np.zeros(shown, np.int64)

    def add(self, block: Array) -> None:
        self.steps += len(block)
        r, shown = self._ranges, len(self._ranges.low)
        flat = block.reshape(-1, 1) if r.pooled else block.reshape(len(block), -1)[:, :shown]
        x = flat.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            width = np.where(r.high > r.low, r.high - r.low, 1.0)
            scaled = in_bins(x, r.low, width, r.bins)
            finite = np.isfinite(x)
            inside = finite & (x >= r.low) & (x <= r.high)
        self._nonfinite += (~finite).sum(0)
        self._outside += (finite & ~inside).sum(0)
        place = np.minimum(np.where(inside, scaled, 0).astype(np.int64), r.bins - 1)
        flat_place = (place + np.arange(shown) * self._most)[inside]
        self._counts += np.bincount(flat_place, minlength=self._counts.size).reshape(self._counts.shape)

    def result(self, f: Field) -> list[Spread]:
        r = self._ranges
        names = [""] if r.pooled or not f.shape else places(f.shape)
        found = []
        for i, name in zip(range(len(r.low)), names, strict=False):
            counts = self._counts[i, : r.bins[i]]
            counts = counts if r.high[i] > r.low[i] else counts[:1]
            h = Histogram(tuple(counts.tolist()), float(r.low[i]), float(r.high[i]))
            numbers: dict[str, Any] = {k: float(v[i]) for k, v in r.stats.items()}
            found.append(
                Spread(
                    name, histogram=h, whole=bool(r.whole[i]), outside=int(self._outside[i]),
                    nonfinite=int(self._nonfinite[i]), **numbers,
                )
            )  # fmt: skip
        return found


# -- a sample of the steps


def step_blocks(rows: Rows, f: Field) -> Iterator[Array]:
    """Yield the steps of an array field [n, ...]: all of them, or evenly spaced ranges of neighbours."""
    total, most = len(rows), _most_rows(f)
    if total <= most:
        tile = max(1, _TILE_BYTES // max(1, f.row_bytes))
        stretches = [(a, min(a + tile, total)) for a in range(0, total, tile)]
    else:
        count = min(_BLOCKS if rows.store.slices else _BLOCKS // 8, most)
        size = most // count
        stretches = [(int(a), int(a) + size) for a in np.linspace(0, total - size, count)]
    parts, held = list[Array](), 0
    for a, b in stretches:
        values, no_steps = rows.between(f.name, a, b), rows.last_rows(a, b) - a
        parts.append(np.delete(values, no_steps, axis=0) if len(no_steps) else values)
        held += b - a
        if held * f.row_bytes >= _TILE_BYTES or b == stretches[-1][1]:
            yield np.concatenate(parts) if len(parts) > 1 else parts[0]
            parts, held = [], 0


def _most_rows(f: Field) -> int:
    return max(1, min(SAMPLE_STEPS, SAMPLE_BYTES // max(1, f.row_bytes)))
