"""How the values of every element of a row are spread, from one pass over a bounded sample of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.dataset import Dataset
from rlds_cli.report.columns import places
from rlds_cli.report.histograms import Histogram
from rlds_cli.report.page.reading import Rows
from rlds_cli.report.pictured import is_image
from rlds_cli.store.manifest import Stats
from rlds_cli.store.statistics import in_bins
from rlds_cli.ted import Array, Field

BINS = 32
MOST_ELEMENTS = 64  # of one field
_MOST_WHOLE = 64  # different integers that get a bar each
_TAIL = 6.0  # how many times wider than from 1 % to 99 % the extremes must lie for the tails to be cut off

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """One element of a field. ``min`` to ``std`` are over all steps; the histogram is of ``Spreads.steps`` of them.

    ``outside`` of these lie below or above the histogram, whose range leaves out long tails; ``nonfinite`` are NaN or
    infinite. ``index`` is empty for scalars and for images, whose pixels are taken together.
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
    """All elements of a field that are shown; ``hidden`` are not. ``sampled`` says whether ``steps`` are not all."""

    field: Field
    steps: int
    sampled: bool
    elements: tuple[Spread, ...]
    hidden: int


def spread(ds: Dataset, rows: Rows, f: Field) -> Spreads | None:
    """The spread of a numeric field; None for others, and where no step has a finite value."""
    stats = ds.stats.get(f.name)
    if f.kind != "array" or stats is None or 0 in f.shape or np.dtype(f.dtype).kind not in "biuf":
        return None
    ranges = _Ranges.of(f, stats)
    if ranges is None:
        return None
    count = _Count(ranges)
    for block in rows.blocks(f):
        count.add(block)
    width = 1 if ranges.pooled else int(np.prod(f.shape, dtype=np.int64))
    return Spreads(f, count.steps, rows.sampled(f), tuple(count.result(f)), width - len(ranges.low))


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Of every element shown [elements]: its statistics, and where its histogram starts and ends."""

    pooled: bool
    stats: dict[str, Float]
    low: Float
    high: Float
    bins: npt.NDArray[np.int64]
    whole: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, f: Field, stats: Stats) -> _Ranges | None:
        known = {k: np.ravel(np.asarray(getattr(stats, k), np.float64)) for k in ("min", "max", "mean", "std")}
        q01, q99 = (np.ravel(np.asarray(q, np.float64)) for q in (stats.q01, stats.q99))
        pooled = is_image(f) or known["min"].size != int(np.prod(f.shape, dtype=np.int64))
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


def _pooled(stats: dict[str, Float]) -> dict[str, Float]:
    """Statistics over all elements together."""
    mean, std = stats["mean"], stats["std"]
    if not np.isfinite(mean).any():
        return {k: np.array([np.nan]) for k in stats}
    together = np.sqrt(np.nanmean(std**2) + np.nanvar(mean))
    both = {"mean": np.nanmean(mean), "std": together, "min": np.nanmin(stats["min"]), "max": np.nanmax(stats["max"])}
    return {k: np.array([v]) for k, v in both.items()}


class _Count:
    """Histograms of all elements, block by block."""

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
