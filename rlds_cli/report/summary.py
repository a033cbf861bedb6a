"""Summary of a dataset from its manifest and episode table; the only rows it reads are a sample of the actions.

Description, licence and origin come from the archive, or else from the registry.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli import ids, registry, subset, visible
from rlds_cli.checks.findings import Finding, ranked
from rlds_cli.checks.run import manifest_findings, quick
from rlds_cli.dataset import Dataset, environments, open_dataset
from rlds_cli.errors import RldsError
from rlds_cli.home.usage import size_on_disk
from rlds_cli.registry.records import Entry
from rlds_cli.report.columns import FieldSummary, OwnColumn, summarise_fields, summarise_own_columns
from rlds_cli.report.histograms import Distribution, distribution
from rlds_cli.settings import StrPath
from rlds_cli.store.build import FAILURES
from rlds_cli.store.manifest import Counts


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


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of ``rlds inspect ID``.

    ``about`` describes the dataset in words. ``bytes`` is its size on disk; ``archive`` has the source's ``files``,
    ``bytes``, ``sha256`` and ``first`` file. ``returns`` and ``lengths`` are distributions over episodes; ``scores``
    are 100 times the normalised returns, if reference scores are known. ``spaces`` have Minari's JSON form, ``splits``
    counts episodes, ``episode_columns`` are the user's own. ``findings`` come from checks that read no rows, and from
    the conversion; ``notes`` are the manifest's. ``shared`` names per field how its files came from the source dataset:
    by link, reflink or copy.
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


def summarise(
    ref: str | os.PathLike[str] | Dataset, *, elements: bool = False, cache_dir: StrPath | None = None
) -> Summary:
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
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, cache_dir=cache_dir)
    ds = Dataset(ds.store)
    m = ds.manifest
    returns, said = ds.episodes.get("total_reward"), about(ds)
    return Summary(
        id=ds.id,
        path=ds.path,
        fingerprint=ds.fingerprint,
        bytes=size_on_disk(ds.path),
        encoding=m.encoding,
        created=m.created,
        rlds_version=m.rlds_version,
        reader=m.reader,
        episodes_by=m.episodes_by,
        env_id=said.env_id,
        about=said,
        archive=m.archive,
        counts=m.counts,
        fields=summarise_fields(ds, elements=elements),
        returns=None if returns is None else distribution(returns),
        lengths=distribution(ds.episodes["length"]),
        scores=None if returns is None else _normalized(ds, returns),
        spaces=m.spaces,
        splits={name: int(ds.episodes[f"split/{name}"].sum()) for name in ds.episodes.splits},
        episode_columns=summarise_own_columns(ds),
        metadata=m.metadata,
        notes=m.notes,
        findings=quick(ds),
        provenance=m.provenance,
        shared=m.shared,
    )


def _normalized(ds: Dataset, returns: Any) -> Distribution | None:
    try:
        return distribution(100 * ds.normalized_score(returns))
    except RldsError:
        return None  # no reference scores are known


def about(ds: Dataset) -> About:
    """Describe a dataset; a derived one has the description of its source."""
    entry, facts, env = _entry(ds), ds.manifest.facts, ds.manifest.env
    family = next((f for f in registry.families() if entry and f.name == entry.family), None)
    low, high = _reference_scores(ds)
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
        max_episode_steps=environments.time_limit(env) or (entry.max_episode_steps if entry else None),
        ref_min_score=low,
        ref_max_score=high,
        portion=subset.described(ds.manifest.options),
    )


def _entry(ds: Dataset) -> Entry | None:
    try:
        return registry.get(str(ids.parse(ds.id).base))
    except RldsError:
        return None


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


def _reference_scores(ds: Dataset) -> tuple[float | None, float | None]:
    try:
        return environments.reference_scores(ds.manifest)
    except RldsError:
        return None, None


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
    changed = {n for step in ds.manifest.provenance[-1:] for n in step.get("changed", ())}
    about = (f for f in manifest_findings(ds) if f.severity != "note" and f.check != "defects")
    return ranked(f for f in about if f.field is not None and f.field in changed)
