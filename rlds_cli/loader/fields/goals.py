"""Goals: observations of the same episode or of another, and how many steps lie before them.

::

    step          0    1    2    3    4    T = 5        goals are rows that hold a recorded observation:
    observation   o0   o1   o2   o3   o4   o5           0 to num_observed - 1
                       t    '-- future --'              from t + 1 on; t itself where nothing lies ahead
    distance           0    1    2    3    4            -1 for what lies behind, or in another episode

Returns to go: what an episode still pays from each step on.

One number per row of the store, scanned once from the end in float64 and kept in a file that all processes map::

    row        0            1       2    3          4       5    6
    reward     r0           r1      r2   .          r0      r1   .      . the row of a final observation
    terminated              x
    return     r0 + g * r1  r1      r2   0          r0 + .. r1   0
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli import text
from rlds_cli.errors import InvalidArgument, NeedsMemory
from rlds_cli.loader.fields.columns import Column, Computed
from rlds_cli.loader.fields.fields import Fields, no_reward
from rlds_cli.loader.index import Guide
from rlds_cli.loader.order import COLUMN, whole
from rlds_cli.loader.storage import packed
from rlds_cli.loader.windows.positions import Place, Points, Rows, Samples
from rlds_cli.ted import FLAGS, REWARD, Array, BoolArray, IntArray, join_name

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

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


NAME = "return_to_go"
_ROWS = 1 << 20  # scanned at a time
_PIECE = 1 << 16  # as Python numbers at a time
_FEW = 32  # stretches: so few are faster one by one than side by side


@dataclass(frozen=True, slots=True)
class ReturnToGo:
    """``batch["return_to_go"]`` [B, 1] or [B, L, 1]: the sum of the rewards from each step to the end of its episode.

    ``scale * (r[t] + gamma * r[t+1] + gamma**2 * r[t+2] + ...)`` over the archive's own rewards, whatever transforms do
    to ``next/reward``; the last term is that of the first terminated step, or of the episode's last. Every step has
    one, and it does not depend on the window: that of an n-step transition or of `Offsets` is the one at step t. It is
    exact: the float64 sum from the end, cast like other floats; with ``dtype=None`` it is float64.

    The column is scanned once and kept in a file that all processes map, 8 bytes a step.

    Parameters
    ----------
    gamma : float
        Discount per step, in [0, 1].
    scale : float
        What the sum is multiplied by; Decision Transformer (Chen et al. 2021) uses 1e-3 on MuJoCo.
    through_terminals : bool
        Sum to the end of the episode also where terminated steps lie inside it. Otherwise each of them ends the sum, as
        it ends what a value function bootstraps.

    Raises
    ------
    InvalidArgument
        A discount outside [0, 1], a scale that is not finite.
    NoReward
        From the loader: the dataset has no rewards.
    NeedsMemory
        From the loader: there is neither a place for the file nor memory for the column.

    Examples
    --------
    >>> loader = Loader(ds, 64, window=Slice(20, after=19), extra=("step", ReturnToGo(scale=1e-3)))  # doctest: +SKIP
    """

    gamma: float = 1.0
    scale: float = 1.0
    through_terminals: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise InvalidArgument(f"ReturnToGo(gamma={self.gamma!r}): a discount lies in [0, 1].")
        if not np.isfinite(self.scale):
            raise InvalidArgument(f"ReturnToGo(scale={self.scale!r}): a finite number is needed.")
        object.__setattr__(self, "gamma", float(self.gamma))
        object.__setattr__(self, "scale", float(self.scale))

    def columns(self, fields: Fields) -> Mapping[str, Column]:
        """Scan the column, or map what another process has scanned."""
        dataset = fields.dataset
        if REWARD not in dataset.schema:
            raise no_reward(dataset)
        sums = scan(dataset, self.gamma, self.through_terminals)
        key = {"column": NAME, "gamma": self.gamma, "through_terminals": self.through_terminals}
        held = packed.open_or_build(dataset, key, sums.nbytes, sums.parts, kind="column", budget=fields.budget)
        if held.array is None:
            raise NeedsMemory(
                f"{NAME} of {dataset.id} takes {text.size_of(sums.nbytes)}: {held.reason}.", hint="a larger memory="
            )
        values = held.array.view(np.float64).reshape(sums.reward.shape)
        return {NAME: Returns(Rows(values), self.scale, f"scanned once, {held.where}")}


def scan(dataset: Dataset, gamma: float, through_terminals: bool) -> Scan:
    """What adds up the rewards of a dataset."""
    stops = not through_terminals and FLAGS[0] in dataset.schema
    terminated = dataset.column(FLAGS[0]) if stops else None
    return Scan(dataset.column(REWARD), terminated, _last_rows(dataset), gamma)


def _last_rows(dataset: Dataset) -> IntArray:
    """The row of each episode's final observation, of all episodes of the store in order."""
    everything = type(dataset)(dataset.store).episodes
    return np.asarray(everything["start"], np.int64) + everything["length"]


@dataclass(frozen=True, slots=True)
class Returns:
    """The column of returns; ``where`` says where it is kept."""

    column: Rows
    scale: float
    where: str

    @property
    def row_bytes(self) -> int:
        """Bytes of a return."""
        return self.column.row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the returns at the steps, see `Column`."""
        values = samples.here.take(self.column)
        values *= self.scale
        return values if self.column.values.ndim > 1 else values[..., None]

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `Column`."""
        return samples.mask


@dataclass(frozen=True, slots=True)
class Scan:
    """Sums from the end, each row's being its reward plus ``gamma`` times that of the row after.

    Parameters
    ----------
    reward : array [rows, ...]
    terminated : bool array [rows] or None
        Rows that the row after adds nothing to.
    last : int array [episodes]
        More of these: the last row of each episode, ascending.
    gamma : float
    """

    reward: Array
    terminated: Array | None
    last: IntArray
    gamma: float

    @property
    def nbytes(self) -> int:
        """Bytes of all sums."""
        return 8 * self.reward.size

    def parts(self) -> Iterator[Floats]:
        """The sums, float64 [n, ...] each, from the first row to the last; memory is bounded."""
        starts = range(0, len(self.reward), _ROWS)
        carries = [np.zeros(self.reward.shape[1:])]
        for start in reversed(starts[1:]):
            carries.append(self._first(start, carries[-1]))
        for start, carry in zip(starts, reversed(carries), strict=True):
            values, stop = self._rows(start, carry)
            sum_from_ends(values, stop, self.gamma)
            yield values[:-1]

    def _first(self, start: int, carry: Any) -> Any:
        """The sum at the row ``start``, from its own stretch alone; ``carry`` is that of the row after the part."""
        values, stop = self._rows(start, carry)
        stops = np.flatnonzero(stop)
        stretch = values[: stops[0] + 1 if len(stops) else len(values)]
        _sum_one(stretch, self.gamma)
        return stretch[0].copy()

    def _rows(self, start: int, carry: Any) -> tuple[Floats, BoolArray]:
        """Rewards of a part with ``carry`` behind them [n + 1, ...], and where sums end [n]."""
        reward = self.reward[start : start + _ROWS]
        values = np.empty((len(reward) + 1, *reward.shape[1:]))
        values[:-1], values[-1] = reward, carry
        stop = np.zeros(len(reward), bool) if self.terminated is None else self.terminated[start : start + _ROWS].copy()
        first, end = np.searchsorted(self.last, (start, start + len(reward)))
        stop[self.last[first:end] - start] = True
        return values, stop


def sum_from_ends(values: Floats, stop: BoolArray, gamma: float) -> None:
    """Add to each row ``gamma`` times the sum of the row after, in place, from the end.

    Stretches are summed side by side, one row of each at a time, and the longest few that remain one after the other:
    8 to 100 ns a row, for one stretch as for a million. The order of additions is that of a loop from the end.

    Parameters
    ----------
    values : float64 array [n + 1, ...]
        The last row is a sum already, which row n - 1 continues unless it stops.
    stop : bool array [n]
        Rows that the row after adds nothing to.
    gamma : float
    """
    end = np.flatnonzero(stop)
    if not len(end) or end[-1] != len(stop) - 1:
        end = np.append(end, len(stop))
    length = np.diff(end, prepend=-1) - 1
    end, length = end[length > 0], length[length > 0]
    if length.max(initial=0) < 1 << 16:
        length = length.astype(np.uint16)  # sorted by digits
    order = np.argsort(length, kind="stable")[::-1]
    end, length = end[order], length[order].astype(np.int64)
    together = int(length[_FEW]) if len(length) > _FEW else 0
    active = len(length) - np.searchsorted(length[::-1], np.arange(1, together + 1))
    row, sums = end.copy(), values[end]
    for count in active.tolist():
        row, sums = row[:count], sums[:count]
        row -= 1
        sums *= gamma
        sums += values.take(row, axis=0)
        values[row] = sums
    for i in range(min(_FEW, len(end))):
        _sum_one(values[end[i] - length[i] : end[i] - together + 1], gamma)


def _sum_one(values: Floats, gamma: float) -> None:
    """One stretch [n, ...], of which the last row is a sum already."""
    back = values.reshape(len(values), -1)[::-1]
    if gamma == 1:
        back[:] = np.add.accumulate(back, axis=0)
        return
    for column in back.T:
        total = float(column[0])
        for first in range(1, len(column), _PIECE):
            rewards = column[first : first + _PIECE].tolist()
            sums = list(accumulate(rewards, lambda g, r: r + gamma * g, initial=total))
            column[first : first + _PIECE] = sums[1:]
            total = sums[-1]
