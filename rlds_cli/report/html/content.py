"""The content of a page, gathered from a dataset in bounded memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from rlds_cli.checks.findings import CheckReport
from rlds_cli.checks.run import check
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.progress import Progress
from rlds_cli.report.columns import evenly, rank
from rlds_cli.report.histograms import Distribution, distribution
from rlds_cli.report.html import listing
from rlds_cli.report.html.listing import Listing, list_episodes
from rlds_cli.report.html.spreads import DatasetRows, Spreads, spread
from rlds_cli.report.html.viewing import Viewing, view
from rlds_cli.report.summary import Summary, summarise
from rlds_cli.settings import StrPath
from rlds_cli.ted import FLAGS

BINS = 40
MOST_DOTS = 600
_MOST_HISTOGRAMS = 360  # for all fields together


@dataclass(frozen=True, slots=True)
class Dot:
    """An episode in the chart of returns against lengths."""

    number: int
    length: int
    total: float
    end: str


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of the sections of a page; ``dots`` are at most 600 evenly spaced episodes."""

    summary: Summary
    check: CheckReport
    returns: Distribution | None
    lengths: Distribution | None
    dots: tuple[Dot, ...]
    spreads: tuple[Spreads, ...]
    uncounted: tuple[str, ...]
    listing: Listing
    viewing: Viewing


def gather(
    ref: str | os.PathLike[str] | Dataset, *, cache_dir: StrPath | None = None, progress: Progress | bool | None = None
) -> PageContent:
    """Gather the content of a page: the checks read every row once, the rest is sampled."""
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, cache_dir=cache_dir)
    ds = Dataset(ds.store)
    summary, checked, rows = summarise(ds), check(ds, progress=progress), DatasetRows(ds)
    fields = [f for f in sorted(ds.schema.values(), key=rank) if f.name not in FLAGS]
    spreads, room, uncounted = list[Spreads](), _MOST_HISTOGRAMS, list[str]()
    for f in fields:
        found = spread(ds, rows, f) if room > 0 else None
        if found is None:
            uncounted.append(f.name)
            continue
        spreads.append(found)
        room -= len(found.elements)
    chosen = listing.viewed(ds, checked.findings)
    returns = ds.episodes.get("total_reward")
    return PageContent(
        summary=summary,
        check=checked,
        returns=None if returns is None else distribution(returns, bins=BINS),
        lengths=distribution(ds.episodes["length"], bins=BINS),
        dots=_dots(ds),
        spreads=tuple(spreads),
        uncounted=tuple(uncounted),
        listing=list_episodes(ds, checked.findings, chosen),
        viewing=view(ds, rows, chosen, checked.findings),
    )


def _dots(ds: Dataset) -> tuple[Dot, ...]:
    e = ds.episodes
    if "total_reward" not in e:
        return ()
    k = evenly(ds.num_episodes, MOST_DOTS)
    columns = (e["length"][k].tolist(), e["total_reward"][k].tolist(), e["end"][k].tolist())
    found = zip(k.tolist(), *columns, strict=True)
    return tuple(Dot(number, length, total, end) for number, length, total, end in found if np.isfinite(total))
