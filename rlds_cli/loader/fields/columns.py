"""The columns of a batch: each reads or computes its values for the samples of one gather."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rlds_cli.loader.index import PrefixIndex
from rlds_cli.loader.storage.memory import Decoding
from rlds_cli.loader.windows import nstep
from rlds_cli.loader.windows.offsets import Grid, OffsetSamples
from rlds_cli.loader.windows.samples import ColumnRows, Points, RowSet, Samples
from rlds_cli.ted import Array, BoolArray, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


class BatchColumn(Protocol):
    """One field of the batch."""

    @property
    def row_bytes(self) -> int:
        """Bytes per step of a sample."""
        ...

    def read(self, samples: Samples) -> Array:
        """Return values [K, ...] or [K, L, ...], contiguous, in memory of their own."""
        ...

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return which steps are real, not filled [K] or [K, L]; None if all are."""
        ...


@runtime_checkable
class MappedColumn(Protocol):
    """A column that reads rows of a map."""

    @property
    def column(self) -> ColumnRows | None:
        """The mapped column; None where the field has no map."""
        ...

    def place(self, samples: Samples) -> RowSet:
        """Return the rows that are read, about."""
        ...


@runtime_checkable
class FieldLike(Protocol):
    """A column that holds values of another field, and is transformed like it."""

    @property
    def like(self) -> str:
        """Name of the field."""
        ...


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """A field of the store, from its map.

    ``late`` reads the outcome, at the last step of a sample; ``shift=1`` reads the row after it; ``flag`` adds an axis
    of one element, since rewards and flags are [B, 1].
    """

    column: ColumnRows
    late: bool = False
    shift: int = 0
    flag: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.column.row_bytes

    def place(self, samples: Samples) -> RowSet:
        """Return the rows before ``shift``."""
        return samples.last if self.late else samples.here

    def read(self, samples: Samples) -> Array:
        """Return the values, see `BatchColumn`."""
        if self.flag:
            return samples.outcome(self.column)[..., None]
        return self.place(samples).take(self.column, self.shift)

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `BatchColumn`."""
        return samples.mask


@dataclass(frozen=True, slots=True)
class DecodedColumn:
    """A field of frames or text, decoded by the dataset."""

    dataset: Dataset
    name: str
    late: bool = False
    shift: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, decoded."""
        return self.dataset.schema[self.name].row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the values, see `BatchColumn`."""
        place: RowSet = samples.last if self.late else samples.here
        return Decoding(self.dataset, self.name).among(samples, place.rows + self.shift)

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `BatchColumn`."""
        return samples.mask


@dataclass(frozen=True, slots=True)
class StackedColumn:
    """The rows of a field at several offsets: [K, k, ...]; ``flag`` is as in `FieldColumn`."""

    read_rows: Callable[[RowSet], Array]
    offsets: tuple[int, ...]
    observed: bool
    bytes_of_one: int
    flag: bool = False
    column: ColumnRows | None = None  # where it is mapped

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows of a sample."""
        return len(self.offsets) * self.bytes_of_one

    def place(self, samples: Samples) -> RowSet:
        """Return the rows."""
        return self._grid(samples)

    def read(self, samples: Samples) -> Array:
        """Return the values, see `BatchColumn`."""
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
class RewardSumColumn:
    """The discounted sum of rewards over an n-step sample, in ``dtype``; ``transform`` applies to each reward."""

    column: ColumnRows
    gamma: float
    transform: Callable[[Array], Array] | None
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of a reward."""
        return self.column.row_bytes

    def read(self, samples: Samples) -> Array:
        """Return the sums, added up in float64, see `BatchColumn`."""
        span = np.asarray(samples.span)
        total = nstep.reward_sum(self.column, self.gamma, self.transform, samples.here.rows, span)
        total = total.astype(self.dtype, copy=False)
        return total if total.ndim > 1 else total[:, None]

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return None: all steps summed up are real."""
        return None


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column computed from the places of the samples."""

    row_bytes: int
    values: Callable[[Samples], Array]
    fills: bool = False  # as stored fields do

    def read(self, samples: Samples) -> Array:
        """Return the values, see `BatchColumn`."""
        return self.values(samples)

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, of columns that are filled."""
        return samples.mask if self.fills else None


@dataclass(frozen=True, slots=True)
class DoneColumn:
    """``next/done`` [B, 1]: terminated or truncated."""

    terminated: ColumnRows
    truncated: ColumnRows
    row_bytes: int = 1

    def read(self, samples: Samples) -> Array:
        """Return the values, see `BatchColumn`."""
        flags: Array = samples.outcome(self.terminated) | samples.outcome(self.truncated)
        return flags[..., None]

    def mask(self, samples: Samples) -> BoolArray | None:
        """Return the steps that are real, see `BatchColumn`."""
        return samples.mask


def discount(gamma: float, n_step: int, dtype: np.dtype[Any]) -> ComputedColumn:
    """``next/discount`` [B, 1]: gamma to the power of the steps summed."""
    powers = (gamma ** np.arange(n_step + 1.0)).astype(dtype)
    return ComputedColumn(8, lambda samples: powers.take(samples.span)[:, None])


def span() -> ComputedColumn:
    """``steps_to_next_obs`` [B, 1]: the number of steps summed."""
    return ComputedColumn(8, lambda samples: np.array(samples.span, np.int64)[:, None])


def observed() -> ComputedColumn:
    """``next/observed`` [B, 1]: True if the next observation is recorded and not a repeat of the last one."""

    def values(samples: Samples) -> Array:
        known: Array = samples.step + samples.span < samples.each(samples.table.observed)
        return known[..., None]

    return ComputedColumn(1, values, fills=True)


def step() -> ComputedColumn:
    """``step``: number of the step within its episode."""
    return ComputedColumn(8, lambda samples: samples.step.copy())


def episode() -> ComputedColumn:
    """``episode``: k of ``ds.episode(k)``."""

    def values(samples: Samples) -> Array:
        return np.broadcast_to(samples.each(samples.table.number), samples.here.shape).copy()

    return ComputedColumn(8, values)


def index() -> ComputedColumn:
    """``index``: i of ``ds[i]``; -1 for a step that is no transition, since its next observation is not known."""

    def values(samples: Samples) -> Array:
        table = samples.table
        is_transition = samples.step < samples.each(table.transitions)
        return np.where(is_transition, samples.each(table.index) + samples.step, -1)

    return ComputedColumn(8, values)


def mask() -> ComputedColumn:
    """``mask`` [B, L]: False where a step lies outside its episode."""

    def values(samples: Samples) -> Array:
        assert samples.mask is not None
        return samples.mask

    return ComputedColumn(1, values)


def grid_mask(offsets: tuple[int, ...], observed: bool) -> ComputedColumn:
    """``mask/FIELD`` [B, k]: False where an offset lies outside the episode."""

    def values(samples: Samples) -> Array:
        assert isinstance(samples, OffsetSamples)
        return samples.grid(offsets, observed).mask

    return ComputedColumn(len(offsets), values)


def probability() -> ComputedColumn:
    """``probability`` [B] or [B, L]: the chance with which a draw gives this sample."""

    def values(samples: Samples) -> Array:
        return np.array(samples.spread(samples.once("probability", samples.drawn.probability)))

    return ComputedColumn(8, values)


def weight() -> ComputedColumn:
    """``weight`` [B, 1] or [B, L, 1]: importance weights of prioritised draws, the largest possible one being 1."""

    def values(samples: Samples) -> Array:
        assert samples.drawn.weight is not None
        return np.array(samples.spread(samples.drawn.weight))[..., None]

    return ComputedColumn(8, values)


def window(prefix: PrefixIndex) -> ComputedColumn:
    """``window`` [B] or [B, L]: the number of the window, by which priorities are updated."""

    def values(samples: Samples) -> Array:
        drawn = samples.drawn
        return np.array(samples.spread(prefix.starts.take(drawn.episode) + drawn.number))

    return ComputedColumn(8, values)


def source(sources: IntArray) -> ComputedColumn:
    """``source`` [B] or [B, L]: number of the archive file, in ``ds.sources``; ``sources`` by episode."""

    def values(samples: Samples) -> Array:
        numbers = sources.take(samples.table.number.take(samples.episode))
        return np.array(samples.spread(numbers.astype(np.int64)))

    return ComputedColumn(8, values)


@dataclass(frozen=True, slots=True)
class NeighbourColumn:
    """A field at the step after a sample's last one, or before its first.

    Where the episode has no such step, values are zero, also after transforms. ``zeroed`` windows have zeros outside.
    """

    read_rows: Callable[[Points], Array]
    distance: int
    row_bytes: int
    flag: bool = False
    zeroed: bool = False

    def read(self, samples: Samples) -> Array:
        """Return the values, see `BatchColumn`; those to be zeroed are arbitrary."""
        step = self._step(samples)
        rows = samples.each(samples.table.start) + step.clip(0, samples.each(samples.table.steps) - 1)
        values = self.read_rows(Points(rows))
        return values[..., None] if self.flag else values

    def mask(self, samples: Samples) -> BoolArray:
        """Return which neighbouring steps lie inside the episode."""
        step = self._step(samples)
        inside: BoolArray = (step >= 0) & (step < samples.each(samples.table.steps))
        return inside & samples.mask if self.zeroed and samples.mask is not None else inside

    def _step(self, samples: Samples) -> IntArray:
        return samples.step + self.distance + (samples.span - 1 if self.distance > 0 else 0)


def root_flag() -> ComputedColumn:
    """``done``, ``terminated`` or ``truncated`` at the root [B, 1]: False on every step."""
    return ComputedColumn(1, lambda samples: np.zeros((*samples.here.shape, 1), bool))
