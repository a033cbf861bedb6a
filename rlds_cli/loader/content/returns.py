"""Returns to go: what an episode still pays from each step on.

One number per row of the store, scanned once from the end in float64 and kept in a file that all processes map::

    row        0            1       2    3          4       5    6
    reward     r0           r1      r2   .          r0      r1   .      . the row of a final observation
    terminated              x
    return     r0 + g * r1  r1      r2   0          r0 + .. r1   0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli import sizes
from rlds_cli.errors import InvalidArgument, NeedsMemory
from rlds_cli.loader.access import packed
from rlds_cli.loader.content.columns import Column
from rlds_cli.loader.content.fields import Fields, no_reward
from rlds_cli.loader.windowing.places import Rows
from rlds_cli.loader.windowing.samples import Samples
from rlds_cli.ted import FLAGS, REWARD, Array, BoolArray, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

NAME = "return_to_go"

_ROWS = 1 << 20  # scanned at a time
_PIECE = 1 << 16  # as Python numbers at a time
_FEW = 32  # stretches: so few are faster one by one than side by side

Floats = npt.NDArray[np.float64]


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
                f"{NAME} of {dataset.id} takes {sizes.text(sums.nbytes)}: {held.reason}.", hint="a larger memory="
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
