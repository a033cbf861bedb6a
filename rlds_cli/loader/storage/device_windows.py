"""The rows of windows that were drawn on a device, found there: what `kernel.Plan` does of others on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property

import numpy as np
import torch

from rlds_cli.base.array_types import IntArray
from rlds_cli.loader.arrays.frameworks import send, settable, ship, tensor_dtype
from rlds_cli.loader.fields.columns import BatchColumn
from rlds_cli.loader.index import PROBABILITY, WEIGHT, WINDOW, DeviceWindows, WindowIndex
from rlds_cli.loader.kernel import OF_WINDOW, Output, RowPlace, Value


class DrawnSteps:
    """The steps of windows that were drawn, tensors [K], or [K, L] of windows with an axis of steps.

    Attributes
    ----------
    drawn : DeviceWindows
    episode : tensor [K] or [K, 1]
        Rows of the table of episodes.
    row : tensor
        The held row of each step; of a step outside its episode, that of the nearest one inside.
    """

    def __init__(self, table: DeviceWindowTable, drawn: DeviceWindows, length: int) -> None:
        self.drawn, self._table, self._length = drawn, table, length
        episode = torch.searchsorted(table.ends, drawn.drawn, right=True)
        self.episode = episode.unsqueeze(1) if length else episode
        plain = table.plain and not length
        self.row = drawn.drawn + table.lag[episode] if plain else self.step + table.held[self.episode]

    @property
    def shape(self) -> torch.Size:
        """Shape of `row`."""
        return self.row.shape

    @cached_property
    def _start(self) -> torch.Tensor:
        """The step that each window starts at."""
        t, drawn = self._table, self.drawn.drawn.unsqueeze(1) if self._length else self.drawn.drawn
        return (drawn - t.first[self.episode]) * t.stride + t.offset

    @cached_property
    def _inner(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The first and the last step of each window inside its episode."""
        last = torch.minimum(self._start + self._length, self._table.steps[self.episode]) - 1
        return self._start.clamp(min=0), last

    @cached_property
    def _asked(self) -> torch.Tensor:
        """Steps, also those outside their episode, on the side where these are."""
        if not self._length:
            return self._start
        (first, last), pad = self._inner, self._table.pad
        begin = last - self._length + 1 if pad == "left" else first if pad == "right" else self._start
        return begin + torch.arange(self._length, device=begin.device)

    @cached_property
    def step(self) -> torch.Tensor:
        """Number of each step within its episode; of one outside, that of the nearest one inside."""
        if not self._length:
            return self._start
        first, last = self._inner
        return torch.minimum(torch.maximum(self._asked, first), last)

    @cached_property
    def inside(self) -> torch.Tensor:
        """Whether each step is inside its episode."""
        return self.step == self._asked


Made = Callable[[DrawnSteps], torch.Tensor]


class DeviceWindowTable:
    """The episodes of windows on a device.

    Parameters
    ----------
    pool : WindowIndex
    held : int array [episodes]
        First held row of each episode.
    device : torch.device

    Attributes
    ----------
    plain : bool
        Whether window i of an episode starts at step i: then a held row is a window plus ``lag`` [episodes].
    """

    def __init__(self, pool: WindowIndex, held: IntArray, device: torch.device) -> None:
        table, first = pool.table, pool.prefix.starts
        ends, lag = first + pool.prefix.counts, held - first
        made = ship({"ends": ends, "first": first, "held": held, "lag": lag, "steps": table.steps}, device)
        self.ends, self.first, self.held, self.lag, self.steps = made.values()
        self.stride, self.offset = pool.starts
        self.pad = pool.pad
        self.plain = pool.starts == (1, 0)


def makers(
    columns: Mapping[str, BatchColumn], pool: WindowIndex, changed: Collection[str], device: torch.device
) -> dict[str, Made] | None:
    """Return how the device makes columns that are not held rows; None where it cannot make one of them."""
    made: dict[str, Made] = {}
    for name, column in columns.items():
        how = None if column.mask and name in changed else _maker(name, column, pool, device)
        if how is None:
            return None
        made[name] = how
    return made


def _maker(name: str, column: BatchColumn, pool: WindowIndex, device: torch.device) -> Made | None:
    o = column.outputs[0]
    if column.finish is not None or column.decoding is not None:
        return None
    if name in _DRAWN:
        kind, of = tensor_dtype(o.dtype), _DRAWN[name]
        return lambda e: _shaped(of(e.drawn).to(kind, copy=True), e, o.shape)  # a draw ahead keeps its own
    if o.value is Value.STEP:
        return lambda e: e.step
    if o.value is Value.INSIDE and o.place is RowPlace.HERE and o.mask == OF_WINDOW:
        return lambda e: e.inside
    if o.value is Value.OBSERVED:
        observed = send(pool.table.observed, device)
        return lambda e: _shaped(e.step + 1 < observed[e.episode], e, o.shape)
    if o.value is Value.ZERO and not o.shape[1:]:
        return lambda e: torch.zeros((*e.shape, *o.shape), dtype=torch.bool, device=device)
    if o.place is RowPlace.EPISODE and o.source is not None and o.dtype == np.int64:
        return _of_episode(o, pool, device)
    return None


_DRAWN: dict[str, Callable[[DeviceWindows], torch.Tensor]] = {
    PROBABILITY: lambda d: d.chance,
    WEIGHT: lambda d: d.importance,
    WINDOW: lambda d: d.drawn,
}


def _of_episode(o: Output, pool: WindowIndex, device: torch.device) -> Made | None:
    """Return how a number of the episode is made: itself, or the number of the transition at each step."""
    assert o.source is not None
    table, prefix = pool.table, pool.prefix
    if o.value is Value.COPY:
        numbers = send(o.source, device)
        return lambda e: numbers[e.episode].expand(e.shape).contiguous()
    if o.value is not Value.INDEX:
        return None
    lag = send(o.source - prefix.starts, device)
    numbers, transitions = send(o.source, device), send(table.transitions, device)
    alone = pool.starts == (1, 0) and np.array_equal(prefix.counts, table.transitions)  # a window is a transition

    def index(e: DrawnSteps) -> torch.Tensor:
        if alone and e.row.ndim == 1:
            return e.drawn.drawn + lag[e.episode]
        return torch.where(e.step < transitions[e.episode], numbers[e.episode] + e.step, -1)

    return index


def zero(values: torch.Tensor, places: torch.Tensor) -> None:
    """Zero values [K, L, ...] at places, bool [K, L], without waiting for the device."""
    settable(values).masked_fill_(places.reshape(*places.shape, *(1,) * (values.ndim - 2)), 0)


def _shaped(values: torch.Tensor, e: DrawnSteps, shape: tuple[int, ...]) -> torch.Tensor:
    """Return values [K] or [K, L] as [K, *shape] or [K, L, *shape], of ones; those of a window at each of its steps."""
    steps = values if values.ndim == e.row.ndim else values.unsqueeze(1).expand(e.shape).contiguous()
    return steps.view(*e.shape, *shape) if shape else steps
