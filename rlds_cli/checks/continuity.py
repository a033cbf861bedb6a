"""Jumps of the observation inside an episode: ends that nobody flagged, or rows that belong elsewhere.

The rule is that of the D4RL reader's ``jumps``: a component moves by more than 8 times the 99th percentile of its own
steps, which are taken from up to 128 evenly spaced blocks of 1,024 rows. A component that hardly ever moves has no
scale, and does not count. Contacts make one velocity spike, and an angle turns over; a reset or a teleport moves
several components at once. So two or more are a ``jump``, one among others a ``spike``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rlds_cli.checks.findings import MOST_PLACES, Finding, Place
from rlds_cli.checks.subject import Skipped, Subject, plural
from rlds_cli.ted import Array, Field, IntArray

NAME = "continuity"

FACTOR = 8.0
PERCENTILE = 99
_BLOCK_ROWS, _BLOCKS, _SAMPLE_BYTES = 1024, 128, 16 << 20
_MAX_COMPONENTS = 4096
_WIDE = 2048


@dataclass(slots=True)
class _Seen:
    count: int = 0
    places: list[Place] = field(default_factory=list)

    def add(self, s: Subject, rows: IntArray) -> None:
        self.count += len(rows)
        self.places += s.places(rows[: MOST_PLACES - len(self.places)])


def find(s: Subject) -> Iterator[Finding]:
    """Steps of continuous observations that no other steps of the dataset look like."""
    fields = [f for f in s.fields("observation", kinds="f") if f.placement == "both" and _width(f) <= _MAX_COMPONENTS]
    if not fields:
        raise Skipped("no continuous observations")
    for f in fields if s.thorough else ():
        limit = limits(s, f)
        if np.isfinite(limit).any():
            yield from _findings(s, f, *_jumps(s, f, limit))


def _findings(s: Subject, f: Field, jumps: _Seen, spikes: _Seen) -> Iterator[Finding]:
    if jumps.count:
        text = f"{f.name} jumps at {plural(jumps.count, 'step')} inside episodes:"
        text += f" by more than {FACTOR:g} times the {PERCENTILE}th percentile of its steps"
        places, known = tuple(jumps.places), s.known("jump")
        yield Finding(NAME, "jump", "warning", text, jumps.count, f.name, places, known)
    if spikes.count:
        text = f"at {plural(spikes.count, 'step')} one component of {f.name} moves by more than {FACTOR:g} times the"
        text += f" {PERCENTILE}th percentile of its steps"
        yield Finding(NAME, "spike", "note", text, spikes.count, f.name, tuple(spikes.places))


def limits(s: Subject, f: Field) -> Array:
    """The longest step of every component that is no jump, float64 [width]; infinite where it has no scale."""
    at_most = max(1, _SAMPLE_BYTES // (_BLOCK_ROWS * _width(f) * 8))
    blocks = max(1, min(_BLOCKS, at_most, s.ds.num_rows // _BLOCK_ROWS))
    starts = np.linspace(0, max(s.ds.num_rows - _BLOCK_ROWS, 0), blocks).astype(np.int64)
    size = min(_BLOCK_ROWS, s.ds.num_rows)
    rows = (starts[:, None] + np.arange(size)).ravel()
    values = s.at(f.name, rows).reshape(len(starts), size, -1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        steps = np.abs(np.diff(values, axis=1))
    inside = ~_crossing(s, rows).reshape(len(starts), size)[:, :-1]
    known = steps[inside & np.isfinite(steps).all(axis=2)]
    if not len(known):
        return np.full(_width(f), np.inf)
    scale = np.percentile(np.ascontiguousarray(known.T), PERCENTILE, axis=1)
    return np.where(scale > 0, FACTOR * scale, np.inf)


def _crossing(s: Subject, rows: IntArray) -> Array:
    """Which of the rows are followed by one that is not observed in the same episode."""
    episode = np.searchsorted(s.start, rows, "right") - 1
    observed = np.asarray(s.ds.episodes["num_observed"])
    return np.asarray(rows - s.start[episode] >= observed[episode] - 1)


def _jumps(s: Subject, f: Field, limit: Array) -> tuple[_Seen, _Seen]:
    jumps, spikes = _Seen(), _Seen()
    alone = int(np.isfinite(limit).sum()) == 1
    final = s.start + s.length  # rows from which, and at unknown final ones to which, no step leads
    unknown = final[np.asarray(s.ds.episodes["num_observed"]) == s.length] - 1
    bound = limit.astype(np.float32) if np.dtype(f.dtype).itemsize <= 4 else limit
    room = np.empty((0, len(limit)), bound.dtype)
    for a, values in s.blocks(f.name, more=1):
        flat = values.reshape(len(values), -1)
        if len(flat) > len(room) + 1:
            room = np.empty((len(flat) - 1, len(limit)), bound.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.subtract(flat[1:], flat[:-1], out=room[: len(flat) - 1], dtype=bound.dtype)
            np.abs(steps, out=steps)
            for rows in (final, unknown):
                first, end = np.searchsorted(rows, (a, a + len(steps)))
                steps[rows[first:end] - a] = 0
            if (_greatest(steps) <= bound).all():  # not so where it is NaN
                continue
            many = ((steps > bound) & np.isfinite(steps)).sum(axis=1)  # what is not finite is found elsewhere
        jumps.add(s, a + np.flatnonzero(many >= (1 if alone else 2)))
        if not alone:
            spikes.add(s, a + np.flatnonzero(many == 1))
    return jumps, spikes


def _greatest(steps: Array) -> Array:
    """Maximum of every column of [n, width]: of many rows side by side first, since narrow rows are slow to reduce."""
    width = steps.shape[1]
    side = max(1, _WIDE // width)
    whole = len(steps) // side * side
    found = steps[whole:].max(axis=0, initial=0)
    if whole:
        wide = steps[:whole].reshape(-1, side * width).max(axis=0).reshape(side, width)
        found = np.maximum(found, wide.max(axis=0))
    return np.asarray(found)


def _width(f: Field) -> int:
    return max(1, int(np.prod(f.shape, dtype=np.int64)))
