"""The summary of a dataset and its fields, for pages.

It comes from its manifest and episode table; the only rows it reads are a sample of the actions.
Description, licence and origin come from the archive, or else from the registry.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import homes, registry
from rlds_cli.base import notebooks, subset, text, visible
from rlds_cli.base.figures import number, shape
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset, open_dataset, reference_scores
from rlds_cli.errors import RldsError
from rlds_cli.look.checks.findings import Finding
from rlds_cli.look.checks.run import quick
from rlds_cli.look.checks.subject import time_limit
from rlds_cli.look.checks.values import Saturation, saturation
from rlds_cli.look.report.columns import (
    Distribution,
    ElementStats,
    Histogram,
    OwnColumn,
    describe_elements,
    distribution,
    sparkline,
    summarise_own_columns,
)
from rlds_cli.look.report.order import rank
from rlds_cli.registry import Entry
from rlds_cli.store.manifest import Counts, Stats
from rlds_cli.ted import FLAGS, REWARD, Field

_DEFAULT = ("observation", "action", "next/observation", REWARD, *FLAGS)


@dataclass(frozen=True, slots=True)
class About:
    """Description of a dataset; what neither its archive nor the registry says is None.

    ``portion`` describes the part of the archive, if the dataset is not all of it. ``max_episode_steps`` is the
    environment's time limit; ``ref_min_score`` and ``ref_max_score`` are the returns that count as 0 and 100.
    """

    title: str | None
    description: str | None
    algorithm: str | None
    author: str | None
    licence: str | None
    paper: str | None
    homepage: str | None
    source: str | None
    env_id: str | None
    max_episode_steps: int | None
    ref_min_score: float | None
    ref_max_score: float | None
    portion: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Result of ``rlds inspect ID``.

    ``about`` describes the dataset in words. ``bytes`` is its size on disk; ``archive`` has the source's ``files``,
    ``bytes``, ``sha256`` and ``first`` file. ``returns`` and ``lengths`` are distributions over episodes; ``scores``
    are 100 times the normalised returns, if reference scores are known. ``spaces`` have Minari's JSON form, ``splits``
    counts episodes, ``episode_columns`` are the user's own. ``findings`` come from checks that read no rows, and from
    the conversion; ``notes`` are the manifest's. ``shared`` names per field how its files came from the source dataset:
    by link, reflink or copy; ``refers_to`` names the versions of other datasets in which rows are stored. For a dataset
    that grows, ``version`` is the number of the commit that is shown, and ``keeps`` says in words what stays, such as
    ``the newest 1,000,000 steps``.
    """

    id: str
    path: Path
    fingerprint: str
    bytes: int
    encoding: str
    created: str
    rlds_version: str
    reader: str
    episodes_by: str
    env_id: str | None
    about: About
    archive: Mapping[str, Any]
    counts: Counts
    fields: tuple[FieldSummary, ...]
    returns: Distribution | None
    lengths: Distribution | None
    scores: Distribution | None
    spaces: Mapping[str, Any]
    splits: Mapping[str, int]
    episode_columns: tuple[OwnColumn, ...]
    metadata: tuple[str, ...]
    notes: tuple[Mapping[str, Any], ...]
    findings: tuple[Finding, ...]
    provenance: tuple[Mapping[str, Any], ...]
    shared: Mapping[str, str]
    version: int = 1
    keeps: str | None = None
    tags: tuple[str, ...] = ()
    refers_to: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{text.plural(self.counts.steps, 'step')}, {text.plural(self.counts.episodes, 'episode')}"
        lines = [_line(f) for f in self.fields]
        lines += [f"{f.severity} {f.code}: {f.text}" for f in self.findings[:8]]
        return text.screen(f"Summary of {self.id}: {size}, {text.size_of(self.bytes)}", lines)

    def _repr_html_(self, title: str = "") -> str:
        """Return the fields with their statistics and histograms as a table, for notebooks."""
        size = f"{text.plural(self.counts.steps, 'step')}, {text.plural(self.counts.episodes, 'episode')}"
        return notebooks.table(
            title or f"Summary of {self.id}: {size}", _HEAD, map(_cells, self.fields), drawn=("histogram",)
        )


_HEAD = ("field", "placement", "dtype", "shape", "size", "mean", "std", "min", "max", "histogram")


def _cells(f: FieldSummary) -> list[str]:
    """Return a field as a row of the table in notebooks."""
    dtype = f.codec or ("text" if f.kind == "text" else f.dtype)
    known = [] if f.mean is None else [number(f.mean), number(f.std), number(f.min, f.dtype), number(f.max, f.dtype)]
    chart = "" if f.histogram is None else sparkline(f.histogram.counts)
    return [f.name, f.placement, dtype, shape(f.shape), text.size_of(f.bytes), *(known or [""] * 4), chart]


def _line(f: FieldSummary) -> str:
    """Return a field in a line of the ``repr`` of a summary."""
    about = f"{f.name}  {f.codec or f.dtype} {shape(f.shape)}"
    if f.mean is None:
        return about
    return f"{about}  mean {number(f.mean)}, std {number(f.std)}, {number(f.min)} to {number(f.max)}"


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """Summary of one field.

    ``bytes`` is its size on disk, in this dataset or in the one that it refers to. ``mean std min max`` are over all
    steps and elements, None unless it is numeric. ``default``: a loader loads it unless told otherwise. ``nonfinite``
    counts NaN and infinities, which the statistics leave out. ``distinct`` is the number of different texts. ``shared``
    names how its files came from another dataset.
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
        bytes=sum(ds.store.files.size_with_others(*d.parts) for d in ds.store.table.directories_of(f.name)),
        default=any(is_below(f.name, name) for name in (*_DEFAULT, *ds.manifest.preprocessed)),
        **numbers,
        nonfinite=stats.nonfinite if stats else 0,
        histogram=Histogram(tuple(stats.histogram), stats.low, stats.high) if stats and counted else None,
        saturation=saturation(ds, f) if is_below(f.name, "action") else None,
        distinct=ds.store.table.num_texts(f.name) if f.kind == "text" else None,
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


def summarise(ref: str | os.PathLike[str] | Dataset, *, elements: bool = False, home: StrPath | None = None) -> Summary:
    """Summarise a dataset; the time does not grow with its steps.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, the directory of a dataset, or an open one (always summarised as a whole).
    elements : bool
        Add the statistics of every element of a row.

    Raises
    ------
    DatasetNotFound, DamagedDataset, NewerFormat
        As of ``open_dataset``.
    """
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    ds = Dataset(ds.store)
    m = ds.manifest
    returns, said = ds.episodes.get("total_reward"), about(ds)
    return Summary(
        id=ds.id,
        path=ds.path,
        fingerprint=ds.fingerprint,
        bytes=ds.store.files.size_of(),
        encoding=m.encoding,
        created=m.created,
        rlds_version=m.rlds_version,
        reader=m.reader_named,
        episodes_by=m.episodes_by,
        env_id=said.env_id,
        about=said,
        archive=m.archive,
        counts=of_episodes(m.counts),
        fields=tuple(_summarise(ds, f, elements) for f in sorted(ds.schema.values(), key=rank)),
        returns=None if returns is None else distribution(returns),
        lengths=distribution(ds.episodes["length"]),
        scores=None if returns is None else _normalized(ds, returns),
        spaces=m.spaces,
        splits={name: int(ds.episodes[f"split/{name}"].sum()) for name in ds.episodes.splits},
        episode_columns=summarise_own_columns(ds),
        metadata=m.metadata,
        notes=m.notes,
        findings=quick(ds, computed=True),  # it shows them
        provenance=m.provenance,
        shared=m.shared,
        version=ds.version,
        tags=tuple(name for name, number in ds.tags.items() if number == ds.version),
        refers_to=tuple(map(str, ds.store.files.refers_to)),
        keeps=ds.store.table.keeps_in_words(),
    )


def of_episodes(c: Counts) -> Counts:
    """Return counts with the rows of episodes alone: others are not content."""
    return replace(c, rows=c.steps + c.episodes)


def _normalized(ds: Dataset, returns: Any) -> Distribution | None:
    try:
        return distribution(100 * ds.normalized_score(returns))
    except RldsError:
        return None  # no reference scores are known


def about(ds: Dataset) -> About:
    """Describe a dataset; a derived one has the description of its source."""
    entry, facts, env = homes.entry_of(ds.id), ds.manifest.facts, ds.manifest.env
    low: float | None = None
    high: float | None = None
    with suppress(RldsError):
        low, high = reference_scores(ds.manifest)
    family = next(iter(registry.families(entry.family)), None) if entry else None
    return About(
        title=family.title if family else None,
        description=_text(facts, "description"),
        algorithm=_text(facts, "algorithm") or (entry.algorithm if entry else None),
        author=_text(facts, "author") or (entry.author if entry else None),
        licence=_text(facts, "licence") or (entry.licence if entry else None),
        paper=entry.paper if entry else None,
        homepage=entry.homepage if entry else None,
        source=_source(ds, entry),
        env_id=env.get("id") or _text(facts, "env_id") or (entry.env_id if entry else None),
        max_episode_steps=time_limit(env) or (entry.max_episode_steps if entry else None),
        ref_min_score=low,
        ref_max_score=high,
        portion=subset.described(ds.manifest.options),
    )


def _text(facts: Mapping[str, Any], key: str) -> str | None:
    value = facts.get(key)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value) if value else None


def _source(ds: Dataset, entry: Entry | None) -> str | None:
    first = ds.manifest.archive.get("first") or {}
    if first.get("url"):
        return visible.shown(str(first["url"]))
    if entry is None:
        return None
    return entry.files[0].urls[0] if entry.files else next(iter(entry.tree), None)
