"""The columns of a batch: how each gets its values for the samples of one gather."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rlds_cli.loader.index import Guide
from rlds_cli.loader.storage.memory import Decoding
from rlds_cli.loader.windows import nstep
from rlds_cli.loader.windows.offsets import Grid, OffsetSamples
from rlds_cli.loader.windows.positions import Place, Points, Rows, Samples
from rlds_cli.ted import Array, BoolArray, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


class Column(Protocol):
    """One field of the batch."""

    @property
    def row_bytes(self) -> int:
        """Bytes that a step of a sample takes."""
        ...

    def read(self, samples: Samples) -> Array:
        """Values [K, ...] or [K, L, ...], contiguous, in memory of their own."""
        ...

    def mask(self, samples: Samples) -> BoolArray | None:
        """Where ``fill`` does not apply [K] or [K, L]: steps that are real; None where it never applies."""
        ...


@runtime_checkable
class Mapped(Protocol):
    """A column that reads rows of a map."""

    @property
    def column(self) -> Rows | None:
        """The map; None where the field has none."""
        ...

    def place(self, samples: Samples) -> Place:
        """Which rows, about."""
        ...


@runtime_checkable
class Alike(Protocol):
    """A column that holds values of another field: what transforms do to that field they do to it."""

    @property
    def like(self) -> str:
        """Name of the field."""
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

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.column.row_bytes

    def place(self, samples: Samples) -> Place:
        """Where its rows lie, but for ``shift``."""
        return samples.last if self.late else samples.here

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        if self.flag:
            return samples.outcome(self.column)[..., None]
        return self.place(samples).take(self.column, self.shift)

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `Column`."""
        return samples.mask


@dataclass(frozen=True, slots=True)
class Decoded:
    """Frames or text, through the dataset."""

    dataset: Dataset
    name: str
    late: bool = False
    shift: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, decoded."""
        return self.dataset.schema[self.name].row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        place: Place = samples.last if self.late else samples.here
        return Decoding(self.dataset, self.name).among(samples, place.rows + self.shift)

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `Column`."""
        return samples.mask


@dataclass(frozen=True, slots=True)
class Stacked:
    """The rows of a field at several offsets: [K, k, ...]; ``flag`` is as in `Stored`."""

    read_rows: Callable[[Place], Array]
    offsets: tuple[int, ...]
    observed: bool
    bytes_of_one: int
    flag: bool = False
    column: Rows | None = None  # where it is mapped

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows of a sample."""
        return len(self.offsets) * self.bytes_of_one

    def place(self, samples: Samples) -> Place:
        """Where its rows lie."""
        return self._grid(samples)

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        grid = self._grid(samples)
        if isinstance(self.read_rows, Decoding):
            return self.read_rows.among(samples, grid.rows)
        values = self.read_rows(grid)
        return values[..., None] if self.flag else values

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the rows that are real [K, k]."""
        return self._grid(samples).mask

    def _grid(self, samples: Samples) -> Grid:
        assert isinstance(samples, OffsetSamples)
        return samples.grid(self.offsets, self.observed)


@dataclass(frozen=True, slots=True)
class RewardSum:
    """The discounted sum of rewards over the steps of an n-step sample, in ``dtype``; ``transform`` is for each."""

    column: Rows
    gamma: float
    transform: Callable[[Array], Array] | None
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of a reward."""
        return self.column.row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the sums, added up in float64, see `Column`."""
        span = np.asarray(samples.span)
        total = nstep.reward_sum(self.column, self.gamma, self.transform, samples.here.rows, span)
        total = total.astype(self.dtype, copy=False)
        return total if total.ndim > 1 else total[:, None]

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return None: all steps summed up are real."""
        return None


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that follows from where the samples lie."""

    row_bytes: int
    values: Callable[[Samples], Array]
    fills: bool = False  # as stored fields do

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        return self.values(samples)

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, of columns that are filled."""
        return samples.mask if self.fills else None


@dataclass(frozen=True, slots=True)
class Done:
    """``next/done`` [B, 1]: terminated or truncated."""

    terminated: Rows
    truncated: Rows
    row_bytes: int = 1

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`."""
        flags: Array = samples.outcome(self.terminated) | samples.outcome(self.truncated)
        return flags[..., None]

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `Column`."""
        return samples.mask


def discount(gamma: float, n_step: int, dtype: np.dtype[Any]) -> Computed:
    """``next/discount`` [B, 1]: gamma to the number of steps summed up."""
    powers = (gamma ** np.arange(n_step + 1.0)).astype(dtype)
    return Computed(8, lambda samples: powers.take(samples.span)[:, None])


def span() -> Computed:
    """``steps_to_next_obs`` [B, 1]: how many steps are summed up."""
    return Computed(8, lambda samples: np.array(samples.span, np.int64)[:, None])


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
        assert samples.mask is not None
        return samples.mask

    return Computed(1, values)


def grid_mask(offsets: tuple[int, ...], observed: bool) -> Computed:
    """``mask/FIELD`` [B, k]: False where an offset lies outside the episode."""

    def values(samples: Samples) -> Array:
        assert isinstance(samples, OffsetSamples)
        return samples.grid(offsets, observed).mask

    return Computed(len(offsets), values)


def probability() -> Computed:
    """``probability`` [B] or [B, L]: the chance with which a draw gives this sample."""

    def values(samples: Samples) -> Array:
        return np.array(samples.spread(samples.once("probability", samples.drawn.probability)))

    return Computed(8, values)


def weight() -> Computed:
    """``weight`` [B, 1] or [B, L, 1]: importance weights of prioritised draws, the largest possible one being 1."""

    def values(samples: Samples) -> Array:
        assert samples.drawn.weight is not None
        return np.array(samples.spread(samples.drawn.weight))[..., None]

    return Computed(8, values)


def window(guide: Guide) -> Computed:
    """``window`` [B] or [B, L]: the number of the window, by which priorities are updated."""

    def values(samples: Samples) -> Array:
        drawn = samples.drawn
        return np.array(samples.spread(guide.starts.take(drawn.episode) + drawn.number))

    return Computed(8, values)


def source(sources: IntArray) -> Computed:
    """``source`` [B] or [B, L]: number of the archive file, in ``ds.sources``; ``sources`` by episode."""

    def values(samples: Samples) -> Array:
        numbers = sources.take(samples.table.number.take(samples.episode))
        return np.array(samples.spread(numbers.astype(np.int64)))

    return Computed(8, values)


@dataclass(frozen=True, slots=True)
class Beside:
    """A field of the step after the last one of a sample, or before its first.

    Zeros, also after transforms, where the episode has no such step. ``zeroed`` windows have zeros outside, too.
    """

    read_rows: Callable[[Points], Array]
    distance: int
    row_bytes: int
    flag: bool = False
    zeroed: bool = False

    def read(self, samples: Samples) -> Array:
        """Return the values, see `Column`; what is to be zeros is any."""
        step = self._step(samples)
        rows = samples.each(samples.table.start) + step.clip(0, samples.each(samples.table.steps) - 1)
        values = self.read_rows(Points(rows))
        return values[..., None] if self.flag else values

    def mask(self, samples: Samples) -> BoolArray:
        """Return where the step beside is one of the episode."""
        step = self._step(samples)
        inside: BoolArray = (step >= 0) & (step < samples.each(samples.table.steps))
        return inside & samples.mask if self.zeroed and samples.mask is not None else inside

    def _step(self, samples: Samples) -> IntArray:
        return samples.step + self.distance + (samples.span - 1 if self.distance > 0 else 0)


def root_flag() -> Computed:
    """``done``, ``terminated`` or ``truncated`` at the root [B, 1]: False on every step."""
    return Computed(1, lambda samples: np.zeros((*samples.here.shape, 1), bool))
