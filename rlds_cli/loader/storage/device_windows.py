"""The rows of windows that were drawn on a device, found there: what `kernel.Plan` does of others on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import torch

from rlds_cli.loader.arrays.frameworks import ship
from rlds_cli.loader.fields.columns import BatchColumn
from rlds_cli.loader.index import PROBABILITY, WEIGHT, WINDOW, DeviceWindows, WindowIndex
from rlds_cli.loader.kernel import OF_WINDOW, Place, Value
from rlds_cli.ted import Array, IntArray


class DrawnSteps(NamedTuple):
    """The steps of some windows, tensors [K], or [K, L] of windows with an axis of steps.

    ``row`` counts the held rows, ``inside`` says which steps are inside their episode (None: all). ``drawn`` are the
    windows [K].
    """

    drawn: DeviceWindows
    episode: torch.Tensor
    step: torch.Tensor
    row: torch.Tensor
    inside: torch.Tensor | None


Made = Callable[[DrawnSteps], torch.Tensor]


class DeviceWindowTable:
    """The episodes of windows on a device.

    Parameters
    ----------
    pool : WindowIndex
    held : int array [episodes]
        First held row of each episode.
    device : torch.device
    """

    def __init__(self, pool: WindowIndex, held: IntArray, device: torch.device) -> None:
        table, first = pool.table, pool.prefix.starts
        made = ship({"ends": first + pool.prefix.counts, "first": first, "held": held, "steps": table.steps}, device)
        self._ends, self._first, self._held, self._steps = made.values()
        self._stride, self._offset = pool.starts

    def entries(self, drawn: DeviceWindows, length: int) -> DrawnSteps:
        """Return the entries of windows of ``length`` steps; 0 is one, without an axis."""
        episode = torch.searchsorted(self._ends, drawn.drawn, right=True)
        step = (drawn.drawn - self._first[episode]) * self._stride + self._offset
        if not length:
            return DrawnSteps(drawn, episode, step, self._held[episode] + step, None)
        episode = episode.unsqueeze(1)
        at = step.unsqueeze(1) + torch.arange(length, device=step.device)
        steps = self._steps[episode]
        step = torch.minimum(at.clamp(min=0), steps - 1)
        return DrawnSteps(drawn, episode.expand_as(at), step, self._held[episode] + step, step == at)


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
    o, table = column.outputs[0], pool.table
    if column.finish is not None or column.decoding is not None:
        return None
    if name in _DRAWN:
        kind, of = torch.from_numpy(np.empty(0, o.dtype)).dtype, _DRAWN[name]
        return lambda e: _shaped(of(e.drawn).to(kind), e, o.shape)
    if o.value is Value.STEP:
        return lambda e: e.step
    if o.value is Value.INSIDE and o.place is Place.HERE and o.mask == OF_WINDOW:
        return lambda e: torch.ones_like(e.step, dtype=torch.bool) if e.inside is None else e.inside
    if o.value is Value.OBSERVED:
        observed = _sent(table.observed, device)
        return lambda e: _shaped(e.step + 1 < observed[e.episode], e, o.shape)
    if o.value is Value.ZERO and not o.shape[1:]:
        return lambda e: torch.zeros((*e.step.shape, *o.shape), dtype=torch.bool, device=device)
    if o.place is Place.EPISODE and o.source is not None and o.dtype == np.int64:
        numbers, transitions = _sent(o.source, device), _sent(table.transitions, device)
        if o.value is Value.COPY:
            return lambda e: numbers[e.episode]
        if o.value is Value.INDEX:
            return lambda e: torch.where(e.step < transitions[e.episode], numbers[e.episode] + e.step, -1)
    return None


_DRAWN: dict[str, Callable[[DeviceWindows], torch.Tensor]] = {
    PROBABILITY: lambda d: d.chance,
    WEIGHT: lambda d: d.importance,
    WINDOW: lambda d: d.drawn,
}


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def zero(values: torch.Tensor, places: torch.Tensor) -> None:
    """Zero values [K, L, ...] at places, bool [K, L], without waiting for the device."""
    bits = _BITS.get(values.element_size())  # some unsigned integers cannot be set
    values = values if bits is None else values.view(bits)
    values.masked_fill_(places.reshape(*places.shape, *(1,) * (values.ndim - 2)), 0)


def _sent(values: Array, device: torch.device) -> torch.Tensor:
    return ship({"": values}, device)[""]


def _shaped(values: torch.Tensor, e: DrawnSteps, shape: tuple[int, ...]) -> torch.Tensor:
    """Return values [K] or [K, L] as [K, *shape] or [K, L, *shape], of ones; those of a window at each of its steps."""
    steps = values if values.ndim == e.step.ndim else values.unsqueeze(1).expand_as(e.step).contiguous()
    return steps.reshape(*e.step.shape, *shape)
