"""Which episodes the table lists and which the viewer holds, where all of them would be too many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rlds_cli.checks.findings import Finding
from rlds_cli.dataset import Dataset
from rlds_cli.ted import IntArray

MOST_LISTED = 10_000
MOST_SHOWN = 32
_MOST_OF_FINDINGS = 12  # of the episodes shown


def shown(ds: Dataset, findings: Iterable[Finding]) -> dict[int, tuple[str, ...]]:
    """The episodes of the viewer, in order, and why each was chosen.

    All where they are few; else those that findings name, best and worst, longest and shortest, the median, and evenly
    spaced ones.
    """
    reasons: dict[int, list[str]] = {}
    for number, why in _candidates(ds, findings):
        if number in reasons:
            if why and why not in reasons[number]:
                reasons[number].append(why)
        elif len(reasons) < MOST_SHOWN:
            reasons[number] = [why] if why else []
    return {k: tuple(reasons[k]) for k in sorted(reasons)}


def _candidates(ds: Dataset, findings: Iterable[Finding]) -> Iterator[tuple[int, str]]:
    if not ds.num_episodes:
        return
    lengths, returns = np.asarray(ds.episodes["length"]), ds.episodes.get("total_reward")
    if returns is not None and np.isfinite(returns).any():
        returns = np.where(np.isfinite(returns), returns, np.nan)
        middle = np.abs(returns - np.nanmedian(returns))
        yield int(np.nanargmax(returns)), "highest return"
        yield int(np.nanargmin(returns)), "lowest return"
        yield int(np.nanargmin(middle)), "median return"
    yield int(lengths.argmax()), "longest"
    yield int(lengths.argmin()), "shortest"
    named = dict.fromkeys(place.episode for f in findings for place in f.places if place.episode < ds.num_episodes)
    yield from ((k, "finding") for k in list(named)[:_MOST_OF_FINDINGS])
    yield from ((int(k), "") for k in evenly(ds.num_episodes, MOST_SHOWN))


def listed(ds: Dataset, needed: Iterable[int]) -> IntArray:
    """The episodes of the table, ascending: all, or evenly spaced ones with those of ``needed``."""
    if ds.num_episodes <= MOST_LISTED:
        return np.arange(ds.num_episodes)
    spaced = evenly(ds.num_episodes, MOST_LISTED - MOST_SHOWN)
    return np.union1d(spaced, np.array(sorted(needed), np.int64))


def evenly(n: int, most: int) -> IntArray:
    """At most ``most`` of 0, ..., n-1, the first and the last among them."""
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.int64)
