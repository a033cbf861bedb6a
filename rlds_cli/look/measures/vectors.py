"""Measures of columns of numbers: stamps, states and actions; all episodes of a block at once.

Lengths of motions are in units of the episode itself: the change of an element is divided by the range of its values in
the episode, or by a twentieth of the widest range of its field where it hardly moves, so that noise of an element at
rest does not count as motion.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.look.measures.blocks import Block, Runs
from rlds_cli.look.measures.roles import ALIKE, Pair, Roles

SIGNATURE = "signature"  # what tells motions apart; no measure
MOMENTS, TOLD = 8, 16  # moments of an episode, and elements of its states, in a signature
SHORTEST_IDLE, SHORTEST_KEPT, LAST_LEFT_OUT, IDLE_CHANGE = 7, 16, 10, 1e-3  # openpi's rule
_SLOW = 0.1  # of the root mean square of the speed, below which a step is idle
_LEAST_RANGE = 0.05  # of the widest range of the field
_TURNS, _TURN_MARGIN = (2 * np.pi, 360.0, 4096.0), 0.05
_FAR = 4.0  # times what an element moves around a whole turn
_JUMP = 2.0  # lengths of the steps around it, from which a step is none of a motion
_LAGS = tuple(range(-3, 6))
_MOVED = 0.05  # of the usual standard deviation of an action, from which it counts as moved
_LEAST_AGE = 1e-3  # seconds: clocks of computers on one network differ by as much (RFC 5905, NTP)
_PAD = 4  # times the steps that a spectrum is computed over
_SPECTRUM = 0.05  # of the spectrum at frequency 0, from which it counts: Balasubramanian et al. 2012
_NANOSECONDS = 1e5  # a time from stamp to stamp above which stamps count nanoseconds
Values = dict[str, Array]


class Vectors:
    """The measures of the episodes of a block, and the ranges of steps in which they show."""

    def __init__(self, block: Block, roles: Roles) -> None:
        self.block, self.roles = block, roles

    # -- time

    def time(self) -> Values:
        """Return the measures of the group ``time``; NaN without stamps, and for episodes of one step."""
        return self._of_stamps() | self._of_ages()

    def _of_ages(self) -> Values:
        ages = [self.block.values([name]).astype(np.float64) for name in self.roles.ages]
        if not ages:
            return {}
        return {"quality_age": np.maximum(self.block.max(np.concatenate(ages)), _LEAST_AGE).T}

    def _of_stamps(self) -> Values:
        names = ("quality_rate", "quality_jitter", "quality_time_gap", "quality_time_back")
        b, gaps = self.block, self.gaps
        if gaps is None:
            return {name: np.full(len(b), np.nan) for name in names}
        low, median, high = np.empty((3, len(b)))
        for some, of_some in b.padded(gaps, np.nan):
            of_some.sort(axis=1)  # NaN, such as the first step of an episode, comes last
            at = np.maximum(0, b.length[some] - 2) * [[1], [2], [3]] // 4
            low[some], median[some], high[some] = of_some[np.arange(len(some)), at]
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.where(median > _NANOSECONDS, 1e9, 1.0) / median
            jitter = (high - low) / 1.349 / median
            gap = b.max(np.abs(gaps - b.per_step(median))) / median
        back = np.where(np.isnan(median), np.nan, b.sum(gaps <= 0))
        return dict(zip(names, (rate, jitter, gap, back), strict=True))

    @cached_property
    def gaps(self) -> Array | None:
        """Times from stamp to stamp [steps]; NaN at the first step of an episode. None without stamps."""
        if self.roles.stamp is None:
            return None
        stamps: Array = self.block.values([self.roles.stamp])[0].astype(np.float64)
        with np.errstate(invalid="ignore"):
            found: Array = np.diff(stamps, prepend=np.nan)
        found[self.block.start] = np.nan
        return found

    # -- motion

    @cached_property
    def _states(self) -> Array:
        return self.block.values(self.roles.states)

    @cached_property
    def _actions(self) -> Array:
        return self.block.values(self.roles.actions)

    @cached_property
    def _moved(self) -> Array:
        return self.block.changes(self._states)

    @cached_property
    def _commanded(self) -> Array:
        return self.block.changes(self._actions)

    @cached_property
    def _of_states_most(self) -> tuple[Array, Array]:
        """The least and the greatest value of each element of the states in each episode [n, episodes]."""
        return self.block.min(self._states), self.block.max(self._states)

    @cached_property
    def _of_actions_most(self) -> tuple[Array, Array]:
        """Those of the actions."""
        return self.block.min(self._actions), self.block.max(self._actions)

    def _scale(self, names: tuple[str, ...], values: Array, extremes: tuple[Array, Array]) -> Array:
        """Return one divided by the range of each element in each episode [n, episodes]; 0 for those that are fixed."""
        units = list[Array]()
        with np.errstate(invalid="ignore", over="ignore"):
            ranges = extremes[1].astype(np.float64) - extremes[0]
        ranges[~np.isfinite(ranges)] = 0
        for at in self._places(names):
            units.append(np.maximum(ranges[at], _LEAST_RANGE * ranges[at].max(axis=0)))
        unit = np.concatenate(units)
        with np.errstate(divide="ignore"):
            return np.asarray(np.where(unit > 0, 1 / unit, 0).astype(values.dtype))

    def _places(self, names: tuple[str, ...]) -> list[slice]:
        """Return the elements of each field among those of all of them."""
        edges = np.cumsum([0, *(len(self.block.values([name])) for name in names)]).tolist()
        return [slice(a, b) for a, b in pairwise(edges)]

    @cached_property
    def _state_scale(self) -> Array:
        return self._scale(self.roles.states, self._states, self._of_states_most)

    @cached_property
    def _motion(self) -> Array:
        return np.asarray(self._moved * self.block.per_step(self._state_scale))

    @cached_property
    def _speeds(self) -> Array:
        """Length of each step of each field of the states [fields, steps]."""
        return np.stack([_length(self._motion[at]) for at in self._places(self.roles.states)])

    @cached_property
    def _speed(self) -> Array:
        """Length of each step of the states [steps]."""
        return self._speeds[0] if len(self._speeds) == 1 else _length(self._speeds)

    @cached_property
    def is_moving(self) -> BoolArray:
        """Steps at which the states or the actions are not slow [steps]."""
        b, slow = self.block, np.ones(self.block.steps, bool)
        speeds = [self._speed] if self.roles.states else []
        if self.roles.actions:
            scale = self._scale(self.roles.actions, self._actions, self._of_actions_most)
            speeds.append(_length(self._commanded * b.per_step(scale)))
        for speed in speeds:
            slow &= speed <= _SLOW * b.per_step(self._usual(speed))
        return ~slow

    def _usual(self, values: Array) -> Array:
        """Return the root mean square of the steps of each episode but the first [..., episodes]."""
        return np.asarray(np.sqrt(self.block.sum(values * values) / np.maximum(1, self.block.length - 1)))

    @cached_property
    def idle(self) -> Runs:
        """Runs of steps that do not move; the first step of an episode, which comes from none, is of none."""
        still: BoolArray = np.logical_not(self.is_moving)
        still[self.block.start] = False
        runs = self.block.runs(still)
        return runs.where(runs.length >= SHORTEST_IDLE)

    def motion(self) -> Values:
        """Return the measures of the group ``motion``."""
        b, r = self.block, self.roles
        found = Values()
        if r.states or r.actions:
            at_start = self.idle.where(self.idle.first == b.start[self.idle.episode] + 1)
            found |= {
                "quality_not_finite": b.sum(self.not_finite),
                "quality_idle_share": b.covered(self.idle) / b.length,
                "quality_idle_run": b.longest(self.idle),
                "quality_idle_start": b.covered(at_start),
            }
        if r.states:
            found |= self._of_states()
        if (kept := self.kept_by_openpi) is not None:
            found["quality_openpi_idle_share"] = 1 - b.covered(kept) / b.length
        return found

    @property
    def not_finite(self) -> Array:
        """Number of values of states and actions that are not finite [steps]."""
        known = (np.isfinite(x) for x in (self._states, self._actions))
        return np.asarray(sum(np.zeros(self.block.steps) if k.all() else (~k).sum(axis=0) for k in known))

    def _of_states(self) -> Values:
        b, usual = self.block, self._usual(self._speed)
        third = b.changes(b.changes(self._motion), 3)
        first, last = (self._states.take(at, axis=1) for at in (b.start, b.start + b.length - 1))
        ends = np.nan_to_num(last - first) * self._state_scale
        with np.errstate(invalid="ignore", divide="ignore"):
            jerk = np.sqrt(b.sum(_squares(third)) / np.maximum(1, b.length - 3)) / usual
            efficiency = _length(ends) / b.sum(self._speed)
        return {
            "quality_frozen_signal": np.stack([b.longest(runs) for runs in self.frozen_signals], 1),
            "quality_frozen_element": self._longest_frozen(),
            "quality_dead_joints": self._dead.sum(axis=0),
            "quality_wraps": b.sum(self.turns),
            "quality_motion_jump": b.max(self.jumps).T,
            "quality_side_jump": b.max(self.jumps_aside).T,
            "quality_jerk": jerk,
            "quality_arc_length": self._arc_length(),
            "quality_path_efficiency": efficiency,
            "quality_unexplained_step": np.full(len(b), np.nan)
            if self.unexplained is None
            else b.max(self.unexplained),
            SIGNATURE: self._signature(),
        }

    def _arc_length(self) -> Array:
        """Return the spectral arc length of the speed of each episode [episodes]; NaN for one that does not move.

        With V(k), the amplitudes of the Fourier transform of the speed, divided by V(0), and K, the last frequency at
        which V is at least 0.05: minus the sum over k < K of sqrt(1 / K^2 + (V(k + 1) - V(k))^2). It is -1 for an
        impulse, and the less the more the motion starts and stops. Balasubramanian, Melendez-Calderon and Burdet, "A
        robust and sensitive metric for quantifying movement smoothness" (2012), and SPARC by the same with
        Roby-Brami (2015), which also ends at 10 Hz; here at half the rate of steps, since no rate need be known.
        """
        b, found = self.block, np.full(len(self.block), np.nan)
        for some, profile in b.padded(self._speed, 0):  # to the first step of an episode, nothing has moved
            amplitude = np.abs(np.fft.rfft(profile[:, 1:], _PAD * profile.shape[1]))
            with np.errstate(invalid="ignore", divide="ignore"):
                amplitude /= amplitude[:, :1]
                last = amplitude.shape[1] - 1 - (amplitude[:, ::-1] >= _SPECTRUM).argmax(axis=1)
                arcs = np.sqrt(np.diff(amplitude, axis=1) ** 2 + (1 / last**2)[:, None])
            arcs[np.arange(arcs.shape[1]) >= last[:, None]] = 0
            found[some] = np.where(amplitude[:, 0] == 1, -arcs.sum(axis=1), np.nan)
        return found

    @cached_property
    def _dead(self) -> BoolArray:
        """Elements of the states that never change in an episode [n, episodes]."""
        return np.asarray(np.equal(*self._of_states_most))

    @cached_property
    def _same(self) -> BoolArray:
        """Whether each element of the states keeps all its bits [n, steps]."""
        return np.asarray(self._moved == 0)

    @property
    def frozen_signals(self) -> list[Runs]:
        """Return the runs of steps in which a field of states keeps all its bits while the rest moves, by field."""
        b, found = self.block, list[Runs]()
        for at in self._places(self.roles.states):
            same = self._same[at].all(axis=0) & self.is_moving
            same[b.start] = False
            found.append(b.runs(same))
        return found

    @cached_property
    def frozen_elements(self) -> BoolArray:
        """Steps at which elements of the states keep all their bits while others change [n, steps]."""
        same = self._same
        alone: BoolArray = np.asarray(same.any(axis=0) & ~same.all(axis=0))
        alone[self.block.start] = False
        return np.asarray(same & alone)

    def _longest_frozen(self) -> Array:
        """Return the longest run of such steps of each element [episodes, n]; 0 for those that never change."""
        b, found = self.block, np.zeros(self._dead.shape)
        some = np.flatnonzero(self.frozen_elements.any(axis=1))  # mostly none: what is measured differs in each step
        if len(some):
            step = np.arange(b.steps, dtype=np.int32)
            moved = np.where(self.frozen_elements[some], np.int32(0), step)
            found[some] = b.max(step - np.maximum.accumulate(moved, axis=1))
        found[self._dead] = 0
        return found.T

    @cached_property
    def turns(self) -> BoolArray:
        """Steps at which an element of the states jumps by a whole turn, alone among the steps around it [steps]."""
        found, moved = np.zeros(self.block.steps, bool), self._moved
        widest = max(float(moved.max(initial=0)), -float(moved.min(initial=0)))
        turns = [t for t in _TURNS if widest >= (1 - _TURN_MARGIN) * t]
        if not turns:
            return found
        size = np.abs(moved)
        near = np.any([np.abs(size - t) <= _TURN_MARGIN * t for t in turns], axis=0)
        at = np.flatnonzero(near.any(axis=0))
        around = np.maximum(size[:, np.maximum(at - 1, 0)], size[:, np.minimum(at + 1, len(found) - 1)])
        found[at] = (near[:, at] & (size[:, at] > _FAR * around)).any(axis=0)
        return found

    @cached_property
    def jumps_aside(self) -> Array:
        """Part of `jumps` across the direction of the steps around it, where a step is long; else 0 [fields, steps]."""
        found = np.zeros_like(self.jumps)
        for k, at in enumerate(self._places(self.roles.states)):
            long = np.flatnonzero(self.jumps[k] > _JUMP)
            step, before, after = (self._motion[at].take(long + shift, axis=1) for shift in (0, -1, 1))
            way = before + after
            along = np.square((step * way).sum(axis=0)) / np.maximum(_squares(way), np.finfo(way.dtype).tiny)
            size = _squares(step)
            found[k, long] = self.jumps[k, long] * np.sqrt(np.maximum(0, 1 - along / size))
        return found

    @cached_property
    def jumps(self) -> Array:
        """Length of each step in lengths of those around it, of each field of states [fields, steps].

        0 where a step around it is missing. Fields are apart: velocities change by more than positions from step to
        step, and would hide a jump of these.
        """
        return self._jumps_of(self._speeds)

    def _jumps_of(self, speed: Array) -> Array:
        b = self.block
        around = b.per_step(self._usual(speed).astype(speed.dtype))
        np.maximum(around[..., 1:], speed[..., :-1], out=around[..., 1:])
        np.maximum(around[..., :-1], speed[..., 1:], out=around[..., :-1])
        known = b.has_later(1) & b.has_later(-2) & (around > 0)
        return np.asarray(np.divide(speed, around, out=np.zeros_like(speed), where=known))

    @cached_property
    def unexplained(self) -> Array | None:
        """How far the positions get in each step beyond what their velocities tell, in usual steps [steps].

        None where no velocities are known. Whole turns of an element are left out, and elements that never change.
        """
        if not self.roles.derivatives:
            return None
        b, of = self.block, self.roles.derivatives
        at, speed = [d.position for d in of], self._states[[d.velocity for d in of]]
        unit = b.per_step(np.where(self._dead[at], 0, self._state_scale[at]))
        told = np.empty_like(speed)
        np.add(speed[:, 1:], speed[:, :-1], out=told[:, 1:])
        told *= np.array([[d.seconds / 2] for d in of], told.dtype)
        moved = self._moved[at]
        beyond = (moved - told) * unit
        beyond[:, b.start] = 0
        beyond[~np.isfinite(beyond)] = 0
        usual = b.per_step(self._usual(_length(moved * unit)))
        found = np.where(usual > 0, _length(beyond) / np.where(usual > 0, usual, 1), 0)
        found[self.turns] = 0
        return np.asarray(found)

    def _signature(self) -> Array:
        """Return the first elements of the states at moments of the episode [episodes, moments * elements]."""
        b = self.block
        at = b.start[:, None] + np.round(np.linspace(0, 1, MOMENTS) * (b.length[:, None] - 1)).astype(np.int64)
        return self._states[:TOLD].take(at, axis=1).transpose(1, 2, 0).reshape(len(b), -1)

    @cached_property
    def kept_by_openpi(self) -> Runs | None:
        """Runs of steps that openpi's rule keeps; None without commanded joint velocities."""
        if self.roles.velocity is None:
            return None
        b = self.block
        with np.errstate(invalid="ignore"):
            change = np.abs(b.changes(b.values([self.roles.velocity])))
            still: BoolArray = np.asarray((change < IDLE_CHANGE).all(axis=0))
        still[b.start] = False
        idle = b.runs(still)
        idle = idle.where(idle.length >= SHORTEST_IDLE)
        edges = np.zeros(b.steps + 1, np.int64)
        np.add.at(edges, idle.first, 1)
        np.add.at(edges, idle.stop, -1)
        kept = b.runs(np.cumsum(edges[:-1]) == 0)
        kept = kept.where(kept.length >= SHORTEST_KEPT)
        return Runs(episode=kept.episode, first=kept.first, stop=kept.stop - LAST_LEFT_OUT)

    # -- actions

    def action(self) -> Values:
        """Return the measures of the group ``action``."""
        b, r = self.block, self.roles
        if not r.actions:
            return {}
        with np.errstate(invalid="ignore", divide="ignore"):
            saturation = b.sum(self.saturated) / b.length
            between = b.sum(self._at_extremes) < b.length
            second = b.changes(self._commanded, 2)
            first = np.sqrt(b.sum(np.square(self._commanded)) / np.maximum(1, b.length - 1))
            rough = np.sqrt(b.sum(np.square(second)) / np.maximum(1, b.length - 2)) / first
        noise = np.where(np.isfinite(rough), rough, 0).max(axis=0)
        found = {"quality_saturation": np.where(between, saturation, np.nan).T, "quality_action_noise": noise}
        return found | (self._of_pairs(r.pairs) if r.pairs else {})

    @cached_property
    def _at_extremes(self) -> BoolArray:
        """Whether each element of the actions is at its least or greatest value in the episode [n, steps]."""
        b, values = self.block, self._actions
        low, high = self._of_actions_most
        return np.asarray((values == b.per_step(high)) | (values == b.per_step(low)))

    @property
    def saturated(self) -> BoolArray:
        """Steps at which an element of the actions is at an extreme while something moves [n, steps]."""
        return np.asarray(self._at_extremes & self.is_moving)

    def _of_pairs(self, pairs: tuple[Pair, ...]) -> Values:
        """Return how the actions and the states that they move belong together."""
        b, moves, follows = self.block, [p.action for p in pairs], [p.state for p in pairs]
        actions, effect = b.centred(self._actions.take(moves, axis=0)), b.centred(self._states.take(follows, axis=0))
        cause, effects = self._commanded.take(moves, axis=0), self._moved.take(follows, axis=0)
        is_velocity, lags = np.array([p.target == "velocity" for p in pairs]), np.array([p.lag for p in pairs])
        usual, spread = (np.array([getattr(p, name) for p in pairs])[:, None] for name in ("sign", "spread"))
        cause[is_velocity], effect[is_velocity] = actions[is_velocity], effects[is_velocity]
        size = b.sum(np.square(actions))
        moved = np.sqrt(size / b.length) > _MOVED * spread
        signs = np.full(moved.shape, np.nan)
        for lag in set(lags.tolist()):
            of = np.flatnonzero(lags == lag) if len(set(lags.tolist())) > 1 else slice(None)
            signs[of] = b.sum(self._multiplied(actions[of], effect[of], lag))
        with np.errstate(invalid="ignore", divide="ignore"):
            signs /= np.sqrt(size * b.sum(np.square(effect, out=effect)))
        jumps = self._jumps_of(self._speed) > _JUMP  # where rows are missing, actions and states jump together
        for values, factor in ((cause, moved), (effects, np.where(signs < 0, -1, 1))):
            values[:, jumps] = 0
            values *= b.per_step(_unit(b.sum(np.square(values)), factor).astype(values.dtype))
        found = b.sum(np.stack([self._product(cause, effects, lag) for lag in _LAGS]))
        peak, height = _peak((found / np.maximum(1, moved.sum(axis=0))).T)
        shifted = np.where(height >= ALIKE, peak, np.nan)
        return self._follow_error(pairs, shifted) | {
            "quality_action_sign": np.where(moved, signs * usual, np.nan).T,
            "quality_action_lag": shifted,
            "quality_tracking": np.where(moved.any(axis=0), height, np.nan),
        }

    def _follow_error(self, pairs: tuple[Pair, ...], lag: Array) -> Values:
        """Return how far the states are from where the actions send them, in spreads of these [episodes, pairs].

        States are compared at the usual lag and at that of the episode, of which the nearer one counts: shifted
        actions are another matter.
        """
        of = [p for p in pairs if p.gain and p.spread]
        if not of:
            return {}
        b, dtype = self.block, self._states.dtype
        gain, offset = (np.array([[getattr(p, name)] for p in of], dtype) for name in ("gain", "offset"))
        wanted = self._actions[[p.action for p in of]]
        wanted *= gain
        wanted += offset
        states, unit = self._states[[p.state for p in of]], np.abs(gain) * np.array([[p.spread] for p in of])
        usual = int(np.median([p.lag for p in of]))
        own = np.where(np.isfinite(lag), np.round(lag), usual).astype(np.int64)
        better, place = np.full((len(of), len(b)), np.inf), np.arange(b.steps)
        if (own != usual).any():
            shift = b.per_step(own)
            inside = (shift != usual) & (place + shift >= b.per_step(b.start))
            at = np.flatnonzero(inside & (place + shift < b.per_step(b.start + b.length)))
            off = np.zeros_like(wanted)
            off[:, at] = states[:, at + shift[at]] - wanted[:, at]
            better[:, own != usual] = self._root_mean_square(off, own)[:, own != usual]
        if b.steps > usual:
            wanted[:, : b.steps - usual] -= states[:, usual:]
        wanted[:, ~b.has_later(usual)] = 0
        errors = np.minimum(self._root_mean_square(wanted, np.full(len(b), usual)), better)
        return {"quality_follow_error": (errors / unit).T}

    def _root_mean_square(self, off: Array, lag: Array) -> Array:
        """Return that of differences [n, steps], in place, at lags [episodes], of each episode; unknown ones are 0."""
        squared = np.square(off, out=off)
        if not np.isfinite(squared).all():
            squared[~np.isfinite(squared)] = 0
        count = np.maximum(1, self.block.length - np.abs(lag))
        return np.asarray(np.sqrt(self.block.sum(squared) / count))

    def _multiplied(self, x: Array, y: Array, lag: int) -> Array:
        """Multiply ``x`` [n, steps], in place, by ``y``, which comes ``lag`` steps later in the episode."""
        if x.shape[1] > lag:
            x[:, : x.shape[1] - lag] *= y[:, lag:]
        x[:, ~self.block.has_later(lag)] = 0
        return x

    def _product(self, x: Array, y: Array, lag: int) -> Array:
        """Return the sum over elements of ``x`` times ``y``, which comes ``lag`` steps later [steps]."""
        found, steps = np.zeros(x.shape[1], x.dtype), x.shape[1]
        if steps > abs(lag):
            a, z = (x[:, : steps - lag], y[:, lag:]) if lag >= 0 else (x[:, -lag:], y[:, :lag])
            found[max(0, -lag) : steps - max(0, lag)] = np.einsum("ns,ns->s", a, z)
        found[~self.block.has_later(lag)] = 0
        return found


def _squares(values: Array) -> Array:
    """Return the sum of squares of each column [n]."""
    return np.asarray(np.einsum("ns,ns->s", values, values))


def _length(values: Array) -> Array:
    """Return the Euclidean length of each column [n]."""
    return np.asarray(np.sqrt(_squares(values)))


def _unit(size: Array, factor: Array) -> Array:
    """Return a factor divided by the root of a sum of squares; 0 where that is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(size > 0, factor / np.sqrt(size), 0))


def _peak(found: Array) -> tuple[Array, Array]:
    """Return at which lag correlations [episodes, lags] peak, between whole ones by a parabola, and how high."""
    best = found.argmax(axis=1)
    inner = np.clip(best, 1, len(_LAGS) - 2)
    rows = np.arange(len(found))
    low, high, after = (found[rows, inner + k] for k in (-1, 0, 1))
    bend = low - 2 * high + after
    with np.errstate(invalid="ignore", divide="ignore"):
        beside = np.where(bend < 0, (low - after) / (2 * bend), 0)
    at_edge = inner != best
    lag = np.array(_LAGS)[best] + np.where(at_edge, 0, np.clip(beside, -0.5, 0.5))
    return lag, found[rows, best]
