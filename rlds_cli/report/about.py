"""What a dataset is, where it comes from and under which licence: what its archive says, else the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlds_cli import addresses, environments, ids, portions, registry
from rlds_cli.dataset import Dataset
from rlds_cli.entries import Entry
from rlds_cli.errors import RldsError


@dataclass(frozen=True, slots=True)
class About:
    """One dataset in words; None where nobody says.

    ``portion`` says what of its archive it is, where that is not all. ``max_episode_steps`` is the environment's time
    limit; ``ref_min_score`` and ``ref_max_score`` are the returns that count as 0 and 100.
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


def about(ds: Dataset) -> About:
    """Describe a dataset; of a derived one, what it was made of."""
    entry, facts, env = _entry(ds), ds.manifest.facts, ds.manifest.env
    family = next((f for f in registry.families() if entry and f.name == entry.family), None)
    low, high = _scores(ds)
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
        portion=portions.described(ds.manifest.options),
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
        return addresses.shown(str(first["url"]))
    if entry is None:
        return None
    return entry.files[0].urls[0] if entry.files else next(iter(entry.tree), None)


def _scores(ds: Dataset) -> tuple[float | None, float | None]:
    try:
        return environments.reference_scores(ds.manifest)
    except RldsError:
        return None, None
