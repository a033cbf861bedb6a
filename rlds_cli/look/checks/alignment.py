"""Checks of rows that stand in the wrong place: false ends, rewards of another step, rows that were not filled.

A recorder that divides one trajectory leaves episodes that begin where the one before ended; one that reads an
observation before the reset is done leaves the last one of the episode before. A reward that was computed of each row's
own observation is a step too early: in TED the reward of a step follows from where it leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.look.checks.findings import Finding, finding
from rlds_cli.look.checks.subject import Sightings, Skipped, Subject, plural, whole
from rlds_cli.ted import REWARD, TERMINATED, Field

_FEWEST = 3  # seams that tell something
_BY_CHANCE = 4  # times as often as between episodes that do not follow each other
_NEAR = 1.5  # times the 99th percentile of the steps inside episodes
_SAMPLE = 1 << 16  # rows of which a check looks at no more
_WIDEST = 256  # elements of a state
_COMPARED_BYTES = 1 << 22  # that are compared at a time
_CHANGES = 8  # of a reward, fewer of which tell nothing
_LOST = 0.25  # of the misfits of the other alignment
_IN_A_ROW, _FEW = 3, 0.5  # empty rows that are no coincidence; the share of all from which they are the data


# -- what lies between two episodes


def seams(s: Subject) -> Iterator[Finding]:
    """Find episodes that begin where the one before ended, and those that begin with its last observation."""
    if s.ds.manifest.provenance:
        raise Skipped("episodes need not follow each other as in the archive")
    yield from _flags_in_runs(s)
    fields = [f for f in s.fields("observation") if f.placement == "both" and _width(f) > 1]
    if len(s.length) <= _FEWEST or not fields:
        return
    for f in fields:
        yield from _stale(s, f)
    states = [f for f in fields if np.dtype(f.dtype).kind == "f" and _width(f) <= _WIDEST]
    near = [n for f in states if (n := _near(s, f)) is not None]
    if not near:
        return
    at = _not_by_chance(*(np.logical_and.reduce(masks) for masks in zip(*near, strict=True)))
    if len(at):
        text = f"{plural(len(at), 'episode begins', 'episodes begin')} where the one before ended: its end is a mark in"
        text += " one trajectory, and no reset"
        yield finding("continues", "note", text, len(at), None, whole(at + 1), s.known("continues"))


def _flags_in_runs(s: Subject) -> Iterator[Finding]:
    """Find episodes of one terminated step behind another end: the flag marks a place, where the agent stays."""
    single = (s.length == 1) & (s.rows.end == TERMINATED)
    single[1:] &= s.rows.end[:-1] == TERMINATED
    at = np.flatnonzero(single[1:]) + 1
    if len(at) >= max(_FEWEST, _FEW * len(s.length)) and (s.length > 1).any():
        text = f"{plural(len(at), 'episode has', 'episodes have')} one step, behind another end: steps are flagged"
        text += " terminated in runs, where an agent stays. Import them again with another --episodes-by, as timeouts"
        yield finding("flags-in-runs", "warning", text, len(at), None, whole(at), s.known("flags-in-runs"))


def _stale(s: Subject, f: Field) -> Iterator[Finding]:
    """Compare the first observations with those of the last steps, exactly."""
    at = _not_by_chance(*(_equal(s, f, s.start[k:], s.last[:-k]) for k in (1, 2)))
    if len(at):
        text = f"{plural(len(at), 'episode begins', 'episodes begin')} with the {f.name} of the last step before:"
        text += " it was recorded before the reset"
        known = s.known("stale-observation")
        yield finding("stale-observation", "warning", text, len(at), f.name, whole(at + 1), known)


def _equal(s: Subject, f: Field, rows: IntArray, others: IntArray) -> BoolArray:
    """Compare rows [n] with others [n], a few at a time where they are large."""
    same, at_once = np.zeros(len(rows), bool), max(1, _COMPARED_BYTES // f.row_bytes)
    for a in range(0, len(rows), at_once):
        pairs = s.at(f.name, rows[a : a + at_once]) == s.at(f.name, others[a : a + at_once])
        same[a : a + at_once] = pairs.reshape(len(pairs), -1).all(axis=1)
    return same


def _not_by_chance(following: BoolArray, others: BoolArray) -> IntArray:
    """Return the pairs that match, if those of episodes that do not follow each other match much more rarely."""
    at: IntArray = np.flatnonzero(following)
    often = len(at) >= _FEWEST and following.mean() > _BY_CHANCE * others.mean()
    return at if often else at[:0]


def _near(s: Subject, f: Field) -> tuple[BoolArray, BoolArray] | None:
    """Tell which episodes begin within a step of where the one before ended, and where the one before that did."""
    inside = np.setdiff1d(np.arange(min(len(s.rows), _SAMPLE) - 1), s.rows.final)
    inside = inside[~np.isin(inside, s.last[~s.rows.observed])]
    if not len(inside):
        return None
    with np.errstate(invalid="ignore"):
        steps = np.abs(_flat(s, f, inside + 1) - _flat(s, f, inside))
        usual = np.nanpercentile(steps, 99, axis=0) if np.isfinite(steps).any(axis=0).all() else np.zeros(1)
    moving = usual > 0  # goals, for one, do not move inside episodes
    if moving.sum() < 2:
        return None
    ended = np.where(s.rows.observed, s.rows.final, s.last)
    first, last = _flat(s, f, s.start)[:, moving], _flat(s, f, ended)[:, moving]
    with np.errstate(invalid="ignore"):
        one, two = ((np.abs(first[k:] - last[:-k]) <= _NEAR * usual[moving]).all(axis=1) for k in (1, 2))
    return np.asarray(one), np.asarray(two)


def _width(f: Field) -> int:
    return int(np.prod(f.shape or (1,)))


def _flat(s: Subject, f: Field, rows: IntArray) -> Array:
    return s.at(f.name, rows).reshape(len(rows), -1).astype(np.float64)


# -- rewards that stand a step too early


def early_rewards(s: Subject) -> Iterator[Finding]:
    """Find rewards of two values that tell whether a step begins near a place, rather than where it leads.

    The place is fitted, as a circle or a ball through the midpoints of the steps at which the reward changes (Kåsa
    1976), once for each alignment. Only an agent that enters the place and leaves it again tells the two apart.
    """
    if REWARD not in s.ds.schema or s.ds.schema[REWARD].shape:
        raise Skipped("it has no rewards of one number")
    if REWARD not in s.stats or sum(c > 0 for c in s.stats[REWARD].histogram) != 2:
        return
    steps: IntArray = s.rows.of_steps(np.arange(min(s.ds.num_steps, _SAMPLE)))
    within = steps[steps + 1 < s.rows.final[s.rows.episodes_at(steps)] + s.rows.observed[s.rows.episodes_at(steps)]]
    values = s.at(REWARD, within).astype(np.float64)
    given = values == np.nanmax(values) if len(values) else np.zeros(0, bool)
    for f in s.fields("observation", kinds="f"):
        for width in (2, 3):
            if f.placement != "both" or len(f.shape) != 1 or f.shape[0] < width:
                continue
            own, next_ = (_misfits(within, _flat(s, f, within + k)[:, :width], given) for k in (0, 1))
            if own is None or next_ is None:
                continue
            if next_.wrong >= _CHANGES and own.wrong <= _LOST * next_.wrong:
                text = f"rewards tell where their own steps begin, by {f.name}, and not where they lead: they stand a"
                text += f" step too early ({own.wrong:,} of {own.changes:,} changes do not fit, {next_.wrong:,} the"
                text += " other way round)"
                known = s.known("early-reward")
                yield finding("early-reward", "warning", text, own.changes, REWARD, known=known)
                return


class _Fit(NamedTuple):
    """How many changes of a reward there are, and how many rows a ball leaves on the wrong side."""

    changes: int
    wrong: int


def _misfits(rows: IntArray, at: Array, given: BoolArray) -> _Fit | None:
    """Fit a ball to the positions [n, width] at which a reward is given; None where too little is known."""
    changes = np.flatnonzero((given[1:] != given[:-1]) & (np.diff(rows) == 1))
    if len(changes) < _CHANGES or not np.isfinite(at).all() or given.mean() > _FEW:
        return None
    middle = (at[changes] + at[changes + 1]) / 2
    solved = np.linalg.lstsq(np.c_[2 * middle, np.ones(len(middle))], (middle**2).sum(axis=1), rcond=None)[0]
    distance = np.linalg.norm(at - solved[:-1], axis=1)
    order = np.argsort(distance)
    outside = np.concatenate([[0], np.cumsum(~given[order])])  # rows without a reward that a radius takes in
    missed = given.sum() - np.concatenate([[0], np.cumsum(given[order])])
    return _Fit(len(changes), int((outside + missed).min()))


# -- rows that were never filled


def empty_rows(s: Subject) -> Iterator[Finding]:
    """Find runs of steps in which all observations and actions are 0 at once."""
    fields = [f for f in s.fields("observation", "action", kinds="f") if f.placement != "next"]
    if sum(map(_width, fields)) < _IN_A_ROW or not any(f.name.startswith("observation") for f in fields):
        return
    widest = max(fields, key=_width)
    seen, before, count = Sightings(s), -1, 0
    for a, values in s.rows.blocks(widest.name):
        rows = a + np.flatnonzero(~values.reshape(len(values), -1).any(axis=1))
        rows = rows[~np.isin(rows, s.rows.final)]
        for f in fields:
            rows = rows[~_flat(s, f, rows).any(axis=1)] if len(rows) else rows
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        long = [r for r in runs if len(r) and (len(r) >= _IN_A_ROW or r[0] == before + 1)]
        before = int(rows[-1]) if len(rows) else before
        for r in long:
            seen.add(r)
        count += len(rows)
    if seen.count and count < _FEW * s.ds.num_steps:
        text = f"all observations and actions of {plural(seen.count, 'step')} are 0: they were never filled"
        yield finding("zero-rows", "warning", text, seen.count, None, seen.seen, s.known("zero-rows"))
