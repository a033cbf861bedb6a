"""Summaries for pages: of a dataset and its fields, of the result of a preprocess run, of one episode.

That of a dataset comes from its manifest and episode table; the only rows it reads are a sample of the actions.
Description, licence and origin come from the archive, or else from the registry.
"""

from __future__ import annotations

import json
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
from rlds_cli.base.array_types import Array
from rlds_cli.base.figures import number, shape
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset, Rows, open_dataset, reference_scores
from rlds_cli.errors import RldsError
from rlds_cli.look.checks.findings import Finding, ranked
from rlds_cli.look.checks.run import manifest_findings, quick
from rlds_cli.look.checks.subject import time_limit
from rlds_cli.look.checks.values import Saturation, saturation
from rlds_cli.look.report.columns import (
    Distribution,
    ElementStats,
    Histogram,
    OwnColumn,
    describe_elements,
    distribution,
    number_of,
    places,
    resample,
    sparkline,
    summarise_own_columns,
)
from rlds_cli.look.report.order import rank
from rlds_cli.registry import Entry
from rlds_cli.store import FAILURES
from rlds_cli.store.manifest import Counts, Stats
from rlds_cli.ted import FLAGS, REWARD, Field, Scalar

_DEFAULT = ("observation", "action", "next/observation", REWARD, *FLAGS)
POINTS = 64
MOST_DIMENSIONS = 32
MOST_TEXTS = 8


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
    family = next((f for f in registry.families() if f.name == entry.family), None) if entry else None
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


# -- a derived dataset


@dataclass(frozen=True, slots=True)
class Outcome:
    """A preprocessed dataset. Its ``bytes`` on disk are either ``added`` or ``shared`` with its source.

    ``copied`` are fields that could not be shared. ``notes`` tell the user about such things as omitted episodes.
    ``findings`` are errors and warnings of the quick checks about changed fields, such as NaN. ``errors`` is the file
    that lists the episodes on which the function failed.
    """

    id: str
    path: Path
    fingerprint: str
    episodes: int
    steps: int
    bytes: int
    added: int
    shared: int
    copied: tuple[str, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    errors: Path | None = None


def summarise_derived(ds: Dataset) -> Outcome:
    """Measure the files of a dataset that `rlds_cli.preprocess.run` made, and check it."""
    m = ds.manifest
    errors = ds.path / FAILURES
    whole = size_on_disk(ds.path)
    linked = [f for f in m.fields if m.shared.get(f.name) in ("link", "reflink")]
    shared = sum(size_on_disk(ds.path / above / f.path) for f in linked for above in ("", "digests", "text"))
    return Outcome(
        id=ds.id,
        path=ds.path,
        fingerprint=ds.fingerprint,
        episodes=m.counts.episodes,
        steps=m.counts.steps,
        bytes=whole,
        added=whole - shared,
        shared=shared,
        copied=tuple(sorted(n for n, how in m.shared.items() if how == "copy")),
        notes=tuple(f"{n['text']} ({n['count']:,})" for n in m.notes),
        findings=_findings_of_changed(ds),
        errors=errors if errors.exists() else None,
    )


def _findings_of_changed(ds: Dataset) -> tuple[Finding, ...]:
    """Return findings about new and changed fields; checks of the source report the others."""
    changed = {n for step in ds.manifest.provenance[-1:] for n in step["changed"]}
    about = (f for f in manifest_findings(ds) if f.severity != "note" and f.check != "defects")
    return ranked(f for f in about if f.field is not None and f.field in changed)


# -- an episode


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
