"""Checks of values: NaN, columns that never change, actions at or outside their bounds, jumps.

Statistics in the manifest say whether there is something to find; rows are read to say where.

Jumps are unflagged ends, or rows that belong elsewhere. The scale of a component is that of the D4RL reader's
``jumps``: the 99th percentile of its own steps, taken from up to 128 evenly spaced blocks of 1,024 rows. Merged short
episodes would hide in it, so steps that stand alone, four times as long as the steps before and after them in a quarter
of the components, are left out of it first. A component that hardly ever moves has no scale, and does not count.

A reset moves many components once. A step is a ``jump`` where it stands alone and

* two components or more move by over 8 times their scale, or
* over half of the components stand alone, and a quarter of them, two at least, move by over 4 times their scale.

One component is enough for positions (``qpos``) of one component, and where the observation has no other. An angle
that turns over and a quaternion that changes its sign do not count. Contacts make spikes of velocities, in one
component or over several steps: a step of over 8 times the scale that is not a jump is a ``spike``.

Measured on the sample datasets of the tests and on rollouts of 14 simulated environments: none has a false ``jump``.
A rule that does not look at the steps before and after finds 24 in 1,400 steps of a falling humanoid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import split_name
from rlds_cli.dataset import Rows
from rlds_cli.look.checks.findings import Finding, Seen, Severity, finding
from rlds_cli.look.checks.subject import Sightings, Skipped, Subject, at_steps, plural
from rlds_cli.ted import FLAGS, REWARD, Field, Space

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

_LEARNED = ("observation", "action", "next")  # the fields that a learner computes with
_EPISODES_AT_ONCE = 1 << 14
_INPUTS = ("observation", "action")
_NAMED = 4  # fields or elements that a finding lists; the others are counted
# Shares of steps: a third is usual for squashed policies, such as those of D4RL's MuJoCo tasks.
_NOTE, _WARNING = 0.5, 0.9
_BLOCKS, _BLOCK = 128, 32  # 4,096 steps are looked at
_MARGIN = 1e-3  # of the range: a squashed policy comes near its bounds and never reaches them
_OFTEN = 0.01  # share of steps at an extreme value, from which it is taken for a bound
FloatArray = npt.NDArray[np.float64]
_ROUNDING = 1e-6  # a bound may be stored in another precision than the actions
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


# -- NaN and infinities


def not_finite(s: Subject) -> Iterator[Finding]:
    """Find NaN and infinities: errors in fields that a learner uses, warnings in infos."""
    for f in s.fields(kinds="fc"):
        stats = s.stats.get(f.name)
        count = stats.nonfinite if stats else 0
        severity: Severity = "error" if f.name.split("/")[0] in _LEARNED else "warning"
        if count:
            seen = s.steps_where(f.name, _rows_not_finite).seen if s.thorough else Seen()
            text = f"{plural(count, 'value', 'is', 'are')} NaN or infinite in {f.name}"
            yield finding("not-finite", severity, text, count, f.name, seen)
        if not s.thorough or f.placement != "both":
            continue
        known = np.flatnonzero(s.rows.observed)  # final observations are not steps, and not in the statistics
        bad = [np.zeros(0, np.int64)]
        for a in range(0, len(known), _EPISODES_AT_ONCE):
            some: IntArray = known[a : a + _EPISODES_AT_ONCE]
            bad.append(some[_rows_not_finite(s.at(f.name, s.rows.final[some]))])
        if len(at := np.concatenate(bad)):
            text = f"{f.name} is NaN or infinite in the final row of {plural(len(at), 'episode')}"
            yield finding("final-not-finite", severity, text, len(at), f.name, at_steps(at, s.length[at]))


def _rows_not_finite(values: Array) -> BoolArray:
    finite = np.isfinite(values.reshape(len(values), -1))
    if finite.all():
        return np.zeros(len(values), bool)
    return np.asarray(~finite.all(axis=1))


# -- fields, or elements of them, that never change: sensors that were off, rewards that are never given


def constant(s: Subject) -> Iterator[Finding]:
    """Find constant fields.

    Whole observations and actions, and rewards that are always 0, are warnings. Single elements, other constant
    rewards and infos are notes.
    """
    others = []
    for f in s.fields():
        stats = s.stats.get(f.name)
        if stats is None or stats.count < 2 or 0 in f.shape or f.name in FLAGS:
            continue
        low, high = np.ravel(np.asarray(stats.min, np.float64)), np.ravel(np.asarray(stats.max, np.float64))
        same = np.asarray((low == high) & (stats.nonfinite == 0))  # elements of a row that have one value in all steps
        if np.dtype(f.dtype).kind in "iu":  # statistics are float64, to which larger integers are rounded
            same &= np.abs(low) < 2**53
        if not same.any():
            continue
        if f.name.split("/")[0] in _INPUTS:
            yield _constant_input(s, f, same)
        elif f.name == REWARD and same.all():
            yield _constant_reward(s)
        elif same.all():
            others.append(f.name)
    if others:
        text = f"{', '.join(others[:_NAMED])}{f' and {len(others) - _NAMED} more' if len(others) > _NAMED else ''}"
        yield finding("constant-info", "note", f"{text} never change{'s' if len(others) == 1 else ''}", len(others))


def _only_value(s: Subject, name: str) -> float | None:
    """The value of a constant field; None where its elements have different ones."""
    low = np.ravel(np.asarray(s.stats[name].min, np.float64))
    return float(low[0]) if (low == low[0]).all() else None


def _constant_input(s: Subject, f: Field, same: np.ndarray) -> Finding:
    if same.all():
        found = _only_value(s, f.name)
        value = "" if found is None else f" ({found:g})"
        return finding("constant", "warning", f"{f.name} is the same{value} in every step", 1, f.name)
    at = np.flatnonzero(same)
    named = ", ".join(str(i) for i in at[:_NAMED]) + (", ..." if len(at) > _NAMED else "")
    text = f"{len(at):,} of {len(same):,} elements of {f.name} never change ({named})"
    return finding("constant-element", "note", text, len(at), f.name)


def _constant_reward(s: Subject) -> Finding:
    value = _only_value(s, REWARD)
    if value == 0:
        return finding("no-reward", "warning", "no step is rewarded: next/reward is 0 everywhere", 1, REWARD)
    same = "the same" if value is None else f"{value:g}"
    return finding("constant-reward", "note", f"next/reward is {same} in every step", 1, REWARD)


# -- actions at their bounds: they hardly tell how much the policy wanted


def saturated(s: Subject) -> Iterator[Finding]:
    """Find continuous actions with an element at a bound in most steps of a sample."""
    actions = s.fields("action", kinds="f")
    if not actions:
        raise Skipped("no continuous actions")
    if not s.ds.store.slices:
        raise Skipped("rows are compressed")
    for f in actions:
        found = saturation(s.ds, f)
        if found is None or found.share < _NOTE:
            continue
        severity: Severity = "warning" if found.share >= _WARNING else "note"
        bounds = "a bound of the action space" if found.of == "space" else "its least or greatest value"
        text = f"in {100 * found.share:.0f} % of {found.steps:,} steps an element of {f.name} is at {bounds}"
        yield finding("saturated", severity, text, round(found.share * found.steps), f.name)


@dataclass(frozen=True, slots=True)
class Saturation:
    """Share of steps with an element within 0.1 % of the range from a bound.

    ``of`` names the bounds: those of the action ``space``, or the least and greatest values (``extremes``), which are
    taken for bounds where both occur in more than 1 % of the steps. ``steps`` is the number of steps in the sample.
    """

    share: float
    of: Literal["space", "extremes"]
    steps: int


def saturation(ds: Dataset, f: Field) -> Saturation | None:
    """Measure the saturation of a field over at most 4,096 of its steps; None without bounds, or when compressed."""
    if f.kind != "array" or np.dtype(f.dtype).kind != "f" or 0 in (*f.shape, ds.num_steps) or not ds.store.slices:
        return None
    rows, steps = Rows(ds), np.arange(ds.num_steps)
    if ds.num_steps > _BLOCKS * _BLOCK:  # evenly spaced blocks, since single rows of a cold file cost a page each
        first = np.linspace(0, ds.num_steps - _BLOCK, _BLOCKS).astype(np.int64)
        steps = (first[:, None] + np.arange(_BLOCK)).ravel()
    values = np.asarray(rows.at(f.name, rows.of_steps(steps)), np.float64)
    values = values.reshape(-1, int(np.prod(f.shape)))
    bounds = _space_bounds(ds.manifest.spaces.get("action"), f)
    if bounds is not None:
        return Saturation(_share_at_bounds(values, *bounds), "space", len(values))
    extremes = _observed_bounds(ds, f, values)
    return Saturation(_share_at_bounds(values, *extremes), "extremes", len(values)) if extremes is not None else None


def _space_bounds(space: Mapping[str, Any] | None, f: Field) -> tuple[FloatArray, FloatArray] | None:
    own = Space(space).at(split_name(f.name)[1:]).form
    if not own or own.get("type") != "Box":
        return None
    low, high = (_flat_bound(own.get(side), f.shape) for side in ("low", "high"))
    return (low, high) if low is not None and high is not None and np.isfinite([low, high]).all() else None


def _flat_bound(bound: Any, shape: tuple[int, ...]) -> FloatArray | None:
    try:
        values = np.array(bound, object).astype(np.float64)  # "Infinity" may be among the numbers
        return np.broadcast_to(values, shape or (1,)).reshape(-1)
    except (TypeError, ValueError):
        return None


def _observed_bounds(ds: Dataset, f: Field, values: Array) -> tuple[FloatArray, FloatArray] | None:
    stats = ds.stats[f.name]
    low, high = (np.ravel(np.asarray(x, np.float64)) for x in (stats.min, stats.max))
    if low.size != values.shape[1]:  # pooled
        low, high = (np.broadcast_to(x, values.shape[1]) for x in (low, high))
    at_low, at_high = _at_bounds(values, low, high)
    often = (at_low.mean(0) > _OFTEN) & (at_high.mean(0) > _OFTEN) & (high > low)
    if not often.any():
        return None
    return np.where(often, low, -np.inf), np.where(often, high, np.inf)


def _at_bounds(values: Array, low: FloatArray, high: FloatArray) -> tuple[Array, Array]:
    with np.errstate(invalid="ignore"):
        margin = np.where(np.isfinite(high - low), _MARGIN * (high - low), 0)
        return values <= low + margin, values >= high - margin


def _share_at_bounds(values: Array, low: FloatArray, high: FloatArray) -> float:
    at_low, at_high = _at_bounds(values, low, high)
    return float((at_low | at_high).any(1).mean())


# -- actions outside their space


def out_of_bounds(s: Subject) -> Iterator[Finding]:
    """Find steps whose action an environment would clip or refuse."""
    space = s.ds.manifest.spaces.get("action")
    bounded = [(f, b) for f in s.fields("action") if (b := action_bounds(space, f)) is not None]
    if not bounded:
        raise Skipped("no bounds of the actions are known")
    for f, (low, high) in bounded:
        stats = s.stats.get(f.name)
        if stats is None or not stats.count:
            continue
        least, greatest = (np.ravel(np.asarray(x, np.float64)) for x in (stats.min, stats.max))
        out = (least < low) | (greatest > high)
        if not out.any():
            continue
        k = int(np.argmax(np.fmax(low - least, greatest - high)))
        worst = least[k] if low[k] - least[k] > greatest[k] - high[k] else greatest[k]
        span = f"{worst:g} in [{low[k]:g}, {high[k]:g}]"
        if not s.thorough:
            yield finding("out-of-bounds", "warning", f"{f.name} leaves the action space: {span}", 1, f.name)
            continue
        seen = s.steps_where(f.name, _Outside(low, high))
        text = f"{plural(seen.count, 'step', 'has', 'have')} an {f.name} outside the action space, e.g. {span}"
        yield finding("out-of-bounds", "warning", text, seen.count, f.name, seen.seen)


class _Outside:
    def __init__(self, low: Array, high: Array) -> None:
        self._low, self._high = low, high

    def __call__(self, values: Array) -> BoolArray:
        flat = values.reshape(len(values), -1)
        if (flat.min(axis=0) >= self._low).all() and (flat.max(axis=0) <= self._high).all():
            return np.zeros(len(values), bool)
        return np.asarray(((flat < self._low) | (flat > self._high)).any(axis=1))


def action_bounds(space: Mapping[str, Any] | None, f: Field) -> tuple[Array, Array] | None:
    """Least and greatest allowed value of every element of a row, with a margin for rounding; None without bounds."""
    own = Space(space).at(split_name(f.name)[1:]).form
    try:
        low, high = _space_limits(own or {})
        low, high = (np.broadcast_to(np.array(x, object).astype(np.float64), f.shape).ravel() for x in (low, high))
    except (TypeError, ValueError, OverflowError):
        return None
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return None
    slack = [_ROUNDING * np.maximum(1, np.abs(np.where(np.isfinite(x), x, 0))) for x in (low, high)]
    return low - slack[0], high + slack[1]


def _space_limits(space: Mapping[str, Any]) -> tuple[Any, Any]:
    start = space.get("start") or 0
    match space.get("type"):
        case "Box":
            return space.get("low"), space.get("high")
        case "Discrete":
            return start, start + int(space.get("n", 0)) - 1
        case "MultiDiscrete":
            return start, np.asarray(space.get("nvec"), np.int64) + np.asarray(start) - 1
        case "MultiBinary":
            return 0, 1
    return None, None


# -- jumps between successive steps


def jumps(s: Subject) -> Iterator[Finding]:
    """Find steps of continuous observations that are unlike all other steps of the dataset."""
    fields = [f for f in s.fields(kinds="f") if _is_state(f) and _width(f) <= _MAX_COMPONENTS]
    if not fields:
        raise Skipped("no continuous observations")
    for f in fields:
        limit = limits(s, f)
        if np.isfinite(limit).any():
            yield from _findings(s, f, *_jumps_and_spikes(s, f, limit))


def _is_state(f: Field) -> bool:
    """Tell observations and states of simulators from other fields; a goal is none, as it may change at any step."""
    root, last = f.name.split("/")[0], f.name.split("/")[-1]
    if f.placement == "next" or ("goal" in last and "achieved" not in last):
        return False
    return root in ("observation", "state") or last == "qpos"


def _findings(s: Subject, f: Field, jumps: Sightings, spikes: Sightings) -> Iterator[Finding]:
    rule = f"{FACTOR:g} times the {PERCENTILE}th percentile of its steps"
    if jumps.count:
        text = (
            f"{f.name} jumps at {plural(jumps.count, 'step')} inside episodes, as at a reset: where trajectories were"
        )
        text += " merged, import them again with another --episodes-by"
        yield finding("jump", "warning", text, jumps.count, f.name, jumps.seen, s.known("jump"))
    if spikes.count:
        text = f"at {plural(spikes.count, 'step')} a component of {f.name} moves by more than {rule}"
        yield finding("spike", "note", text, spikes.count, f.name, spikes.seen)


def limits(s: Subject, f: Field) -> Array:
    """The longest step of every component that is not a jump, float64 [width]; infinite where it has no scale."""
    if not len(s.rows):
        return np.full(_width(f), np.inf)
    at_most = max(1, _SAMPLE_BYTES // (_BLOCK_ROWS * _width(f) * 8))
    blocks = max(1, min(_BLOCKS, at_most, len(s.rows) // _BLOCK_ROWS))
    starts = np.linspace(0, max(len(s.rows) - _BLOCK_ROWS, 0), blocks).astype(np.int64)
    size = min(_BLOCK_ROWS, len(s.rows))
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
    episode = s.rows.episodes_at(rows)
    return np.asarray(rows - s.start[episode] >= s.rows.count(f)[episode] - 1)


def _jumps_and_spikes(s: Subject, f: Field, limit: Array) -> tuple[Sightings, Sightings]:
    jumps, spikes = Sightings(s), Sightings(s)
    only = len(limit) == 1 and (f.name.endswith("/qpos") or sum(_width(x) for x in s.fields("observation")) == 1)
    final = s.rows.final  # rows from which, and at unknown final ones to which, no step leads
    unknown = final[s.rows.count(f) == s.length] - 1
    bound = limit.astype(np.float32) if np.dtype(f.dtype).itemsize <= 4 else limit
    room = np.empty((0, len(limit)), bound.dtype)
    for a, values in s.rows.blocks(f.name, more=3):  # a step, with those before and after it
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
            end = len(steps) if a + len(flat) == len(s.rows) else len(steps) - 1
            far = (steps > bound) & np.isfinite(steps)  # the check "finite" finds the others
            at = np.flatnonzero(far.any(axis=1) | ((steps > bound * (_SEVERAL / FACTOR)).sum(axis=1) >= 2))
            at = at[(at >= first) & (at < end)]
            is_jump = _is_jump(s, f, flat, steps, at, bound, only=only)
        jumps.add(a + at[is_jump])
        spikes.add(a + at[~is_jump & far[at].any(axis=1)])
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
    stats = s.stats.get(f.name)
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
