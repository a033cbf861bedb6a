"""NaN and infinities. The statistics say whether there are any; the rows are read only to say where."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.checks.findings import MOST_PLACES, Finding, Place, Severity
from rlds_cli.checks.subject import Subject, plural
from rlds_cli.ted import Array, BoolArray, Field, IntArray

NAME = "finite"

_USED = ("observation", "action", "next")  # what a learner computes with
_AT_ONCE = 1 << 14


def find(s: Subject) -> Iterator[Finding]:
    """Values of fields that a learner uses are errors, those of infos warnings."""
    for f in s.fields(kinds="fc"):
        stats = s.ds.stats.get(f.name)
        count = stats.nonfinite if stats else 0
        severity: Severity = "error" if f.name.split("/")[0] in _USED else "warning"
        if count:
            places = s.steps_where(f.name, _not_finite).places if s.thorough else ()
            text = f"{plural(count, 'value', 'is', 'are')} NaN or infinite in {f.name}"
            yield Finding(NAME, "not-finite", severity, text, count, f.name, places)
        if s.thorough and f.placement == "both":
            yield from _final(s, f, severity)


def _final(s: Subject, f: Field, severity: Severity) -> Iterator[Finding]:
    """Final observations, which are no steps and so not in the statistics."""
    known = np.flatnonzero(np.asarray(s.ds.episodes["num_observed"]) > s.length)
    bad = [np.zeros(0, np.int64)]
    for a in range(0, len(known), _AT_ONCE):
        some: IntArray = known[a : a + _AT_ONCE]
        bad.append(some[_not_finite(s.at(f.name, s.start[some] + s.length[some]))])
    episodes = np.concatenate(bad)
    if len(episodes):
        places = tuple(Place(int(e), int(s.length[e])) for e in episodes[:MOST_PLACES])
        text = f"{f.name} is NaN or infinite in the final row of {plural(len(episodes), 'episode')}"
        yield Finding(NAME, "final-not-finite", severity, text, len(episodes), f.name, places)


def _not_finite(values: Array) -> BoolArray:
    finite = np.isfinite(values.reshape(len(values), -1))
    if finite.all():
        return np.zeros(len(values), bool)
    return np.asarray(~finite.all(axis=1))
