"""Successes that are rewarded and terminated at a single step while their episode goes on.

Where a goal is reached and the agent stays, rewards and terminations come in runs; a single one, as in D4RL's
antmaze-umaze-diverse, makes the steps after it look like failures.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import MOST_PLACES, Finding, Place
from rlds_cli.checks.subject import Skipped, Subject, plural
from rlds_cli.ted import FLAGS, REWARD, Array, IntArray

NAME = "rewards"
TERMINATED = FLAGS[0]

_SPARSE = 0.05


def find(s: Subject) -> Iterator[Finding]:
    """Rewards of two values, of which the higher one never comes twice in a row, and is terminated inside episodes."""
    if not s.fields(REWARD):
        raise Skipped("it has no rewards")
    if REWARD not in s.ds.stats or s.ds.schema[REWARD].shape:
        return  # a vector, or several by name: what is a success is not known
    stats = s.ds.stats[REWARD]
    low, high = (float(np.ravel(x)[0]) if np.size(x) else np.nan for x in (stats.min, stats.max))
    if (
        not s.thorough
        or not s.ds.manifest.counts.terminated_inside
        or not low < high
        or sum(c > 0 for c in stats.histogram) > 2
    ):
        return
    found = _alone(s, low, high)
    if found is not None:
        count, places = found
        text = f"{plural(count, 'step')} rewarded and terminated alone, never two in a row; their episode goes on"
        known = s.known("reward-isolated")
        yield Finding(NAME, "reward-isolated", "warning", text, count, REWARD, places, known)


def _alone(s: Subject, low: float, high: float) -> tuple[int, tuple[Place, ...]] | None:
    """Rewarded steps inside episodes, where all rewards are sparse and none follows another; else None."""
    count, before, places = 0, -2, list[Place]()
    final = s.start + s.length
    for a, values in s.blocks(REWARD):
        rewarded = values == high
        if not (rewarded | (values == low) | _final_rows(final, a, len(values))).all():
            return None
        rows: IntArray = a + np.flatnonzero(rewarded & ~_final_rows(final, a, len(values)))
        if len(rows):
            if rows[0] == before + 1 or (np.diff(rows) == 1).any():
                return None
            before = int(rows[-1])
        inside = rows[~_final_rows(final - 1, a, len(values))[rows - a]]
        inside = inside[np.asarray(s.at(TERMINATED, inside), bool)]
        count += len(inside)
        places += s.places(inside[: MOST_PLACES - len(places)])
        if count > _SPARSE * s.ds.num_steps:
            return None
    return (count, tuple(places)) if count else None


def _final_rows(final: IntArray, start: int, rows: int) -> Array:
    found = np.zeros(rows, bool)
    first, end = np.searchsorted(final, (start, start + rows))
    found[final[first:end] - start] = True
    return found
