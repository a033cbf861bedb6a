"""Columns that look ahead in the episode: goals (`Goals`) and returns to go (`ReturnToGo`).

Goals are recorded observations, with the number of steps before them::

    step          0    1    2    3    4    T = 5        goals are rows that hold a recorded observation:
    observation   o0   o1   o2   o3   o4   o5           0 to num_observed - 1
                       t    '-- future --'              from t + 1 on; t itself where nothing lies ahead
    distance           0    1    2    3    4            -1 for what lies behind, or in another episode

Returns to go are one number per row of the store, scanned once from the end in float64 and kept in a file that all
processes map::

    row        0            1       2    3          4       5    6
    reward     r0           r1      r2   .          r0      r1   .      . the row of a final observation, which
    terminated              x                                             means nothing, like its return
    return     r0 + g * r1  r1      r2   .          r0 + .. r1   .
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.base import text
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.integers import integer
from rlds_cli.base.returns import check_returns, sum_from_ends, sum_stretch
from rlds_cli.base.text import is_below, join_name
from rlds_cli.errors import InvalidArgument, NeedsMemory
from rlds_cli.loader.fields.columns import INT64, BatchColumn, Decoding, Memo, values_of
from rlds_cli.loader.fields.fields import Fields, no_reward
from rlds_cli.loader.index import Located, PrefixIndex
from rlds_cli.loader.kernel import OF_WINDOW, GoalTable, Output, RowPlace, Value
from rlds_cli.loader.order import COLUMN
from rlds_cli.loader.storage import packed
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.ted import FLAGS, REWARD, Field

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

Horizon = Literal["geometric", "uniform", "final", "episode"]
Floats = npt.NDArray[np.float64]
_HORIZONS = ("geometric", "uniform", "final", "episode")


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
    distance is int64 [B, 1]: 0 exactly where the goal is the very row of step t, -1 where it does not lie ahead of it
    in its own episode, as few random goals do. So OGBench's reward is ``(batch["value_goal_distance"] == 0) - 1.0``,
    and the distance of the next observation is ``(distance - 1).clip(-1)``.

    A window of several steps has one goal, drawn for its last real step and given to every step [B, L, ...]; distances
    are those of each step [B, L, 1]. Goals of n-step transitions and of `Offsets` are those of their step t.

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
        The field whose rows are goals: ``observation/achieved_goal``, ``info/qpos``. Where a field is not recorded
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
    >>> goals = Goals("value_goal", current=0.2, future=0.5, random=0.3), Goals("actor_goal", horizon="uniform")
    >>> loader = Loader(ds, 1024, fields=[..., *goals])  # doctest: +SKIP
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
            object.__setattr__(self, "horizon", integer(f"{self._call}...): horizon", self.horizon, 1))
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

    def columns(self, fields: Fields) -> Mapping[str, BatchColumn]:
        """Make the columns of the goal, or of the fields below it, and of the distance."""
        schema = fields.dataset.schema
        names = [n for n in schema if is_below(n, self.of)]
        if not names:
            fields.dataset.field(self.of)  # says what there is
        if self.of.split("/")[0] == "next":
            raise InvalidArgument(
                f"{self._call}of={self.of!r}): the result of an action is not a state.", hint='of="observation"'
            )
        recorded = all(schema[n].placement == "both" for n in names)
        draw = GoalSampler(self, fields, fields.table.observed if recorded else fields.table.steps)
        kind = {"masked": fields.window.masked, "zeroed": fields.window.zeroed}
        made = {
            f"{self.name}{n.removeprefix(self.of)}": _goal(draw, fields.source(n), schema[n], fields.floats, **kind)
            for n in names
        }
        distance = Output(Value.DISTANCE, INT64, (1,), place=RowPlace.SAMPLE, given=draw.steps)
        return made | {f"{self.name}_distance": BatchColumn((distance,), 8, axis=True)}


class GoalSampler:
    """The draw of goals.

    Parameters
    ----------
    goals : Goals
    fields : Fields
    limit : int array [episodes]
        Number of rows of each episode that can be goals.
    """

    def __init__(self, goals: Goals, fields: Fields, limit: IntArray) -> None:
        horizon, steps = (4, goals.horizon) if isinstance(goals.horizon, int) else (_HORIZONS.index(goals.horizon), 0)
        shares = goals.current, goals.future, goals.random
        anywhere = PrefixIndex(limit).table if goals.random else None
        reach = horizon, steps, math.log(goals.gamma)
        # other extras must not change the draws, whatever their order: so the name tells the streams apart
        self._salt = int.from_bytes(hashlib.blake2b(goals.name.encode(), digest_size=8).digest(), "little")
        self._table = GoalTable(shares, reach, fields.pool.windows, limit, anywhere)

    def rows(self, located: Located) -> IntArray:
        """Return the rows of the goals [K]."""
        return located.once(self, self._find, located)[0]

    def steps(self, located: Located) -> IntArray:
        """Return the steps of the goals in the sample's own episode [K]; -1 for a goal of another."""
        return located.once(self, self._find, located)[1]

    def _find(self, located: Located) -> tuple[IntArray, IntArray]:
        """Draw one number in [0, 1) per sample: its range picks the kind of goal, its place in the range the goal."""
        drawn = located.drawn
        u = drawn.order.uniform(COLUMN, drawn.positions, salt=self._salt)
        return self._table.find(drawn.episode, drawn.number, located.length, u)


def _goal(
    draw: GoalSampler, source: ColumnRows | Decoding, of: Field, floats: str | None, *, masked: bool, zeroed: bool
) -> BatchColumn:
    """Return the column of goals: the rows of a field, one goal for all steps of a sample."""
    where: dict[str, Any] = {"place": RowPlace.GIVEN, "given": draw.rows}
    mask, about = OF_WINDOW if zeroed else 0, f"rows of {of.name}, at goals"
    rest: dict[str, Any] = {"mask": mask, "like": of.name, "about": about}
    if isinstance(source, ColumnRows):
        output = values_of(source, floats, axis=of.is_column, **where)
        return BatchColumn((output,), source.row_bytes, rows=source, axis=of.is_column, **rest)

    def decode(memo: Memo, rows: IntArray) -> Array:
        if not masked:
            return source(memo, rows)
        return np.repeat(source(memo, rows[:, 0])[:, None], rows.shape[1], axis=1)

    output = Output(Value.ROW, INT64, also=source.tables, **where)
    return BatchColumn((output,), of.row_bytes, decode, decoding=source, **rest)


NAME = "return_to_go"
_ROWS = 1 << 20  # scanned at a time


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
    >>> loader = Loader(ds, 64, window=Slice(20, after=19), fields=[..., ReturnToGo(scale=1e-3)])  # doctest: +SKIP
    """

    gamma: float = 1.0
    scale: float = 1.0
    through_terminals: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_returns(self.gamma, self.scale)
        object.__setattr__(self, "gamma", float(self.gamma))
        object.__setattr__(self, "scale", float(self.scale))

    def columns(self, fields: Fields) -> Mapping[str, BatchColumn]:
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
        rows, scale, axis = ColumnRows(values), self.scale, values.ndim == 1
        mask, about = OF_WINDOW if fields.window.zeroed else 0, f"scanned once, {held.where}"
        if scale == 1.0:
            output = values_of(rows, fields.floats, axis=axis)
            return {NAME: BatchColumn((output,), rows.row_bytes, mask=mask, about=about, axis=axis)}
        output = values_of(rows, None, axis=axis)

        def scaled(memo: Memo, sums: Array) -> Array:
            sums *= scale
            return sums

        return {NAME: BatchColumn((output,), rows.row_bytes, scaled, mask, about=about, axis=axis)}


def scan(dataset: Dataset, gamma: float, through_terminals: bool) -> ReturnScan:
    """Return the scan that sums up a dataset's rewards."""
    stops = not through_terminals and FLAGS[0] in dataset.schema
    terminated = dataset.store.rows(FLAGS[0]) if stops else None
    return ReturnScan(dataset.store.rows(REWARD), terminated, _last_steps(dataset), gamma)


def _last_steps(dataset: Dataset) -> IntArray:
    """Return the row of the last step of every episode of the store, ascending."""
    everything = dataset.store.episodes
    return np.sort(np.asarray(everything["start"], np.int64) + everything["length"] - 1)


@dataclass(frozen=True, slots=True)
class ReturnScan:
    """Sums from the end: each row's reward plus ``gamma`` times the sum of the row after.

    Rows that are not steps have sums, too, which mean nothing.

    Parameters
    ----------
    reward : array [rows, ...]
    terminated : bool array [rows] or None
        Rows at which a sum ends.
    last : int array [episodes]
        The last step of each episode, ascending; sums end there, too.
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
        """Yield the sums, float64 [n, ...] each, from the first row to the last, in bounded memory."""
        starts = range(0, len(self.reward), _ROWS)
        carries = [np.zeros(self.reward.shape[1:])]
        for start in reversed(starts[1:]):
            carries.append(self._first(start, carries[-1]))
        for start, carry in zip(starts, reversed(carries), strict=True):
            values, stop = self._rows(start, carry)
            sum_from_ends(values, stop, self.gamma)
            yield values[:-1]

    def _first(self, start: int, carry: Any) -> Any:
        """Return the sum at row ``start``, from its own stretch alone; ``carry`` is the sum after the part."""
        values, stop = self._rows(start, carry)
        stops = np.flatnonzero(stop)
        stretch = values[: stops[0] + 1 if len(stops) else len(values)]
        sum_stretch(stretch, self.gamma)
        return stretch[0].copy()

    def _rows(self, start: int, carry: Any) -> tuple[Floats, BoolArray]:
        """Return the rewards of a part with ``carry`` behind them [n + 1, ...], and the ends of sums [n]."""
        reward = self.reward[start : start + _ROWS]
        values = np.empty((len(reward) + 1, *reward.shape[1:]))
        values[:-1], values[-1] = reward, carry
        stop = np.zeros(len(reward), bool) if self.terminated is None else self.terminated[start : start + _ROWS].copy()
        first, end = np.searchsorted(self.last, (start, start + len(reward)))
        stop[self.last[first:end] - start] = True
        return values, stop
