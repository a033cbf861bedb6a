"""What the fields of a dataset are to measures: stamps, states, actions, cameras; and which state an action moves.

Fields are told by their names and shapes. What an action moves is learned from the first episodes: an element of the
actions is paired with the element of the states that changes most like it, as a target of a position, or as one of a
velocity.
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
from rlds_cli.look.measures.blocks import Block
from rlds_cli.ted import Field

SAMPLED = 32  # episodes that show what an action moves
LAGS = (0, 1, 2, 3)  # steps by which a state may follow its action
_STAMPS = re.compile(r"t|time|times?stamps?|stamps?|elapsed(time)?")
_VELOCITY = re.compile(r"joint_?vel(ocity|ocities)?")
_WIDEST = 512  # elements of a row of states, or of actions
_MOST_PAIRS = 4096  # elements of actions times elements of states: what moves a simulated hand is not learned
ALIKE = 0.5  # correlation from which an action is taken to move a state
_NEARLY = 0.1  # correlation by which the element of the same number may be below the best one
_SMALLEST = 8  # pixels of a side of a frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An element of the actions, and the element of the states that it moves.

    ``action`` and ``state`` count over all fields of the role. ``sign`` is that of the usual correlation, ``lag`` the
    usual steps until the state follows, ``spread`` the usual standard deviation of the action in an episode.
    """

    action: int
    state: int
    target: Literal["position", "velocity"]
    sign: int
    lag: int
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Names of fields by their roles; ``pairs`` is None where nobody has looked yet."""

    stamp: str | None
    states: tuple[str, ...]
    actions: tuple[str, ...]
    velocity: str | None
    cameras: tuple[str, ...]
    pairs: tuple[Pair, ...] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Field]) -> Roles:
        """Tell the roles of fields by their names and shapes."""
        rows = [f for f in fields.values() if f.kind == "array" and 0 not in f.shape]
        scalars = [f for f in rows if f.shape in ((), (1,)) and np.dtype(f.dtype).kind in "iuf"]
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
        )

    def paired(self, rows: Rows) -> Roles:
        """Return these roles with the pairs that the first episodes show."""
        count = min(SAMPLED, len(rows.start))
        fits = self.states and self.actions and count
        return replace(self, pairs=_pairs(Block(rows, 0, count), self) if fits else ())

    def to_json(self) -> dict[str, Any]:
        """Return them as a value of JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: Any) -> Roles:
        """Return the roles of a value of `to_json`; KeyError, TypeError or ValueError for another value."""
        pairs = value["pairs"]
        return cls(
            stamp=value["stamp"],
            states=tuple(value["states"]),
            actions=tuple(value["actions"]),
            velocity=value["velocity"],
            cameras=tuple(value["cameras"]),
            pairs=None if pairs is None else tuple(Pair(**p) for p in pairs),
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
    if actions.shape[1] * states.shape[1] > _MOST_PAIRS:
        return ()
    centred = block.centred(actions)
    moved, targets = block.changes(states), {"position": block.changes(actions), "velocity": centred}
    found = np.stack([[_correlations(block, x, moved, lag) for lag in LAGS] for x in targets.values()])
    usual = np.sqrt((centred**2).mean(0))
    pairs = list[Pair]()
    for j in range(actions.shape[1]):
        best = np.unravel_index(int(np.argmax(np.abs(found[:, :, j]))), found[:, :, j].shape)
        if actions.shape[1] == states.shape[1]:
            own = np.unravel_index(int(np.argmax(np.abs(found[:, :, j, j]))), found[:, :, j, j].shape)
            if abs(found[own[0], own[1], j, j]) >= abs(found[:, :, j][best]) - _NEARLY:
                best = (*own, np.intp(j))
        kind, lag, state = map(int, best)
        r = float(found[kind, lag, j, state])
        if abs(r) >= ALIKE:
            target: Literal["position", "velocity"] = "velocity" if kind else "position"
            sign, spread = (1 if r > 0 else -1), round(float(usual[j]), 9)
            pairs.append(Pair(action=j, state=state, target=target, sign=sign, lag=LAGS[lag], spread=spread))
    return tuple(pairs)


def _correlations(block: Block, x: Array, y: Array, lag: int) -> Array:
    """Return the correlation of each element of ``x`` with each of ``y``, ``lag`` steps later [x, y]."""
    inside = block.has_later(lag)
    a, b = x[inside], y[np.flatnonzero(inside) + lag]
    norm = np.sqrt((a**2).sum(0)[:, None] * (b**2).sum(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(norm > 0, a.T @ b / norm, 0.0))
