"""Checks of topics and cameras with rates of their own, by their ages ``info/age/NAME``: gaps, and uneven rates.

The age of what comes every P seconds rises step by step to almost P, and falls to less than the time of a step. The
highest ages before such falls are its peaks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.look.checks.findings import Finding, finding
from rlds_cli.look.checks.subject import Subject, plural
from rlds_cli.ted import Field

AGES = "info/age"
_SAMPLED = 1 << 20  # steps, from the first on, that show what is usual
_FEWEST = 20  # peaks
_GAP = 2.0  # times the usual highest age
_UNEVEN = 1.5  # steps by which peaks differ; those of an even rate differ by one


def ages(s: Subject) -> Iterator[Finding]:
    """Find where a topic or a camera did not come for long, and those that come at an uneven rate."""
    for f in s.fields(AGES):
        if f.row_bytes == np.dtype(f.dtype).itemsize:
            yield from _of(s, f)


def _of(s: Subject, f: Field) -> Iterator[Finding]:
    name = f.name.removeprefix(f"{AGES}/")
    sampled = np.asarray(s.at(f.name, s.rows.of_steps(np.arange(min(_SAMPLED, s.ds.num_steps))))).reshape(-1)
    peaks, step = _peaks(sampled)
    if len(peaks) < _FEWEST:
        return
    low, high = np.percentile(peaks, [5, 95])
    limit = _GAP * high + step
    gaps = s.steps_where(f.name, lambda values: values.reshape(-1) > limit)
    if gaps.count:
        steps = plural(gaps.count, "step")
        text = f"{name} is older than {limit:.3g} s at {steps}; usually it is at most {high:.3g} s old"
        yield finding("age-gap", "warning", text, gaps.count, f.name, gaps.seen)
    if high - low > _UNEVEN * step:
        text = f"{name} comes at an uneven rate: it is {low:.3g} to {high:.3g} s old when it comes anew"
        yield finding("uneven-rate", "note", text, 1, f.name)


def _peaks(found: Array) -> tuple[Array, float]:
    """Return the ages before those that are lower, and the usual time of a step, which ages rise by."""
    rises = np.diff(found)
    rising = rises[rises > 0]
    return found[:-1][rises < 0], float(np.median(rising)) if len(rising) else 0.0
