"""What the fields of a dataset are to measures: stamps, states, actions, cameras; and which state an action moves.

Fields are told by their names and shapes. What an action moves is learned from the first episodes: an element of the
actions is paired with the element of the states that changes most like it, as a target of a position, or as one of a
velocity. So is what is learned of the states themselves: which element is the velocity of which other one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below, split_name
from rlds_cli.dataset import Rows
from rlds_cli.look.checks.ages import AGES
from rlds_cli.look.measures.blocks import Block
from rlds_cli.ted import Field

SAMPLED = 32  # episodes that show what an action moves
LAGS = (0, 1, 2, 3)  # steps by which a state may follow its action
_STAMPS = re.compile(r"t|time|times?stamps?|stamps?|elapsed(time)?")
_SUCCESS = re.compile(r"(is_?)?success")
_VELOCITY = re.compile(r"joint_?vel(ocity|ocities)?")
_WIDEST = 512  # elements of a row of states, or of actions
_MOST_PAIRS = 4096  # elements times elements that are compared: what moves a simulated hand is not learned
_EXPLAINED = 0.9  # share of the variance of the changes of an element from which another one is its velocity
ALIKE = 0.5  # correlation from which an action is taken to move a state
_NEARLY = 0.1  # correlation by which the element of the same number may be below the best one
_FOLLOWS = 0.9  # correlation from which a state is where its action sends it
_SMALLEST = 8  # pixels of a side of a frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An element of the actions, and the element of the states that it moves.

    ``action`` and ``state`` count over all fields of the role. ``sign`` is that of the usual correlation, ``lag`` the
    usual steps until the state follows, ``spread`` the usual standard deviation of the action in an episode. Where the
    state is where the action sends it, as a follower is where its leader was, it is ``gain`` times the action and
    ``offset``; else the gain is 0.
    """

    action: int
    state: int
    target: Literal["position", "velocity"]
    sign: int
    lag: int
    spread: float
    gain: float = 0.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivative:
    """An element of the states, and the element that is its velocity; both count over all fields of states.

    ``seconds`` is the time of a step in the unit of the velocity: a position changes in a step by so much times it.
    """

    position: int
    velocity: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Names of fields by their roles; ``pairs`` and ``derivatives`` are None where nobody has looked yet."""

    stamp: str | None
    states: tuple[str, ...]
    actions: tuple[str, ...]
    velocity: str | None
    cameras: tuple[str, ...]
    ages: tuple[str, ...]
    success: str | None
    pairs: tuple[Pair, ...] | None = None
    derivatives: tuple[Derivative, ...] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Field]) -> Roles:
        """Tell the roles of fields by their names and shapes."""
        rows = [f for f in fields.values() if f.kind == "array" and 0 not in f.shape]
        scalars = [f for f in rows if f.shape in ((), (1,)) and np.dtype(f.dtype).kind in "iuf"]
        flags = [f for f in rows if f.shape in ((), (1,)) and np.dtype(f.dtype).kind in "bui"]
        successes = [f.name for f in flags if _SUCCESS.fullmatch(_word(f))]
        stamps = [f.name for f in scalars if _STAMPS.fullmatch(_word(f)) and f.placement != "next"]
        floats = [f for f in rows if np.dtype(f.dtype).kind == "f" and len(f.shape) <= 1 and f.name not in stamps]
        actions = [f for f in floats if is_below(f.name, "action")]
        states = [f for f in floats if is_below(f.name, "observation") and f.placement != "next"]
        velocities = [f.name for f in actions if _VELOCITY.fullmatch(_word(f))]
        return cls(
            stamp=min(stamps, key=lambda n: (n.count("/"), n)) if stamps else None,
            states=_within_width(states),
            actions=_within_width(actions),
            velocity=velocities[0] if velocities else None,
            cameras=tuple(sorted(f.name for f in fields.values() if _is_camera(f))),
            ages=tuple(sorted(f.name for f in scalars if is_below(f.name, AGES) and np.dtype(f.dtype).kind == "f")),
            success=min(successes, key=lambda n: (n.count("/"), n), default=None),
        )

    def learned(self, rows: Rows) -> Roles:
        """Return these roles with the pairs and derivatives that the first episodes show."""
        count = min(SAMPLED, len(rows.start))
        if not self.states or not count:
            return replace(self, pairs=(), derivatives=())
        block = Block(rows, 0, count)
        pairs = _pairs(block, self) if self.actions else ()
        return replace(self, pairs=pairs, derivatives=_derivatives(block, self))

    @property
    def unlearned(self) -> Roles:
        """These roles without what is learned."""
        return replace(self, pairs=None, derivatives=None)

    def read_by(self, group: str) -> tuple[str, ...]:
        """Return the fields that a group of measures reads."""
        if group == "time":
            return (*((self.stamp,) if self.stamp else ()), *self.ages)
        return (*self.states, *self.actions, *(self.cameras if group == "camera" else ()))

    def to_json(self) -> dict[str, Any]:
        """Return them as a value of JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: Any) -> Roles:
        """Return the roles of a value of `to_json`; KeyError, TypeError or ValueError for another value."""
        pairs, derivatives = value["pairs"], value["derivatives"]
        return cls(
            stamp=value["stamp"],
            states=tuple(value["states"]),
            actions=tuple(value["actions"]),
            velocity=value["velocity"],
            cameras=tuple(value["cameras"]),
            ages=tuple(value["ages"]),
            success=value["success"],
            pairs=None if pairs is None else tuple(Pair(**p) for p in pairs),
            derivatives=None if derivatives is None else tuple(Derivative(**d) for d in derivatives),
        )


def _word(f: Field) -> str:
    return re.sub("[-]", "", split_name(f.name)[-1].lower())


def _within_width(fields: list[Field]) -> tuple[str, ...]:
    """Return the names of the first fields that together are not too wide."""
    names, width = list[str](), 0
    for f in sorted(fields, key=lambda f: f.name):
        width += math.prod(f.shape)
        if width <= _WIDEST:
            names.append(f.name)
    return tuple(names)


def _is_camera(f: Field) -> bool:
    """Return whether a field holds frames of one size, with one channel or three."""
    if len(f.shape) != 3 or f.dtype != "uint8" or f.shape[2] not in (1, 3) or f.placement == "next":
        return False
    return f.kind in ("array", "frames") and min(f.shape[:2]) >= _SMALLEST and is_below(f.name, "observation")


def _pairs(block: Block, roles: Roles) -> tuple[Pair, ...]:
    """Return what the actions move, by the correlations of changes over all episodes of a block."""
    actions, states = block.values(roles.actions), block.values(roles.states)
    if len(actions) * len(states) > _MOST_PAIRS:
        return ()
    centred = block.centred(actions.copy())
    moved, targets = block.changes(states), {"position": block.changes(actions), "velocity": centred}
    found = np.stack([[_correlations(block, x, moved, lag) for lag in LAGS] for x in targets.values()])
    usual = np.sqrt((centred**2).mean(axis=1))
    pairs = list[Pair]()
    for j in range(len(actions)):
        best = np.unravel_index(int(np.argmax(np.abs(found[:, :, j]))), found[:, :, j].shape)
        if len(actions) == len(states):
            own = np.unravel_index(int(np.argmax(np.abs(found[:, :, j, j]))), found[:, :, j, j].shape)
            if abs(found[own[0], own[1], j, j]) >= abs(found[:, :, j][best]) - _NEARLY:
                best = (*own, np.intp(j))
        kind, lag, state = map(int, best)
        r = float(found[kind, lag, j, state])
        if abs(r) >= ALIKE:
            target: Literal["position", "velocity"] = "velocity" if kind else "position"
            sign, spread = (1 if r > 0 else -1), _short(usual[j])
            gain, offset = (0.0, 0.0) if kind else _level(block, actions[j], states[state], LAGS[lag])
            pairs.append(
                Pair(
                    action=j,
                    state=state,
                    target=target,
                    sign=sign,
                    lag=LAGS[lag],
                    spread=spread,
                    gain=gain,
                    offset=offset,
                )
            )
    return tuple(pairs)


def _level(block: Block, action: Array, state: Array, lag: int) -> tuple[float, float]:
    """Return gain and offset from an action to the state ``lag`` steps later, by least squares; 0 if it is not so."""
    inside = np.flatnonzero(block.has_later(lag))
    x, y = action[inside].astype(np.float64), state[inside + lag].astype(np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x) or not x.std() or not y.std():
        return 0.0, 0.0
    dx, dy = x - x.mean(), y - y.mean()
    gain = float((dx @ dy) / (dx @ dx))
    if abs(gain) * x.std() / y.std() < _FOLLOWS:  # Pearson's r
        return 0.0, 0.0
    return _short(gain), _short(y.mean() - gain * x.mean())


def _short(value: float) -> float:
    return float(f"{float(value):.9g}")


def _derivatives(block: Block, roles: Roles) -> tuple[Derivative, ...]:
    """Return which states are velocities of others: in each step, the mean of two explains what the other moves by.

    The slope is that of least squares through the origin, since what has no velocity does not move.
    """
    states = block.values(roles.states).astype(np.float64)
    if len(states) ** 2 > _MOST_PAIRS:
        return ()
    inside = np.flatnonzero(block.has_later(-1))
    with np.errstate(all="ignore"):  # infinities among the values
        now, before = states[:, inside], states[:, inside - 1]
        moved, speed = now - before, (now + before) / 2
        known = np.isfinite(moved).all(axis=0) & np.isfinite(speed).all(axis=0)
        if not known.any():
            return ()
        moved, speed = moved[:, known], speed[:, known]
        product, size = moved @ speed.T, (speed**2).sum(axis=1)
        slope = np.where(size > 0, product / size, 0)
        left = (moved**2).sum(axis=1, keepdims=True) - slope * product
        around = ((moved - moved.mean(axis=1, keepdims=True)) ** 2).sum(axis=1, keepdims=True)
        explained = np.nan_to_num(1 - left / around, nan=-1, neginf=-1)
    np.fill_diagonal(explained, -1)
    best = explained.argmax(axis=1)
    return tuple(
        Derivative(position=i, velocity=j, seconds=_short(slope[i, j]))
        for i, j in enumerate(best.tolist())
        if explained[i, j] >= _EXPLAINED
    )


def _correlations(block: Block, x: Array, y: Array, lag: int) -> Array:
    """Return the correlation of each element of ``x`` with each of ``y``, ``lag`` steps later [x, y]."""
    inside = block.has_later(lag)
    a, b = x[:, inside], y[:, np.flatnonzero(inside) + lag]
    norm = np.sqrt((a**2).sum(axis=1, keepdims=True) * (b**2).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(norm > 0, a @ b.T / norm, 0.0))
