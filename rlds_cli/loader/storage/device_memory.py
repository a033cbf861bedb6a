"""Columns held in a device's memory: row numbers are copied there, values are gathered there.

::

    host     which rows, for many batches at a time  ----- one copy: rows, and columns worked out on the host -----.
    device   columns of the store [rows, ...]  -- index_select --  columns of the gather [K, ...]  <---------------'

Only rows of the episodes drawn from are held, floats in the loader's working dtype. A draw that learns moves to the
device, too: where each column is held, or made of a window's number, the host copies its random numbers there and
nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from rlds_cli.base import text
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import InvalidArgument, NeedsMemory
from rlds_cli.loader.arrays.frameworks import ArrayBackend, TorchArrays, tensor_dtype
from rlds_cli.loader.compiled import CompiledColumns
from rlds_cli.loader.fields.columns import INT64, BatchColumn
from rlds_cli.loader.index import DeviceWindows, EpisodeIndex, Located
from rlds_cli.loader.kernel import Output, RowPlace, Value, address
from rlds_cli.loader.read import DatasetSource, Gathered
from rlds_cli.loader.samplers import StatefulDraw
from rlds_cli.loader.storage import memory
from rlds_cli.loader.storage.device_windows import DeviceWindowTable, DrawnSteps, makers, zero
from rlds_cli.loader.storage.remote import RemoteReads

TILE_ROWS = 1 << 16  # uploaded at a time
SPARE = 10  # a tenth of the free memory is left to others

_CHEAPER = 20  # about the ratio of the costs of a byte copied to the device and a byte gathered there

_SIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}  # torch cannot gather the former


def reside(source: DatasetSource, arrays: ArrayBackend) -> DeviceSource:
    """Put the columns of ``source`` on the device of ``arrays``.

    Raises
    ------
    InvalidArgument
        There is no device.
    NeedsMemory
        They do not fit.
    """
    if not isinstance(arrays, TorchArrays) or arrays.device is None:
        raise InvalidArgument(
            'memory="device" is for tensors on a device.', hint='backend="torch", device="cuda", memory="device"'
        )
    return DeviceSource(source, arrays.device, arrays.working)


@dataclass(frozen=True, slots=True)
class DeviceColumn:
    """A column on the device.

    Attributes
    ----------
    values : tensor [rows, ...]
    dtype : torch.dtype
        The column's dtype; unsigned integers are held as signed ones of the same bits.
    """

    values: torch.Tensor
    dtype: torch.dtype

    def take(self, rows: torch.Tensor, *, axis: bool) -> torch.Tensor:
        """Return the values of ``rows`` [...] as [..., *shape], in new memory; ``axis`` adds an axis of one element."""
        taken = self.values.index_select(0, rows.reshape(-1))
        taken = taken if taken.dtype == self.dtype else taken.view(self.dtype)
        shape = (*rows.shape, *self.values.shape[1:], *((1,) if axis else ()))
        return taken if taken.shape == shape else taken.view(shape)


class DeviceSource(DatasetSource):
    """The columns of one dataset, of which stored arrays are held on the device.

    Parameters
    ----------
    source : DatasetSource
    device : torch.device
    floats : str or None
        Dtype in which the loader works with floats.

    Attributes
    ----------
    nbytes : int
        Bytes held on the device.

    Raises
    ------
    NeedsMemory
        They do not fit.
    """

    def __init__(self, source: DatasetSource, device: torch.device, floats: str | None) -> None:
        super().__init__(source.locator, source.columns, source.changed, source.n_step, source.sides)
        self.decodes, self.unread, self.shadowed = source.decodes, source.unread, source.shadowed
        self._stored = {n: c for n, c in self.columns.items() if c.finish is None and _is_held(c.outputs[0])}
        self.held = frozenset(self._stored)
        self._host = {n: c for n, c in self.columns.items() if n not in self._stored}
        self._rows = {n: BatchColumn((_row(c.outputs[0]),), 8, mask=c.mask) for n, c in self._stored.items()}
        # zeroed on the device: here they are row numbers
        self.compiled = CompiledColumns(
            source.locator.pool, self._host | self._rows, {*source.changed, *self.held}, source.n_step
        )
        rows = {_key(c.outputs[0], x): (c.outputs[0], x) for c in self._stored.values() for x in _reads(c.outputs[0])}
        table = self.locator.pool.table
        count = int((table.steps + 1).sum())
        self.nbytes = count * sum(prod(x.shape[1:]) * _dtype(x, floats).itemsize for _, x in rows.values())
        self._check_room(device)
        remote = source.compiled.remote
        self._held = {
            key: _upload(x, _dtype(x, floats), table, count, device, remote, o.scale) for key, (o, x) in rows.items()
        }
        ours = np.cumsum(table.steps + 1) - (table.steps + 1)
        self._there = self._at_drawn(ours, device)
        self._shift: IntArray | None = ours - table.start if (ours != table.start).any() else None
        self._numbers = np.dtype(np.int32 if count < 1 << 31 else np.int64)
        reach = max(1, self.locator.window.extent(self.locator.pool.longest))
        crossing = reach * (self._numbers.itemsize + sum(c.row_bytes for c in self._host.values()))
        self.sample_bytes = max(crossing, self.sample_bytes // _CHEAPER)
        self.packing = f"{text.size_of(self.nbytes)} on {device}"

    def _check_room(self, device: torch.device) -> None:
        free = _free(device)
        if free is not None and self.nbytes > free - free // SPARE:
            raise NeedsMemory(
                f"{', '.join(self._stored)} of {self.locator.pool.dataset.id} take "
                f"{text.size_of(self.nbytes)} on {device}, of which {text.size_of(free)} are free.",
                hint="fewer fields=, fewer episodes (ds.select), or memory=None, which copies each batch to the device",
            )

    def _at_drawn(self, ours: IntArray, device: torch.device) -> Callable[[Located], dict[str, Any]] | None:
        """Move a draw that learns to the device; return how all columns are made there, or None where that cannot be.

        ``ours`` [episodes] are the first held rows.
        """
        draw, pool = self.locator.draw, self.locator.pool
        if not isinstance(draw, StatefulDraw):
            return None
        draw.move_to(device)
        outputs = [c.outputs[0] for c in self._stored.values()]
        late = any(c.mask and name in self.changed for name, c in self._stored.items())  # zeroed after transforms
        made = makers(self._host, pool, self.changed, device)
        if made is None or late or self.n_step is not None or any(o.place is RowPlace.OFFSETS for o in outputs):
            return None
        windows = DeviceWindowTable(pool, ours, device)
        stored = {n: _Wanted("", c.outputs[0].shift, c.axis, self._of(c.outputs[0])) for n, c in self._stored.items()}
        masked = [name for name, column in self.columns.items() if column.mask]

        def complete(located: Located) -> dict[str, Any]:
            assert isinstance(located.drawn, DeviceWindows)
            steps = DrawnSteps(windows, located.drawn, located.length)
            rows: dict[str, Any] = {"": steps.row}
            values = {n: made[n](steps) if n in made else stored[n].take(rows) for n in self.names}
            for name in masked:
                zero(values[name], ~steps.inside)
            return values

        return complete

    def _of(self, o: Output) -> list[DeviceColumn]:
        """Return the held columns that an output reads."""
        return [self._held[_key(o, x)] for x in _reads(o)]

    def gather_each(self, located: Located, size: int, batches: int) -> Iterator[Gathered]:
        """Read the columns of batches one by one, see `BatchSource`."""
        return (self.gather(located, k * size, size) for k in range(batches))

    @property
    def merges(self) -> bool:
        """False: batches are read one by one."""
        return False

    def gather(self, located: Located, first: int = 0, count: int | None = None) -> Gathered:
        """Read the columns on the host, and the row numbers for the device to gather, see `BatchSource`."""
        if self._there is not None and (count is None or count == len(located)):
            there = self._there
            return Gathered({}, {}, lambda _: there(located))
        n = len(located) if count is None else count
        read, inside = self.compiled.read(located, first, n)
        values = {name: read[name] for name in self._host}
        wanted: dict[str, _Wanted] = {}
        keys: dict[tuple[object, ...], str] = {}
        for name, column in self._stored.items():
            o = column.outputs[0]
            key = keys.setdefault((o.place, o.offsets, id(o.limit)), f"\0{name}")
            if key not in values:
                values[key] = self._numbered(read[name], located.drawn.episode[first : first + n])
            wanted[name] = _Wanted(key, o.shift, column.axis, self._of(o))
        blank = {name: np.nonzero(~real) for name, real in inside.items()}
        return Gathered(values, blank, partial(_complete, self.names, wanted))

    def _numbered(self, rows: IntArray, episode: IntArray) -> Array:
        """Convert rows of the store [K, ...] to rows of the held columns."""
        if self._shift is not None:
            rows = rows + self._shift.take(episode).reshape(-1, *(1,) * (rows.ndim - 1))
        return rows.astype(self._numbers)


class _Wanted(NamedTuple):
    """A column that the device gathers: key of its rows, shift, and held columns, several joined by "or"."""

    rows: str
    shift: int
    axis: bool
    held: list[DeviceColumn]

    def take(self, values: Mapping[str, Any]) -> torch.Tensor:
        """Gather the values."""
        rows = values[self.rows] + self.shift if self.shift else values[self.rows]
        taken = [held.take(rows, axis=self.axis) for held in self.held]
        return taken[0] if len(taken) == 1 else taken[0].logical_or_(taken[1])


def _complete(names: Iterable[str], wanted: Mapping[str, _Wanted], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all columns, from the values copied to the device."""
    return {name: wanted[name].take(values) if name in wanted else values[name] for name in names}


def _is_held(o: Output) -> bool:
    """Return whether the output is the rows of stored columns, which the device can gather."""
    of_rows = o.value in (Value.COPY, Value.NARROW, Value.WIDEN, Value.EITHER) and o.source is not None
    return of_rows and o.place in (RowPlace.HERE, RowPlace.LAST, RowPlace.OFFSETS)


def _row(o: Output) -> Output:
    """Return the output of the row numbers that ``o`` reads, before its shift."""
    return replace(o, value=Value.ROW, dtype=INT64, shape=(), source=None, other=None, shift=0, scale=None)


def _reads(o: Output) -> list[Array]:
    """Return the stored columns that an output reads rows of."""
    return [x for x in (o.source, o.other) if x is not None]


def _key(o: Output, values: Array) -> tuple[int, ...]:
    """Return what tells held columns apart: the rows, and how they are normalised."""
    return address(values), *(address(x) for x in o.scale or ())


def _dtype(values: Array, floats: str | None) -> np.dtype[Any]:
    kind = values.dtype
    return np.dtype(floats) if floats is not None and kind.kind == "f" else kind


def _upload(
    rows: Array,
    dtype: np.dtype[Any],
    table: EpisodeIndex,
    count: int,
    device: torch.device,
    remote: RemoteReads | None,
    scale: tuple[Array, Array] | None,
) -> DeviceColumn:
    """Copy the rows of all episodes, end to end; with ``scale`` normalised as the kernel does, see `Output`."""
    signed = np.dtype(_SIGNED.get(dtype.name, dtype))
    kind = tensor_dtype(signed)
    values = torch.empty((count, *rows.shape[1:]), dtype=kind, device=device)
    at = 0
    for part in _tiles(table):
        with nullcontext() if remote is None else remote.held(rows, part):
            tile = rows.take(part, axis=0)
        if scale is not None:
            tile = (tile - scale[0]).astype(dtype) / scale[1].astype(dtype)
        tile = tile.astype(dtype, copy=False).view(signed)
        values[at : at + len(tile)] = torch.from_numpy(tile)
        at += len(tile)
    return DeviceColumn(values, tensor_dtype(dtype))


def _tiles(table: EpisodeIndex) -> Iterator[IntArray]:
    """Yield the rows of one episode after the other, about `TILE_ROWS` at a time."""
    lengths = table.steps + 1
    ends = np.cumsum(lengths)
    first = 0
    while first < len(table):
        begun = int(ends[first] - lengths[first])
        last = max(first + 1, int(np.searchsorted(ends, begun + TILE_ROWS, "right")))
        some = lengths[first:last]
        within = np.arange(some.sum()) - np.repeat(np.cumsum(some) - some, some)
        yield np.repeat(table.start[first:last], some) + within
        first = last


def _free(device: torch.device) -> int | None:
    """Return the free bytes of a device; None where unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return memory.limit()[0] if device.type == "cpu" else None
