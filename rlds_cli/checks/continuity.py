"""Check for jumps of the observation inside an episode: unflagged ends, or rows that belong elsewhere.

The scale of a component is that of the D4RL reader's ``jumps``: the 99th percentile of its own steps, taken from up to
128 evenly spaced blocks of 1,024 rows. Merged short episodes would hide in it, so steps that stand alone, four times as
long as the steps before and after them in a quarter of the components, are left out of it first. A component that
hardly ever moves has no scale, and does not count.

A reset moves many components once. A step is a ``jump`` where it stands alone and

* two components or more move by over 8 times their scale, or
* over half of the components stand alone, and a quarter of them, two at least, move by over 4 times their scale.

One component is enough for positions (``qpos``) of one component, and where the observation has no other. An angle
that turns over and a quaternion that changes its sign do not count. Contacts make spikes of velocities, in one
component or over several steps: a step of over 8 times the scale that is no jump is a ``spike``.

Measured on the sample datasets of the tests and on rollouts of 14 simulated environments: none has a false ``jump``.
A rule that does not look at the steps before and after finds 24 in 1,400 steps of a falling humanoid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rlds_cli.checks.findings import MOST_PLACES, Finding, Place, finding
from rlds_cli.checks.subject import Skipped, Subject, plural
from rlds_cli.ted import Array, BoolArray, Field, IntArray

FACTOR = 8.0
PERCENTILE = 99
_SEVERAL = 4.0  # times the scale, where many components jump at once
_ALONE = 4.0  # times the steps before and after
_SHARE = 0.25
_NEAR = 0.125  # of the longest step that is no jump: how exactly an angle turns over
_TURNS = (np.pi, 2 * np.pi, 180.0, 360.0)
_BLOCK_ROWS, _BLOCKS, _SAMPLE_BYTES = 1024, 128, 16 << 20
_MAX_COMPONENTS = 4096
_WIDE = 2048


@dataclass(slots=True)
class _CountedPlaces:
    count: int = 0
    places: list[Place] = field(default_factory=list)

    def add(self, s: Subject, rows: IntArray) -> None:
        self.count += len(rows)
        self.places += s.places(rows[: MOST_PLACES - len(self.places)])


def jumps(s: Subject) -> Iterator[Finding]:
    """Find steps of continuous observations that are unlike all other steps of the dataset."""
    fields = [f for f in s.fields(kinds="f") if _is_state(f) and _width(f) <= _MAX_COMPONENTS]
    if not fields:
        raise Skipped("no continuous observations")
    for f in fields if s.thorough else ():
        limit = limits(s, f)
        if np.isfinite(limit).any():
            yield from _findings(s, f, *_jumps_and_spikes(s, f, limit))


def _is_state(f: Field) -> bool:
    """Tell observations and states of simulators from other fields; a goal is none, as it may change at any step."""
    root, last = f.name.split("/")[0], f.name.split("/")[-1]
    if f.placement == "next" or ("goal" in last and "achieved" not in last):
        return False
    return root in ("observation", "state") or last == "qpos"


def _findings(s: Subject, f: Field, jumps: _CountedPlaces, spikes: _CountedPlaces) -> Iterator[Finding]:
    rule = f"{FACTOR:g} times the {PERCENTILE}th percentile of its steps"
    if jumps.count:
        text = (
            f"{f.name} jumps at {plural(jumps.count, 'step')} inside episodes, as at a reset: where trajectories were"
        )
        text += " merged, import them again with another --episodes-by"
        places, known = tuple(jumps.places), s.known("jump")
        yield finding("jump", "warning", text, jumps.count, f.name, places, known)
    if spikes.count:
        text = f"at {plural(spikes.count, 'step')} a component of {f.name} moves by more than {rule}"
        yield finding("spike", "note", text, spikes.count, f.name, tuple(spikes.places))


def limits(s: Subject, f: Field) -> Array:
    """The longest step of every component that is not a jump, float64 [width]; infinite where it has no scale."""
    at_most = max(1, _SAMPLE_BYTES // (_BLOCK_ROWS * _width(f) * 8))
    blocks = max(1, min(_BLOCKS, at_most, s.ds.num_rows // _BLOCK_ROWS))
    starts = np.linspace(0, max(s.ds.num_rows - _BLOCK_ROWS, 0), blocks).astype(np.int64)
    size = min(_BLOCK_ROWS, s.ds.num_rows)
    rows = (starts[:, None] + np.arange(size)).ravel()
    values = s.at(f.name, rows).reshape(len(starts), size, -1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        steps = np.abs(np.diff(values, axis=1))
    inside = ~_crossing(s, f, rows).reshape(len(starts), size)[:, :-1]
    steps[~inside] = np.nan
    known = steps[np.isfinite(steps).all(axis=2) & ~_stand_alone(steps)]
    if not len(known):
        return np.full(_width(f), np.inf)
    scale = np.percentile(np.ascontiguousarray(known.T), PERCENTILE, axis=1)
    return np.where(scale > 0, FACTOR * scale, np.inf)


def _stand_alone(steps: Array) -> BoolArray:
    """Mask of steps [blocks, n, width] that are longer than those around them in a share of the moving components."""
    out = np.zeros(steps.shape[:2], bool)
    with np.errstate(invalid="ignore"):
        moving = int((steps > 0).any(axis=(0, 1)).sum())
        for steps_of_block, alone in zip(steps, out, strict=True):
            alone[:] = _alone(steps_of_block).sum(axis=1) >= max(min(moving, 2), _SHARE * moving, 1)
    return out


def _alone(steps: Array) -> BoolArray:
    """Mask of components of steps [n, width] that move much further than in the steps before and after.

    NaN stands for an unknown step.
    """
    none = np.full((1, steps.shape[1]), np.nan, steps.dtype)
    before, after = np.concatenate([none, steps[:-1]]), np.concatenate([steps[1:], none])
    with np.errstate(invalid="ignore"):
        return np.asarray(steps > _ALONE * np.fmax(before, after))


def _crossing(s: Subject, f: Field, rows: IntArray) -> BoolArray:
    """Mask of the rows after which no row is observed in the same episode."""
    episode = np.searchsorted(s.start, rows, "right") - 1
    return np.asarray(rows - s.start[episode] >= s.observed(f)[episode] - 1)


def _jumps_and_spikes(s: Subject, f: Field, limit: Array) -> tuple[_CountedPlaces, _CountedPlaces]:
    jumps, spikes = _CountedPlaces(), _CountedPlaces()
    only = len(limit) == 1 and (f.name.endswith("/qpos") or sum(_width(x) for x in s.fields("observation")) == 1)
    final = s.start + s.length  # rows from which, and at unknown final ones to which, no step leads
    unknown = final[s.observed(f) == s.length] - 1
    bound = limit.astype(np.float32) if np.dtype(f.dtype).itemsize <= 4 else limit
    room = np.empty((0, len(limit)), bound.dtype)
    for a, values in s.blocks(f.name, more=3):  # a step, with those before and after it
        flat = values.reshape(len(values), -1)
        if len(flat) > len(room) + 1:
            room = np.empty((len(flat) - 1, len(limit)), bound.dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.subtract(flat[1:], flat[:-1], out=room[: len(flat) - 1], dtype=bound.dtype)
            np.abs(steps, out=steps)
            outside = np.concatenate([_within(rows, a, len(steps)) for rows in (final, unknown)])
            steps[outside] = 0
            if (_greatest(steps) <= bound * (_SEVERAL / FACTOR)).all():  # not so where it is NaN
                continue
            steps[outside] = np.nan
            first = 0 if a == 0 else 1  # the block before has looked at it
            end = len(steps) if a + len(flat) == s.ds.num_rows else len(steps) - 1
            far = (steps > bound) & np.isfinite(steps)  # the check "finite" finds the others
            at = np.flatnonzero(far.any(axis=1) | ((steps > bound * (_SEVERAL / FACTOR)).sum(axis=1) >= 2))
            at = at[(at >= first) & (at < end)]
            is_jump = _is_jump(s, f, flat, steps, at, bound, only=only)
        jumps.add(s, a + at[is_jump])
        spikes.add(s, a + at[~is_jump & far[at].any(axis=1)])
    return jumps, spikes


def _within(rows: IntArray, a: int, count: int) -> IntArray:
    first, end = np.searchsorted(rows, (a, a + count))
    return np.asarray(rows[first:end] - a)


def _is_jump(s: Subject, f: Field, flat: Array, steps: Array, at: IntArray, bound: Array, *, only: bool) -> BoolArray:
    """Mask of the steps ``at`` of a block that are jumps by the rule of this module."""
    around = np.fmax(
        np.where((at > 0)[:, None], steps[at - 1], np.nan),
        np.where((at < len(steps) - 1)[:, None], steps[np.minimum(at + 1, len(steps) - 1)], np.nan),
    )
    counted = np.isfinite(bound) & np.isfinite(steps[at]) & ~_turned(s, f, flat[at], flat[at + 1], bound)
    alone = counted & (steps[at] > _ALONE * around)
    far = (alone & (steps[at] > bound)).sum(axis=1)
    several = (alone & (steps[at] > bound * (_SEVERAL / FACTOR))).sum(axis=1)
    used = counted.sum(axis=1)
    many = (several >= np.maximum(2, _SHARE * used)) & (alone.sum(axis=1) > used / 2)
    return np.asarray((far >= (1 if only else 2)) | many)


def _turned(s: Subject, f: Field, before: Array, after: Array, bound: Array) -> BoolArray:
    """Mask of components of steps [n, width] that only wrap around: an angle plus a turn, a negated quaternion."""
    before, after = before.astype(np.float64), after.astype(np.float64)
    step, near = np.abs(after - before), _NEAR * bound
    stats = s.ds.stats.get(f.name)
    span = np.ravel(np.asarray(stats.max, np.float64) - stats.min) if stats is not None else np.zeros(len(bound))
    turned = (np.abs(before + after) <= near) | (np.abs(step - span) <= near)
    for turn in _TURNS:
        turned |= np.abs(step - turn) <= near
    return np.asarray(turned)


def _greatest(steps: Array) -> Array:
    """Maximum of every column of [n, width].

    Rows are first reduced side by side, 2,048 numbers wide, since NumPy reduces narrow rows slowly.
    """
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
