"""The columns of a batch: how each gets its values for the samples of one gather."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rlds_cli.loader.places import Place, Rows
from rlds_cli.loader.windows import Samples, SliceSamples
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


class Column(Protocol):
    """One field of the batch."""

    @property
    def row_bytes(self) -> int:
        """Bytes that a step takes."""
        ...

    @property
    def fills(self) -> bool:
        """Whether it follows ``Slice(fill=...)`` outside episodes."""
        ...

    def read(self, samples: Samples) -> Array:
        """Values [K, ...] or [K, L, ...], contiguous, in memory of their own."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A field of the store, from its map.

    ``late`` reads at the last step of a sample, what came of the action; ``shift`` 1 reads the row after it;
    ``flag`` adds an axis of one element: rewards and flags are [B, 1].
    """

    column: Rows
    late: bool = False
    shift: int = 0
    flag: bool = False
    fills: bool = True

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.column.row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        if self.flag:
            return samples.outcome(self.column)[..., None]
        return (samples.last if self.late else samples.here).take(self.column, self.shift)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Frames or text, through ``dataset.gather``; what appears twice among the rows is decoded once."""

    dataset: Dataset
    name: str
    late: bool = False
    shift: int = 0
    fills: bool = True

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, decoded."""
        return self.dataset.schema[self.name].row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        place: Place = samples.last if self.late else samples.here
        rows, at = np.unique(place.rows + self.shift, return_inverse=True)
        values: Array = self.dataset.gather(self.name, rows)
        return values[at.reshape(place.shape)]


@dataclass(frozen=True, slots=True)
class RewardSum:
    """The discounted sum of rewards over the steps of an n-step sample; each reward is transformed before."""

    column: Rows
    gamma: float
    transform: Callable[[Array], Array]
    fills: bool = True

    @property
    def row_bytes(self) -> int:
        """Bytes of a reward."""
        return self.column.row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the sums, added up in float64, see `Column`."""
        rows, span = samples.here.rows, np.asarray(samples.span)
        shape, dtype = self.column.values.shape[1:], np.result_type(self.column.values.dtype, np.float32)
        total = np.zeros((len(rows), *shape))
        for j in range(int(span.max(initial=0))):
            reward = self.transform(self.column.take(rows + np.minimum(j, span - 1)))
            total += np.where((j < span).reshape(-1, *(1,) * len(shape)), self.gamma**j * reward, 0.0)
        total = total.astype(dtype, copy=False)
        return total if shape else total[:, None]


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that follows from where the samples lie."""

    row_bytes: int
    values: Callable[[Samples], Array]
    fills: bool = False

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        return self.values(samples)


def done(terminated: Rows, truncated: Rows) -> Computed:
    """``next/done`` [B, 1]: terminated or truncated."""

    def values(samples: Samples) -> Array:
        flags: Array = samples.outcome(terminated) | samples.outcome(truncated)
        return flags[..., None]

    return Computed(1, values, fills=True)


def discount(gamma: float, n_step: int, reward: Rows) -> Computed:
    """``next/discount`` [B, 1]: gamma to the number of steps summed up, in the dtype of their rewards."""
    powers = (gamma ** np.arange(n_step + 1.0)).astype(np.result_type(reward.values.dtype, np.float32))
    return Computed(8, lambda samples: powers.take(samples.span)[:, None])


def observed() -> Computed:
    """``next/observed`` [B, 1]: whether the next observation is recorded, and not a repeat of the last one."""

    def values(samples: Samples) -> Array:
        known: Array = samples.step + samples.span < samples.each(samples.table.observed)
        return known[..., None]

    return Computed(1, values, fills=True)


def step() -> Computed:
    """``step``: within the episode."""
    return Computed(8, lambda samples: samples.step.copy())


def episode() -> Computed:
    """``episode``: k of ``ds.episode(k)``."""

    def values(samples: Samples) -> Array:
        return np.broadcast_to(samples.each(samples.table.number), samples.here.shape).copy()

    return Computed(8, values)


def index() -> Computed:
    """``index``: i of ``ds[i]``; -1 for a step that is no transition, since its next observation is not known."""

    def values(samples: Samples) -> Array:
        table = samples.table
        is_transition = samples.step < samples.each(table.transitions)
        return np.where(is_transition, samples.each(table.index) + samples.step, -1)

    return Computed(8, values)


def mask() -> Computed:
    """``mask`` [B, L]: False where a step lies outside its episode."""

    def values(samples: Samples) -> Array:
        assert isinstance(samples, SliceSamples)
        return samples.mask

    return Computed(1, values)


def root_flag() -> Computed:
    """``done``, ``terminated`` or ``truncated`` at the root [B, 1]: False on every step."""
    return Computed(1, lambda samples: np.zeros((*samples.here.shape, 1), bool))
