"""The episode columns of the user's own, summed up: which values there are, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rlds_cli.dataset import Dataset
from rlds_cli.report.histograms import Distribution, distribution

MOST_VALUES = 8


@dataclass(frozen=True, slots=True)
class OwnColumn:
    """One column: ``counts`` of its most frequent texts or flags among ``distinct``, or the spread of its numbers.

    ``missing`` episodes have no value.
    """

    name: str
    dtype: str
    missing: int
    distinct: int
    counts: Mapping[str, int]
    distribution: Distribution | None


def summarise_own_columns(ds: Dataset) -> tuple[OwnColumn, ...]:
    """Sum up the columns of a whole dataset."""
    return tuple(_summed_up(ds, name) for name in ds.store.own_columns)


def _summed_up(ds: Dataset, name: str) -> OwnColumn:
    column = ds.store.own_column(name)
    values = [v for v in column.scalars() if v is not None]
    counted = Counter(map(str, values)) if column.dtype in ("str", "bool") else Counter[str]()
    spread = None if counted or not values else distribution(ds.episodes[name])
    distinct = len(counted) if counted else len(set(values))
    return OwnColumn(
        name, column.dtype, int(column.missing.sum()), distinct, dict(counted.most_common(MOST_VALUES)), spread
    )
