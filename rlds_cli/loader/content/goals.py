"""Goals: observations of the same episode or of another, and how many steps lie before them.

::

    step          0    1    2    3    4    T = 5        goals are rows that hold a recorded observation:
    observation   o0   o1   o2   o3   o4   o5           0 to num_observed - 1
                       t    '-- future --'              from t + 1 on; t itself where nothing lies ahead
    distance           0    1    2    3    4            -1 for what lies behind, or in another episode
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.content.columns import Column, Computed
from rlds_cli.loader.content.fields import Fields
from rlds_cli.loader.sampling.guide import Guide
from rlds_cli.loader.sampling.order import COLUMN
from rlds_cli.loader.wholes import whole
from rlds_cli.loader.windowing.places import Place, Points, Rows
from rlds_cli.loader.windowing.samples import Samples
from rlds_cli.ted import Array, BoolArray, IntArray, join_name

Horizon = Literal["geometric", "uniform", "final", "episode"]
Floats = npt.NDArray[np.float64]

_HORIZONS = ("geometric", "uniform", "final", "episode")
_BELOW_ONE = 1 - 2**-53


@dataclass(frozen=True, slots=True)
class Goals:
    """A goal for every sample, ``batch[name]``, and the steps before it, ``batch[f"{name}_distance"]``.

    With the probabilities ``current``, ``future`` and ``random`` the goal is the observation of step t itself, one of
    its future, or any recorded one of the episodes that the loader draws from, all equally likely. The future is

    ============= ===========================================================================================
    ``horizon``   goal of step t; the last observation recorded where that is nearer
    ============= ===========================================================================================
    "geometric"   t + k, k = 1, 2, ... with probability ``(1 - gamma) * gamma**(k - 1)`` (OGBench, CRL)
    "uniform"     any from t + 1 to the last one (HER's "future"; OGBench without ``geom_sample``)
    "final"       the last one (HER's "final")
    "episode"     any of the episode, behind or ahead (HER's "episode")
    k             t + k (HIQL's subgoals)
    ============= ===========================================================================================

    Where nothing lies ahead of t, the goal is that of t. Terminated steps inside an episode do not end its future. The
    distance is int64 [B]: 0 exactly where the goal is the very row of step t, -1 where it does not lie ahead of it in
    its own episode, as few random goals do. So OGBench's reward is ``(batch["value_goal_distance"] == 0) - 1.0``, and
    the distance of the next observation is ``(distance - 1).clip(-1)``.

    A window of several steps has one goal, drawn for its last real step and given to every step [B, L, ...]; distances
    are those of each step [B, L]. Goals of n-step transitions and of `Offsets` are those of their step t.

    The goal of sample number i is a function of (seed, epoch, i) and ``name``; other extras, ranks and the batch size
    do not change it. Transforms of the field ``of`` are applied to its goals as well.

    Parameters
    ----------
    name : str
        Of the field in the batch; where ``of`` has fields below it, so has the goal.
    current, future, random : float
        Probabilities; their sum is 1.
    horizon : {"geometric", "uniform", "final", "episode"} or int
    gamma : float
        Of the geometric horizon, in (0, 1).
    of : str
        The field whose rows are goals: ``observation/achieved_goal``, ``info/qpos``. Of a field that is not recorded
        with the final observation the last goal is that of the last step.

    Raises
    ------
    InvalidArgument
        Probabilities that do not sum to 1, no such horizon, ``of`` is a field under ``next``.
    UnknownField
        From the loader: the dataset has no field ``of``.

    Notes
    -----
    After OGBench (Park et al. 2024, arXiv:2410.20092), Hindsight Experience Replay (Andrychowicz et al. 2017,
    arXiv:1707.01495) and HIQL (Park et al. 2023, arXiv:2307.11949). OGBench rounds its uniform goals, so that the first
    and the last are half as likely as the others; here they are not.

    Examples
    --------
    >>> extra = (Goals("value_goal", current=0.2, future=0.5, random=0.3), Goals("actor_goal", horizon="uniform"))
    >>> loader = Loader(ds, 1024, extra=extra)  # doctest: +SKIP
    """

    name: str
    current: float = field(default=0.0, kw_only=True)
    future: float = field(default=1.0, kw_only=True)
    random: float = field(default=0.0, kw_only=True)
    horizon: Horizon | int = field(default="geometric", kw_only=True)
    gamma: float = field(default=0.99, kw_only=True)
    of: str = field(default="observation", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("name", "of"):
            object.__setattr__(self, name, join_name(getattr(self, name)))
        if not self.name:
            raise InvalidArgument("Goals: a name for the field is needed.", hint='Goals("goal")')
        shares = (self.current, self.future, self.random)
        if not all(p >= 0 for p in shares) or abs(sum(shares) - 1) > 1e-9:
            given = f"current={self.current}, future={self.future}, random={self.random}"
            raise InvalidArgument(
                f"{self._call}{given}): probabilities are not negative and sum to 1; these sum to {sum(shares):.6g}.",
                hint="name all three where the future is not all of it",
            )
        if not isinstance(self.horizon, str):
            object.__setattr__(self, "horizon", whole(f"{self._call}...): horizon", self.horizon, 1))
        elif self.horizon not in _HORIZONS:
            listed = ", ".join(f'"{h}"' for h in _HORIZONS)
            raise InvalidArgument(f"{self._call}horizon={self.horizon!r}): {listed} or a number of steps.")
        if not 0 < self.gamma < 1:
            raise InvalidArgument(
                f"{self._call}gamma={self.gamma!r}): between 0 and 1.", hint='horizon=1 is 0, horizon="final" is 1'
            )

    @property
    def _call(self) -> str:
        return f"Goals({self.name!r}, "

    def columns(self, fields: Fields) -> Mapping[str, Column]:
        """The goal, or the fields below it, and the distance."""
        schema = fields.dataset.schema
        names = [n for n in schema if n == self.of or n.startswith(f"{self.of}/")]
        if not names:
            fields.dataset.field(self.of)  # says what there is
        if self.of.split("/")[0] == "next":
            raise InvalidArgument(
                f"{self._call}of={self.of!r}): what came of an action is no state.", hint='of="observation"'
            )
        recorded = all(schema[n].placement == "both" for n in names)
        draw = Draw(self, fields.table.observed if recorded else fields.table.steps)
        made: dict[str, Column] = {}
        for n in names:
            rows = fields.rows(n) if schema[n].kind == "array" else None
            column = GoalRows(draw, fields.read_rows(n), schema[n].row_bytes, n, rows)
            made[f"{self.name}{n.removeprefix(self.of)}"] = column
        return made | {f"{self.name}_distance": Computed(8, draw.distance)}


@dataclass(frozen=True, slots=True)
class Found:
    """Goals of the samples of one gather.

    Attributes
    ----------
    place : Points
        Their rows in the store [K].
    step : int array [K]
        Within the sample's own episode; -1 for a goal of another.
    """

    place: Points
    step: IntArray


class Draw:
    """Draws goals.

    Parameters
    ----------
    goals : Goals
    limit : int array [episodes]
        How many rows of each episode of the table may be goals.
    """

    def __init__(self, goals: Goals, limit: IntArray) -> None:
        self._goals, self._limit = goals, limit
        self._anywhere = Guide(limit) if goals.random else None
        # other extras must not change the draws, whatever their order: so the name tells the streams apart
        self._salt = int.from_bytes(hashlib.blake2b(goals.name.encode(), digest_size=8).digest(), "little")

    def find(self, samples: Samples) -> Found:
        """The goals of these samples, drawn once."""
        return samples.once(self, lambda: self._find(samples))

    def distance(self, samples: Samples) -> Array:
        """Steps from each step to its goal [K] or [K, L]; -1 where it does not lie ahead."""
        ahead = samples.spread(self.find(samples).step) - samples.step
        return np.maximum(ahead, -1, out=ahead)

    def _find(self, samples: Samples) -> Found:
        """One draw in [0, 1) for each sample says which kind of goal, and by its place among those, which goal."""
        goals, table, drawn = self._goals, samples.table, samples.drawn
        u = drawn.order.uniform(COLUMN, drawn.positions, salt=self._salt)
        step = samples.step if samples.step.ndim == 1 else samples.step[:, -1]  # the last that is real
        start = table.start.take(samples.episode)
        goal = step.copy()
        future, anywhere = self._kinds(u)
        if future.size:
            part = _share(u[future], goals.current, goals.future)
            goal[future] += self._hops(part, step[future], self._limit.take(samples.episode[future]))
        rows = start + goal
        if self._anywhere is not None:
            part = _share(u[anywhere], goals.current + goals.future, goals.random)
            episode, there = self._anywhere.find((part * self._anywhere.total).astype(np.int64))
            first = table.start.take(episode)
            rows[anywhere] = first + there
            goal[anywhere] = np.where(first == start[anywhere], there, -1)
        return Found(Points(rows), goal)

    def _kinds(self, u: Floats) -> tuple[IntArray, IntArray]:
        """The samples whose goal lies in the future, and those where it lies anywhere."""
        goals = self._goals
        random = u >= goals.current + goals.future if goals.random else np.zeros(len(u), bool)
        later = (u >= goals.current) & ~random if goals.future else np.zeros(len(u), bool)
        return np.flatnonzero(later), np.flatnonzero(random)

    def _hops(self, part: Floats, step: IntArray, limit: IntArray) -> IntArray:
        """Steps from ``step`` to a goal of its future, for draws ``part`` in [0, 1)."""
        horizon, ahead = self._goals.horizon, limit - 1 - step
        if horizon == "final":
            hops = ahead
        elif horizon == "episode":
            hops = (part * limit).astype(np.int64) - step
        elif horizon == "uniform":
            hops = np.minimum((part * ahead).astype(np.int64) + 1, ahead)
        elif horizon == "geometric":
            beyond = np.log1p(-part) / math.log(self._goals.gamma)
            hops = np.minimum(beyond + 1.0, ahead).astype(np.int64)
        else:
            hops = np.minimum(horizon, ahead)
        return hops


def _share(u: Floats, first: float, share: float) -> Floats:
    """Draws that lie in [first, first + share), spread over [0, 1)."""
    part: Floats = ((u - first) / share).clip(0.0, _BELOW_ONE)
    return part


@dataclass(frozen=True, slots=True)
class GoalRows:
    """The rows of a field at the goals; ``like`` is its name, of which transforms speak, ``column`` its map if any."""

    draw: Draw
    read_rows: Callable[[Place], Array]
    row_bytes: int
    like: str
    column: Rows | None = None

    def place(self, samples: Samples) -> Points:
        """The rows, see `Mapped`."""
        return self.draw.find(samples).place

    def read(self, samples: Samples) -> Array:
        """Return the values of one goal for all steps of a sample, see `Column`."""
        values = self.read_rows(self.place(samples))
        return values if len(samples.here.shape) == 1 else samples.spread(values).copy()

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `Column`."""
        return samples.mask
