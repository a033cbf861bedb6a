"""The fields of a dataset, summed up from the manifest's statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.keeping.usage import size_on_disk
from rlds_cli.ordering import natural
from rlds_cli.report.elements import ElementStats, describe_elements
from rlds_cli.report.elements import places as places
from rlds_cli.report.histograms import Histogram
from rlds_cli.report.saturation import Saturation, saturation
from rlds_cli.store import arrays
from rlds_cli.store.manifest import Stats
from rlds_cli.store.videos import DIRECTORY
from rlds_cli.ted import FLAGS, REWARD, VIDEO, Field

_DEFAULT = ("observation", "action", "next/observation", REWARD, *FLAGS)
_ORDER = ("observation", "action", "next/observation", REWARD, *FLAGS, "next", "", "info", "next/info")


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """One field. ``bytes`` on disk; ``mean std min max`` are over all steps and elements, None where not numeric.

    ``default`` says whether a loader gives it unasked. ``nonfinite`` counts NaN and infinities, which the statistics
    leave out. ``distinct`` is the number of different texts. ``shared`` says how the rows came from another dataset.
    """

    name: str
    placement: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    codec: str | None
    bytes: int
    default: bool
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    nonfinite: int = 0
    histogram: Histogram | None = None
    saturation: Saturation | None = None
    distinct: int | None = None
    shared: str | None = None
    elements: tuple[ElementStats, ...] | None = None


def summarise_fields(ds: Dataset, *, elements: bool = False) -> tuple[FieldSummary, ...]:
    """All fields: observations, actions, outcomes, the rest, infos."""
    return tuple(_summarise(ds, f, elements) for f in sorted(ds.schema.values(), key=rank))


def rank(f: Field) -> tuple[Any, ...]:
    """Sort key of fields on a page."""
    known = [i for i, name in enumerate(_ORDER) if name and _below(f.name, name)]
    return max(known, default=_ORDER.index("")), natural(f.name)


def _below(name: str, root: str) -> bool:
    return name == root or name.startswith(f"{root}/")


def _summarise(ds: Dataset, f: Field, elements: bool) -> FieldSummary:
    stats = ds.stats.get(f.name)
    numbers = _over_elements(stats) if stats and stats.count else {}
    counted = stats is not None and len(stats.histogram) > 0
    return FieldSummary(
        name=f.name,
        placement=f.placement,
        dtype=f.dtype,
        shape=f.shape,
        kind=f.kind,
        codec=f.codec,
        bytes=_bytes(ds, f),
        default=any(_below(f.name, name) for name in _DEFAULT),
        **numbers,
        nonfinite=stats.nonfinite if stats else 0,
        histogram=Histogram(tuple(stats.histogram), stats.low, stats.high) if stats and counted else None,
        saturation=saturation(ds, f) if _below(f.name, "action") else None,
        distinct=_distinct(ds, f),
        shared=ds.manifest.shared.get(f.name),
        elements=describe_elements(ds, f, stats) if stats and stats.count and elements and f.shape else None,
    )


def _over_elements(stats: Stats) -> dict[str, Any]:
    mean, std, low, high = (np.ravel(np.asarray(x, np.float64)) for x in (stats.mean, stats.std, stats.min, stats.max))
    known = np.isfinite(mean)
    if not known.any():
        return {}
    mean, std = mean[known], std[known]
    spread = math.sqrt(float((std**2).mean() + mean.var()))
    return {
        "mean": float(mean.mean()),
        "std": spread,
        "min": float(np.fmin.reduce(low)),
        "max": float(np.fmax.reduce(high)),
    }


def _bytes(ds: Dataset, f: Field) -> int:
    apart = "text" if f.kind == "text" else DIRECTORY if f.codec == VIDEO else None
    beside = size_on_disk(ds.path / apart / ds.store.directory(f.name).relative_to(ds.path)) if apart else 0
    return size_on_disk(ds.store.directory(f.name)) + beside


def _distinct(ds: Dataset, f: Field) -> int | None:
    if f.kind != "text":
        return None
    texts = ds.path / "text" / ds.store.directory(f.name).relative_to(ds.path)
    return arrays.open_document(texts / "offsets")[0][0] - 1
