"""The summary of one episode, for pages."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, Rows, open_dataset
from rlds_cli.errors import RldsError
from rlds_cli.look.report.columns import (
    number_of,
    places,
    resample,
)
from rlds_cli.look.report.order import rank
from rlds_cli.ted import Field, Scalar

POINTS = 64
MOST_DIMENSIONS = 32
MOST_TEXTS = 8


@dataclass(frozen=True, slots=True)
class Dimension:
    """One element of a field over the episode; ``trace`` has means over at most 64 equal ranges, None for NaN."""

    index: str
    first: float
    last: float
    min: float
    mean: float
    max: float
    trace: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class FieldTrace:
    """One field over the episode, with ``rows`` values: T, or T+1 if the final one is recorded.

    ``hidden`` counts dimensions that are left out: of an image all of them. ``texts`` are the first different ones.
    ``bytes`` is the size of images, encoded or not.
    """

    name: str
    placement: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    rows: int
    dimensions: tuple[Dimension, ...] = ()
    hidden: int = 0
    texts: tuple[str, ...] = ()
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EpisodeReport:
    """Result of ``rlds inspect --episode``.

    ``start`` is the first row of the episode, ``of`` the number of episodes. ``source`` has the file, group and first
    row in the archive, as far as they are known; ``columns`` has the values of the user's own episode columns.
    """

    id: str
    version: int
    episode: int
    of: int
    start: int
    length: int
    end: str
    num_observed: int
    num_transitions: int
    total_reward: float | None
    score: float | None
    num_done: int | None
    seed: int | None
    options: Mapping[str, Any] | None
    source: Mapping[str, Any]
    splits: tuple[str, ...]
    columns: Mapping[str, Scalar]
    fields: tuple[FieldTrace, ...]


def describe_episode(
    ref: str | os.PathLike[str] | Dataset, episode: int, *, elements: bool = False, home: StrPath | None = None
) -> EpisodeReport:
    """Describe one episode; only its own rows are read.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, a directory, or an open dataset; in a selection, ``episode`` counts the selected episodes.
    episode : int
        The number of the episode; negative numbers count from the end.
    elements : bool
        Include all dimensions of wide fields, not only the first 32, and of images.

    Raises
    ------
    RldsError
        There is no such episode.
    """
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    number, rows = number_of(ds, episode), Rows(ds)
    e = ds.episodes
    total = float(e["total_reward"][number]) if "total_reward" in e else None
    return EpisodeReport(
        id=ds.id,
        version=ds.version,
        episode=number,
        of=ds.num_episodes,
        start=int(e["start"][number]),
        length=int(e["length"][number]),
        end=str(e["end"][number]),
        num_observed=int(e["num_observed"][number]),
        num_transitions=int(e["num_transitions"][number]),
        total_reward=total,
        score=None if total is None else _score(ds, total),
        num_done=int(e["num_done"][number]) if "num_done" in e else None,
        seed=int(e["seed"][number]) if "seed" in e and bool(e["has_seed"][number]) else None,
        options=json.loads(e["options"][number] or "null"),
        source=_episode_source(ds, number),
        splits=tuple(name for name in e.splits if e[f"split/{name}"][number]),
        columns={name: _own_value(ds, name, number) for name in ds.store.own_columns}
        | {name: _measured(ds, name, number) for name in ds.episodes.measures},
        fields=tuple(_field(rows, f, number, elements) for f in sorted(ds.schema.values(), key=rank)),
    )


def _own_value(ds: Dataset, name: str, number: int) -> Scalar:
    return ds.store.own_column(name).scalar(int(ds.episodes.index[number]))


def _measured(ds: Dataset, name: str, number: int) -> float | None:
    value = float(ds.episodes[name][number])
    return value if math.isfinite(value) else None


def _score(ds: Dataset, total: float) -> float | None:
    try:
        return float(100 * ds.normalized_score(total))
    except RldsError:
        return None


def _episode_source(ds: Dataset, number: int) -> dict[str, Any]:
    index, group = int(ds.episodes["source"][number]), ds.episodes["group"][number]
    found: dict[str, Any] = {"file": None, "group": group or None, "row": int(ds.episodes["row"][number])}
    if index < len(ds.store.sources):
        found["file"] = ds.store.sources[index].get("file")
    return found


def _field(rows: Rows, f: Field, number: int, elements: bool) -> FieldTrace:
    start, count = int(rows.start[number]), int(rows.count(f)[number])
    traced = FieldTrace(f.name, f.placement, f.dtype, f.shape, f.kind, count)
    if f.kind == "frames":
        return replace(traced, bytes=int(rows.sizes(f.name, np.arange(start, start + count)).sum()))
    values = rows.between(f.name, start, start + count)
    if f.kind == "text":
        return replace(traced, texts=_texts(rows.dataset, f, values))
    if f.is_image and not elements:
        return replace(traced, hidden=math.prod(f.shape), bytes=values.nbytes)
    flat = values.reshape(count, -1)
    shown = flat.shape[1] if elements else min(flat.shape[1], MOST_DIMENSIONS)
    names = places(f.shape)
    dimensions = tuple(_dimension(names[i], flat[:, i]) for i in range(shown)) if count else ()
    return replace(traced, dimensions=dimensions, hidden=flat.shape[1] - shown)


def _texts(ds: Dataset, f: Field, codes: Array) -> tuple[str, ...]:
    first = np.sort(np.unique(codes, return_index=True)[1])
    found = ds.store.texts(f.name, codes[first])
    return tuple(text for text in found if text is not None)[:MOST_TEXTS]


def _dimension(index: str, values: Array) -> Dimension:
    x = values.astype(np.float64)
    finite = x[np.isfinite(x)]
    low, mean, high = (finite.min(), finite.mean(), finite.max()) if finite.size else (np.nan,) * 3
    return Dimension(index, float(x[0]), float(x[-1]), float(low), float(mean), float(high), resample(x, POINTS))
