"""Columns for reports: the order of fields, the elements of their rows, own episode columns, images, histograms.

Statistics come from the manifest, histograms of elements from a sample of the steps. These fields are images::

    frames kept encoded     [H, W] [H, W, C]
    uint8 arrays            [H, W] with sides over 16, [H, W, 1 3 4], [1 3 4, H, W]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.bins import in_bins
from rlds_cli.dataset import Rows
from rlds_cli.errors import RldsError
from rlds_cli.ted import Field, Subtasks

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.store import Stats

SAMPLE_STEPS = 1 << 16
_BLOCK = 512  # neighbouring steps that are read together: single rows of a cold file cost a page each
_SAMPLE_BYTES = 64 << 20
MOST_VALUES = 8  # frequent values of a column that are counted
BINS = 16
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*%#"


def number_of(ds: Dataset, episode: int) -> int:
    """Normalise an episode number that may count from the end.

    Raises
    ------
    RldsError
        There is no such episode.
    """
    n = ds.num_episodes
    if not -n <= episode < n:
        raise RldsError(
            f"{ds.id} has no episode {episode:,}.", hint=f"0 to {n - 1:,}, or -1 for the last" if n else "it has none"
        )
    return episode % n


# -- elements of rows


@dataclass(frozen=True, slots=True)
class ElementStats:
    """Statistics of one element of a row over all steps; ``index`` is ``[3]``, or ``[]`` for a scalar.

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
    """Statistics of every element of a row of a numeric field; rows of more than 4,096 elements count as one.

    Means, deviations and extremes come from the manifest. Histograms have equal bins from the least to the greatest
    value of all steps, and count a sample of at most 65,536 steps or 64 MiB.
    """
    names = places(np.shape(stats.mean))
    kinds = (stats.mean, stats.std, stats.min, stats.q01, stats.q99, stats.max)
    columns = [np.ravel(np.asarray(x, np.float64)).tolist() for x in kinds]
    counted = _histograms(sampled_steps(ds, f).reshape(-1, len(names)), columns[2], columns[5], bins) if names else []
    rows = zip(names, *columns, counted, strict=True)
    return tuple(ElementStats(*row) for row in rows)


def places(shape: Sequence[int]) -> list[str]:
    """The indices of the elements of a row as text: ``[0]``, ``[1]``, ...; ``[]`` for a scalar."""
    return [str(list(place)) for place in product(*map(range, shape))]


def sampled_steps(ds: Dataset, f: Field) -> Array:
    """Read values of a field [n, ...] at steps spread evenly over the dataset, in blocks of 512 neighbours."""
    steps = ds.num_steps
    most = max(1, min(SAMPLE_STEPS, _SAMPLE_BYTES // max(1, f.row_bytes)))
    if steps <= most:
        chosen = np.arange(steps)
    else:
        first = np.linspace(0, steps - _BLOCK, max(1, most // _BLOCK)).astype(np.int64)
        chosen = (first[:, None] + np.arange(min(_BLOCK, most))).ravel()
    rows = Rows(ds)
    return rows.at(f.name, rows.of_steps(chosen))


def evenly(n: int, most: int) -> IntArray:
    """At most ``most`` evenly spaced numbers of 0, ..., n-1, the first and the last included."""
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.int64)


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


# -- the user's own episode columns


@dataclass(frozen=True, slots=True)
class OwnColumn:
    """Summary of an episode column: the ``counts`` of its most frequent texts or flags, or the distribution of numbers.

    ``distinct`` is the number of different values; ``missing`` counts the episodes without one.
    """

    name: str
    dtype: str
    missing: int
    distinct: int
    counts: Mapping[str, int]
    distribution: Distribution | None


def summarise_own_columns(ds: Dataset) -> tuple[OwnColumn, ...]:
    """Summarise the user's own episode columns of a whole dataset."""
    return tuple(_own_column(ds, name) for name in ds.store.own_columns)


def _own_column(ds: Dataset, name: str) -> OwnColumn:
    column, episodes = ds.store.own_column(name), ds.num_episodes
    values = [v for v in column.scalars() if v is not None]
    if name == Subtasks.COLUMN and column.dtype == "str":
        return _subtasks(values, episodes)
    counted = Counter(map(str, values)) if column.dtype in ("str", "bool") else Counter[str]()
    spread = None if counted or not values else distribution(ds.episodes[name])
    distinct = len(counted) if counted else len(set(values))
    return OwnColumn(
        name, column.dtype, episodes - len(values), distinct, dict(counted.most_common(MOST_VALUES)), spread
    )


def _subtasks(values: Sequence[object], episodes: int) -> OwnColumn:
    """Summarise intervals of steps: ``counts`` are those of the episodes that have a text."""
    told = [set(Subtasks.of(v, "an episode").texts) for v in values]
    counted = Counter(text for texts in told for text in texts)
    counts = dict(counted.most_common(MOST_VALUES))
    return OwnColumn(Subtasks.COLUMN, "str", episodes - len(values), len(counted), counts, None)


# -- images


def as_bytes(values: Array) -> Array:
    """Convert pixels to uint8: depth values of 12 or 16 bits lose their lowest bits."""
    if values.dtype == np.uint8:
        return values
    return (values >> (4 if values.max(initial=0) < 1 << 12 else 8)).astype(np.uint8)


# -- histograms, and lines of block characters that show them


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
    middle = np.sort(x)[[(x.size - 1) // 2, x.size // 2]].mean()  # np.median imports numpy.ma, in 10 ms
    return Distribution(low, float(middle), float(x.mean()), high, shown)


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
