"""Statistics of every element of a row, with histograms of steps spread evenly over the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.report.histograms import BINS, Histogram
from rlds_cli.store.manifest import Stats
from rlds_cli.store.ranges import read_range
from rlds_cli.store.statistics import in_bins
from rlds_cli.ted import Array, Field, IntArray

SAMPLE_STEPS = 1 << 16
_BLOCK = 512  # steps read side by side: single rows of a cold file cost a page each
_SAMPLE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ElementStats:
    """Statistics of one element of a row over all steps; ``index`` is its place there, ``[3]``, ``[]`` of a scalar.

    ``q01``, ``q99`` and ``histogram`` are of a sample of at most 65,536 steps.
    """

    index: str
    mean: float
    std: float
    min: float
    q01: float
    q99: float
    max: float
    histogram: Histogram | None = None


def describe_elements(ds: Dataset, f: Field, stats: Stats, *, bins: int = BINS) -> tuple[ElementStats, ...]:
    """Every element of a row of a numeric field; one for all of them where rows have more than 4,096.

    Means, deviations and extremes come from the manifest. Histograms are of equal bins from the least to the greatest
    value of all steps, counted over a sample: at most 65,536 steps or 64 MiB of them.
    """
    names = places(np.shape(stats.mean))
    kinds = (stats.mean, stats.std, stats.min, stats.q01, stats.q99, stats.max)
    columns = [np.ravel(np.asarray(x, np.float64)).tolist() for x in kinds]
    counted = _histograms(sampled_steps(ds, f).reshape(-1, len(names)), columns[2], columns[5], bins) if names else []
    rows = zip(names, *columns, counted, strict=True)
    return tuple(ElementStats(*row) for row in rows)


def places(shape: Sequence[int]) -> list[str]:
    """The elements of a row by their place: ``[0]``, ``[1]``, ...; ``[]`` for a scalar."""
    return [str(list(place)) for place in product(*map(range, shape))]


def sampled_steps(ds: Dataset, f: Field) -> Array:
    """Values of a field at steps spread evenly over the dataset, in blocks of 512 neighbours; [n, ...]."""
    steps = ds.num_steps
    most = max(1, min(SAMPLE_STEPS, _SAMPLE_BYTES // max(1, f.row_bytes)))
    if steps <= most:
        chosen = np.arange(steps)
    else:
        first = np.linspace(0, steps - _BLOCK, max(1, most // _BLOCK)).astype(np.int64)
        chosen = (first[:, None] + np.arange(min(_BLOCK, most))).ravel()
    ends = np.cumsum(ds.episodes["length"])
    episode = np.searchsorted(ends, chosen, "right")
    rows: IntArray = ds.episodes["start"][episode] + chosen - (ends - ds.episodes["length"])[episode]
    if ds.encoding == "memmap":
        return ds.store.rows(f.name)[rows]
    directory = ds.store.directory(f.name)
    cuts = np.flatnonzero(np.diff(rows) > _BLOCK) + 1  # reads of neighbours, as far as a gap is not worth one
    parts = [read_range(directory, int(part[0]), int(part[-1]) + 1)[part - part[0]] for part in np.split(rows, cuts)]
    return np.concatenate(parts) if len(rows) else read_range(directory, 0, 0)


def _histograms(values: Array, low: Sequence[float], high: Sequence[float], bins: int) -> list[Histogram | None]:
    found: list[Histogram | None] = []
    for k in range(len(low)):
        column = values[:, k].astype(np.float64)
        column = column[np.isfinite(column)]
        span = high[k] - low[k]
        if not len(column) or not np.isfinite(span):
            found.append(None)
        elif span <= 0:
            found.append(Histogram((len(column),), low[k], high[k]))
        else:
            scaled = np.clip(in_bins(column, low[k], span, bins), 0, bins - 1).astype(np.int64)
            found.append(Histogram(tuple(np.bincount(scaled, minlength=bins).tolist()), low[k], high[k]))
    return found
