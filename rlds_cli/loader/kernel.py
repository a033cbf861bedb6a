"""The compiled core of the loader, see kernel.c: its functions, and plans of what is copied for each sample.

All raw addresses of the project are in this module and in slabs.py. An address is taken of an array that is kept as
long as the address is: by a plan, a table or a tree for its lifetime, by a call until it returns. ctypes lets go of the
GIL during a call, so that other threads run.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from ctypes import Structure, byref, c_char, c_double, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby, pairwise
from math import prod
from operator import is_
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.errors import DamagedDataset, MissingPackage
from rlds_cli.loader.slabs import Slabs

LIBRARY = Path(__file__).with_name("_kernel.so")
SampleNumbers = range | IntArray  # numbers of samples
Floats = npt.NDArray[np.float64]
_NEAR = 64  # bytes: columns of a row that lie so close are fetched together
_FAR = 64  # rows from a step; others are not fetched ahead
_MOST_FETCHED = 512  # bytes of a row that are fetched ahead; the processor foresees the rest


class _Stream(Structure):
    _fields_ = [("seed", c_uint64), ("key", c_uint64), ("salt", c_uint64)]


class _Numbers(Structure):
    _fields_ = [("list", c_void_p), ("first", c_int64), ("step", c_int64)]


class _Prefix(Structure):
    _fields_ = [(n, c_int64) for n in ("count", "total", "shift")] + [(n, c_void_p) for n in ("bounds", "guide")]


class _Windows(Structure):
    _fields_ = [(n, c_int64) for n in ("episodes", "stride", "offset")] + [
        (n, c_void_p) for n in ("start", "steps", "transitions", "observed")
    ]


class _Column(Structure):
    _fields_ = [
        *((n, c_int64) for n in ("value", "place", "amount")),
        ("base", c_void_p),
        *((n, c_int64) for n in ("stride", "size", "count", "given", "doubles", "mask", "blank")),
        *((n, c_void_p) for n in ("other", "offsets", "limit", "shift", "scale")),
    ]


class _Fetch(Structure):
    _fields_ = [("base", c_uint64), *((n, c_int64) for n in ("stride", "place", "amount", "given", "size"))]


class _Plan(Structure):
    _fields_ = [
        ("windows", _Windows),
        ("columns", c_int64),
        ("fetches", c_int64),
        ("column", c_void_p),
        ("fetch", c_void_p),
        *((n, c_int64) for n in ("rows", "n_step")),
        *((n, c_void_p) for n in ("terminated", "truncated")),
        ("stride", c_int64),
        ("pad", c_int64),
    ]


class _Samples(Structure):
    _fields_ = [*((n, c_void_p) for n in ("episode", "number", "given")), ("length", c_int64)]


class _Read(Structure):
    _fields_ = [
        ("column", c_int64),
        ("at", c_uint64),
        *((n, c_int64) for n in ("stride", "size")),
        ("base", c_uint64),
        *((n, c_int64) for n in ("first", "chunk", "per")),
    ]


class _Touch(Structure):
    _fields_ = [
        ("reads", c_int64),
        ("read", c_void_p),
        *((n, c_int64) for n in ("shift", "before")),
        *((n, c_void_p) for n in ("marks", "list")),
        *((n, c_int64) for n in ("room", "count")),
    ]


class _Goals(Structure):
    _fields_ = [
        *((n, c_double) for n in ("current", "future", "random", "log_gamma")),
        *((n, c_int64) for n in ("horizon", "steps")),
        ("limit", c_void_p),
        ("anywhere", _Prefix),
    ]


_LEVELS, _WIDE = 14, 8


class _Tree(Structure):
    _fields_ = [("count", c_int64), ("levels", c_int64), ("sum", c_void_p * _LEVELS), ("least", c_void_p * _LEVELS)]


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as e:
        raise MissingPackage(
            f"{LIBRARY} cannot be loaded: {e}",
            hint="pip install --force-reinstall rlds-cli; in a checkout: make kernel",
        ) from e
    p, i, d = c_void_p, c_int64, c_double
    for name, arguments, result in (
        ("words", (p, i, i, p), None),
        ("uniform", (p, p, i, d, p), None),
        ("below", (p, p, i, i, p), None),
        ("permute", (p, i, i, i, i, p, i, p), i),
        ("find", (p, p, i, p, p), i),
        ("fall", (p, i, p, i, p, i, p), None),
        ("gather", (p, p, i, i, i, p), i),
        ("scatter", (p, p, i, i, p, i, i, p), i),
        ("touch", (p, p, i, i, p), i),
        ("goals", (p, p, p, i, p, p, p), i),
        ("tree_renew", (p, i, i), None),
        ("tree_top", (p, p, p), None),
        ("tree_find", (p, p, i, p), None),
        ("tree_weigh", (p, p, i, d, p, p), i),
        ("tree_draw", (p, p, p, p, i, d, p), i),
        ("tree_update", (p, p, p, i, d, d, d), i),
    ):
        function = getattr(library, f"rlds_{name}")
        function.argtypes, function.restype = arguments, result
    return library


_KERNEL = _load()
_gather, _find = _KERNEL.rlds_gather, _KERNEL.rlds_find
_byte_of, _address_of = c_char.from_buffer, ctypes.addressof


def address(array: Array) -> int:
    """Return the address of an array's first byte; it holds while the array is kept."""
    try:
        return _address_of(_byte_of(array))  # type: ignore[arg-type]  # in a third of the time
    except (TypeError, ValueError):  # it is read-only, empty, or its rows lie apart
        return int(array.__array_interface__["data"][0])


# -- random numbers


def words(seed: int, key: int, salt: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Return words ``first``, ``first + 1``, ... of a stream [count]."""
    out = np.empty(count, np.uint64)
    _KERNEL.rlds_words(byref(_Stream(seed, key, salt)), first, count, address(out))
    return out


def uniform(seed: int, key: int, salt: int, positions: SampleNumbers, scale: float) -> Floats:
    """Return draws in [0, 1) times ``scale``, one for each sample number [K]."""
    out = np.empty(len(positions))
    numbers, kept = _numbers(positions)
    _KERNEL.rlds_uniform(byref(_Stream(seed, key, salt)), byref(numbers), len(out), scale, address(out))
    del kept
    return out


def below(seed: int, key: int, salt: int, positions: SampleNumbers, limit: int) -> IntArray:
    """Return integers in [0, limit), one for each sample number [K]."""
    out = np.empty(len(positions), np.int64)
    numbers, kept = _numbers(positions)
    _KERNEL.rlds_below(byref(_Stream(seed, key, salt)), byref(numbers), len(out), limit, address(out))
    del kept
    return out


def permute(positions: SampleNumbers, total: int, sides: tuple[int, int], keys: npt.NDArray[np.uint32]) -> IntArray:
    """Return where a keyed permutation of [0, total) takes ``positions`` [K].

    It is made of a permutation of Z_a x Z_b for the ``sides`` a and b, whose product is at least the total.

    Raises
    ------
    IndexError
        A position is not below the total.
    """
    if not (0 < total <= sides[0] * sides[1] and min(sides) > 0 and max(sides) <= 1 << 31):
        raise ValueError(f"a permutation of {total} numbers with sides {sides}")
    out = np.empty(len(positions), np.int64)
    numbers, kept = _numbers(positions)
    keys = np.ascontiguousarray(keys, np.uint32)
    bad = _KERNEL.rlds_permute(byref(numbers), len(out), total, *sides, address(keys), len(keys), address(out))
    del kept
    if bad >= 0:
        raise IndexError(f"number {positions[bad]} of {total}")
    return out


def _numbers(positions: SampleNumbers) -> tuple[_Numbers, Array | None]:
    """Return the struct of sample numbers, and the array that it points to."""
    if isinstance(positions, range):
        return _Numbers(None, positions.start, positions.step), None
    kept = np.ascontiguousarray(positions, np.int64)
    return _Numbers(address(kept), 0, 0), kept


# -- tables


class PrefixTable:
    """Finds intervals of numbers.

    Parameters
    ----------
    bounds : int64 array [count + 1]
        First number of each interval, and the total. Ascending from 0.
    guide : int32 array
        First interval of each slice of ``2**shift`` numbers.
    shift : int

    Raises
    ------
    DamagedDataset
        Bounds that do not ascend, as those of episodes of negative length do.
    """

    def __init__(self, bounds: IntArray, guide: npt.NDArray[np.int32], shift: int) -> None:
        bounds, guide = np.ascontiguousarray(bounds, np.int64), np.ascontiguousarray(guide, np.int32)
        self._kept = bounds, guide
        count, total = len(bounds) - 1, int(bounds[-1])
        if bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any():
            raise DamagedDataset("the numbers of steps of the episodes are not possible.")
        if total and not (len(guide) > (total - 1) >> shift and guide.min() >= 0 and guide.max() < count):
            raise ValueError(f"a guide table that does not fit {count:,} intervals")
        self.struct = _Prefix(count, total, shift, address(bounds), address(guide))
        self.sent = byref(self.struct)

    def find(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return the interval of every number [K], and the number's place within it.

        Raises
        ------
        IndexError
            A number is not below the total.
        """
        numbers = np.ascontiguousarray(numbers, np.int64)
        interval, within = np.empty((2, *numbers.shape), np.int64)
        bad = _KERNEL.rlds_find(self.sent, address(numbers), numbers.size, address(interval), address(within))
        if bad >= 0:
            raise IndexError(f"number {numbers.reshape(-1)[bad]} of {self.struct.total}")
        return interval, within


def fall(ends: Floats, guide: npt.NDArray[np.int32], u: Floats) -> IntArray:
    """Return the item that each draw ``u`` [K], in [0, 1), falls on.

    ``ends`` [n] are the running sums of the items' weights, ``guide`` [slices] the first item of each equal slice.
    """
    assert len(ends) and len(guide) and ends.dtype == np.float64 and guide.dtype == np.int32
    u, out = np.ascontiguousarray(u, np.float64), np.empty(len(u), np.int64)
    _KERNEL.rlds_fall(address(ends), len(ends), address(guide), len(guide), address(u), len(u), address(out))
    return out


class SumTree:
    """The masses of the numbers 0..count-1, from which numbers are drawn in proportion to their mass.

    Eight masses make a node, which is one cache line, eight nodes a node above. A million masses have seven levels; a
    mass takes 8 bytes, and 2.3 for the levels above.

    Parameters
    ----------
    count : int
        At least 1.
    mass : float
        Of every number at first. Masses are positive, and their sum is finite; a number of mass zero is never drawn.
    capacity : int, optional
        Numbers for which there is room, with mass zero; ``count`` without it.
    """

    def __init__(self, count: int, mass: float, capacity: int | None = None) -> None:
        self.count = count
        self.capacity = count if capacity is None else capacity
        sizes = [self.capacity]
        while sizes[-1] > _WIDE:
            sizes.append(-(-sizes[-1] // _WIDE))
        padded = [-(-size // _WIDE) * _WIDE for size in sizes]
        every = np.split(_aligned(sum(padded) + sum(padded[1:])), np.cumsum([*padded, *padded[1:]])[:-1])
        self._sums, least = every[: len(padded)], every[len(padded) :]
        self._least = [self._sums[0], *least]
        addresses = [(c_void_p * _LEVELS)(*map(address, level)) for level in (self._sums, self._least)]
        self._tree = _Tree(count, len(sizes), *addresses)
        self._sent = byref(self._tree)
        self.fill(mass)

    @property
    def masses(self) -> Floats:
        """All masses [count]: a view, not to be written."""
        return self._sums[0][: self.count]

    @property
    def total(self) -> float:
        """The sum of the masses."""
        return self._top()[0]

    @property
    def least(self) -> float:
        """The smallest mass."""
        return self._top()[1]

    def _top(self) -> tuple[float, float]:
        total, smallest = c_double(), c_double()
        _KERNEL.rlds_tree_top(self._sent, byref(total), byref(smallest))
        return total.value, smallest.value

    def fill(self, masses: Floats | float) -> None:
        """Set all masses [count], or one for all."""
        self.set(0, self.count, masses)

    def set(self, first: int, stop: int, masses: Floats | float) -> None:
        """Set the masses of numbers [first, stop), which may be zero."""
        if not 0 <= first <= stop <= self.count:
            raise IndexError(f"numbers {first} to {stop} of {self.count}")
        self._sums[0][first:stop] = masses
        _KERNEL.rlds_tree_renew(self._sent, first, stop)

    def extend(self, masses: Floats) -> None:
        """Add numbers at the end; there must be room for them."""
        first, stop = self.count, self.count + len(masses)
        if stop > self.capacity:
            raise IndexError(f"{stop} numbers in a tree for {self.capacity}")
        self.count = self._tree.count = stop
        self.set(first, stop, masses)

    def find(self, u: Floats) -> IntArray:
        """Return the number that each draw ``u`` [K], in [0, 1), falls on."""
        u, out = np.ascontiguousarray(u, np.float64), np.empty(len(u), np.int64)
        _KERNEL.rlds_tree_find(self._sent, address(u), len(u), address(out))
        return out

    def weigh(self, numbers: IntArray, beta: float) -> tuple[Floats, Floats]:
        """Return the chance of each of ``numbers`` [K], and ``(smallest mass / mass) ** beta``."""
        numbers = np.ascontiguousarray(numbers, np.int64)
        chance, weight = np.empty((2, len(numbers)))
        bad = _KERNEL.rlds_tree_weigh(
            self._sent, address(numbers), len(numbers), beta, address(chance), address(weight)
        )
        if bad >= 0:
            raise IndexError(f"number {numbers[bad]} of {self.count}")
        return chance, weight

    def draw(
        self, stream: tuple[int, int, int], positions: SampleNumbers, prefix: PrefixTable, beta: float, into: TreeDraws
    ) -> None:
        """Draw numbers by ``stream``, the seed, key and salt of `uniform`, into memory of as many, in one call."""
        if len(positions) != into.count:
            raise ValueError(f"{len(positions)} draws into memory of {into.count}")
        into.tell(stream, positions)
        bad = _KERNEL.rlds_tree_draw(self._sent, prefix.sent, *into.told, into.count, beta, into.at)
        if bad >= 0:
            raise IndexError(f"number {into.number[bad]} of {prefix.struct.total}")

    def update(self, numbers: IntArray, priority: Floats, *, eps: float, alpha: float, most: float) -> int | None:
        """Set masses to ``(priority + eps) ** alpha``; where a number stands twice, its last priority counts.

        Returns
        -------
        int or None
            The place of a number or priority that is not possible; then nothing is changed.
        """
        numbers, priority = np.ascontiguousarray(numbers, np.int64), np.ascontiguousarray(priority, np.float64)
        if len(numbers) != len(priority):
            raise ValueError(f"{len(priority)} priorities for {len(numbers)} numbers")
        bad = _KERNEL.rlds_tree_update(self._sent, address(numbers), address(priority), len(numbers), eps, alpha, most)
        return None if bad < 0 else int(bad)


class TreeDraws:
    """Memory of ``count`` draws, which further draws are written into.

    Attributes
    ----------
    number, interval, within : int64 arrays [count]
        As `SumTree.find` and `PrefixTable.find` return them.
    chance, weight : float64 arrays [count]
        As `SumTree.weigh` returns them.
    at, told
        The address of the memory, and what `tell` sets, for the kernel.
    """

    def __init__(self, count: int) -> None:
        out = np.empty((5, count), np.int64)
        self.count, self.number, self.interval, self.within = count, out[0], out[1], out[2]
        self.chance, self.weight = out[3:].view(np.float64)
        self._stream, self._numbers, self.at = _Stream(), _Numbers(), address(out)
        self.told = byref(self._stream), byref(self._numbers)

    def tell(self, stream: tuple[int, int, int], positions: SampleNumbers) -> None:
        """Set what the kernel is told: the stream and the sample numbers [count]."""
        of, numbers = self._stream, self._numbers
        of.seed, of.key, of.salt = stream
        if isinstance(positions, range):
            numbers.list, numbers.first, numbers.step = None, positions.start, positions.step
        else:
            self._kept = np.ascontiguousarray(positions, np.int64)
            numbers.list = address(self._kept)


def _aligned(size: int) -> Floats:
    """Return zeros that start at a cache line; many of them at a huge page, which NumPy asks the system for."""
    unit = _HUGE if 8 * size >= 2 * _HUGE else 64
    raw = np.zeros(size + unit // 8)
    skip = -address(raw) % unit // 8
    return raw[skip : skip + size]


_HUGE = 2 << 20  # bytes: the translations of a few million masses stay in the processor


# -- plans


class RowPlace(IntEnum):
    """The rows of a column, see kernel.c."""

    HERE, LAST, NEIGHBOUR, OFFSETS, GIVEN, EPISODE, SPAN, SAMPLE = range(8)


class Value(IntEnum):
    """The values that are written of each row, see kernel.c."""

    COPY, NARROW, WIDEN, EITHER, SUM, ROW, INSIDE, STEP, INDEX, OBSERVED, DISTANCE, ZERO = range(12)


_PADS = None, "left", "right"  # of windows, as in kernel.c
_CASTS = {("float64", "float32"): Value.NARROW, ("float32", "float64"): Value.WIDEN}
OF_WINDOW, OF_PLACE = 1, 2  # bits of `Output.mask`


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """One array that the kernel writes: [n, *shape], [n, L, *shape] or, with offsets, [n, k, *shape].

    Attributes
    ----------
    value : Value
    dtype : numpy.dtype
    shape : tuple of int
        Of one row.
    place : RowPlace
    amount : int
        Of `RowPlace.NEIGHBOUR`, the distance in steps.
    source : array [rows, ...], optional
        The values: rows may lie apart, a row is contiguous.
    shift : int
        Rows by which ``source`` is read further on.
    given : callable, optional
        From samples to an array [n], of their values or of their rows.
    other : array, optional
        The other flag of `Value.EITHER`, powers of the discount of `Value.SUM`.
    offsets : tuple of int
        Of `RowPlace.OFFSETS`.
    limit : int array [episodes], optional
        Rows of each episode that offsets may reach.
    mask : int
        What counts as outside: `OF_WINDOW`, `OF_PLACE`.
    blank : bool
        Write zeros outside.
    scale : pair of arrays, optional
        Shift and scale: values become ``float32(x - shift) / float32(scale)``, with the difference in float64.
    also : tuple of arrays [rows, ...]
        Arrays that are read at the rows of `Value.ROW`, after the shift, by those who get these.
    """

    value: Value
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    place: RowPlace = RowPlace.HERE
    amount: int = 0
    source: Array | None = None
    shift: int = 0
    given: Callable[[Any], Array] | None = None
    other: Array | None = None
    offsets: tuple[int, ...] = ()
    limit: IntArray | None = None
    mask: int = 0
    blank: bool = False
    scale: tuple[Array, Array] | None = None
    also: tuple[Array, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of a value."""
        return int(self.dtype.itemsize * prod(self.shape))


def cast(stored: np.dtype[Any], wanted: str | None) -> tuple[Value, np.dtype[Any]]:
    """Return how values of a dtype are copied where ``wanted`` is the dtype of floats, and the dtype that they get.

    The kernel casts between float32 and float64; other floats are copied as they are.
    """
    value = _CASTS.get((stored.name, wanted or ""), Value.COPY) if stored.isnative else Value.COPY
    return value, stored if value is Value.COPY else np.dtype(wanted)


class WindowTable:
    """The episodes of windows, int64 [episodes] each; window ``number`` starts at step ``number * stride + offset``.

    The columns are checked once, and must stay as they are: the kernel makes addresses of them.

    Attributes
    ----------
    rows : int
        Rows that the episodes take: each has its steps and one row more.
    pad : str or None
        The side on which steps are that lie outside the episode, see `Slice`.

    Raises
    ------
    DamagedDataset
        An episode is not possible.
    """

    def __init__(
        self,
        start: IntArray,
        steps: IntArray,
        transitions: IntArray,
        observed: IntArray,
        starts: tuple[int, int],
        pad: str | None = None,
    ) -> None:
        columns = start, steps, transitions, observed
        if len({len(c) for c in columns}) > 1:
            raise DamagedDataset(f"columns over episodes of {', '.join(str(len(c)) for c in columns)} rows.")
        self.rows, self.pad = 0, pad
        for at in range(0, len(start), _PIECE):
            first, length, counted, seen = piece = [c[at : at + _PIECE] for c in columns]
            sound = (counted <= length) & (seen <= length + 1)
            for column in piece:
                sound &= (column >= 0) & (column < _MOST_ROWS)
            if not sound.all():
                raise DamagedDataset(f"episode {at + int(np.argmin(sound)):,}: its rows or steps are not possible.")
            self.rows = max(self.rows, int((first + length).max()) + 1)
        self._kept = [np.ascontiguousarray(x, np.int64) for x in columns]
        self.struct = _Windows(len(start), *starts, *map(address, self._kept))

    def check_limit(self, limit: IntArray) -> None:
        """Refuse rows [episodes] that an episode does not have."""
        steps = self._kept[1]
        if len(limit) != len(steps) or not ((limit >= 0) & (limit <= steps + 1)).all():
            raise DamagedDataset("episodes with other numbers of observations than of steps.")


@dataclass(frozen=True, slots=True, eq=False)
class NStep:
    """The end of the sum of an n-step transition: the first done step, the last transition, or ``most`` steps.

    ``terminated`` and ``truncated`` are bool [rows]; None where no step before a last transition is done.
    """

    most: int
    terminated: Array | None = None
    truncated: Array | None = None


class Plan:
    """A compiled plan: what is written for each sample.

    Parameters
    ----------
    windows : WindowTable
    outputs : sequence of Output
    n_step : NStep, optional
        Steps that a sample sums; one without it.

    Raises
    ------
    DamagedDataset
        An episode lies outside a column.
    """

    def __init__(self, windows: WindowTable, outputs: Sequence[Output], n_step: NStep | None = None) -> None:
        self.outputs, self.windows, self._rows = outputs, windows, windows.rows
        self._kept: list[Any] = [windows]
        self._most = n_step.most if n_step else 1
        self.givens = list(dict.fromkeys(o.given for o in outputs if o.given is not None))
        self.reads: list[tuple[int, _Read]] = []  # of rows, each with the address of its array, see `Touches`
        described = [self._column(o) for o in outputs]
        for i, o in enumerate(outputs):
            self._note(i, o)
        fetches = _fetches(described, outputs)
        self._columns = (_Column * max(1, len(described)))(*described)
        self._fetches = (_Fetch * max(1, len(fetches)))(*fetches)
        places = ctypes.addressof(self._columns), ctypes.addressof(self._fetches)
        ends, pad = (0, None, None, 0) if n_step is None else self._ends(n_step), _PADS.index(windows.pad)
        self._plan = _Plan(windows.struct, len(outputs), len(fetches), *places, self._rows, *ends, pad)
        self.at = ctypes.addressof(self._plan)
        self.made = [(o.dtype, ((len(o.offsets),) if o.offsets else ()) + o.shape) for o in outputs]
        self.slabs = Slabs(self.made)

    def _keep(self, array: Array, dtype: npt.DTypeLike = np.int64) -> int:
        kept = np.ascontiguousarray(array, dtype)
        self._kept.append(kept)
        return address(kept)

    def _ends(self, n_step: NStep) -> tuple[int, int | None, int | None, int]:
        terminated, truncated = n_step.terminated, n_step.truncated
        if terminated is None or truncated is None:
            return n_step.most, None, None, 0
        flags = terminated, truncated
        stride = terminated.strides[0]
        if min(map(len, flags)) < self._rows or stride != truncated.strides[0] or terminated.itemsize != 1:
            raise DamagedDataset(f"flags of {len(terminated):,} and {len(truncated):,} rows, not of {self._rows:,}.")
        self._kept += flags
        self.reads += [(address(flag), _Read(-1, address(flag), stride, 1)) for flag in flags]
        return n_step.most, address(terminated), address(truncated), stride

    def _note(self, number: int, o: Output) -> None:
        """Note the arrays that an output reads rows of."""
        if o.place in (RowPlace.EPISODE, RowPlace.SPAN, RowPlace.SAMPLE):
            return
        found = [o.source, o.other if o.value is Value.EITHER else None, *o.also]
        for array in (x for x in found if x is not None and x.size):
            size = array.itemsize * prod(array.shape[1:])
            stride, at = array.strides[0] if len(array) > 1 else size, address(array)
            self.reads.append((at, _Read(number, at + o.shift * stride, stride, size)))
        for array in o.also:
            if len(array) < self._rows:
                raise DamagedDataset(f"a column of {len(array):,} rows where episodes have {self._rows:,}.")
        self._kept += o.also

    def _column(self, o: Output) -> _Column:
        c = _Column(value=o.value, place=o.place, amount=o.amount, given=-1, mask=o.mask, blank=o.blank)
        c.size, c.count = o.size, prod(o.shape)
        if o.given is not None:
            c.given, c.stride = self.givens.index(o.given), 8
        if o.source is not None:
            c.base, c.stride = self._source(o.source, o)
        if o.value is Value.EITHER:
            assert o.other is not None
            c.other, stride = self._source(o.other, o)
            if stride != c.stride:
                raise ValueError("flags whose rows lie differently far apart")
        elif o.value is Value.SUM:
            assert o.other is not None and o.source is not None
            if len(o.other) < self._most:
                raise ValueError(f"{len(o.other)} powers of the discount for sums of {self._most} steps")
            c.other = self._keep(o.other, np.float64)
            c.doubles = (o.source.dtype == np.float64) | (o.dtype == np.float64) << 1
        if o.place is RowPlace.OFFSETS:
            assert o.limit is not None
            self.windows.check_limit(o.limit)
            c.amount, c.offsets, c.limit = len(o.offsets), self._keep(np.array(o.offsets)), self._keep(o.limit)
        if o.scale is not None:
            shift, scale = (np.broadcast_to(x, o.shape) for x in o.scale)
            c.shift, c.scale = self._keep(shift, np.float64), self._keep(scale, np.float32)
        return c

    def _source(self, source: Array, o: Output) -> tuple[int, int]:
        """Return the address of row 0, after a shift, and the bytes from row to row."""
        reach = {RowPlace.EPISODE: self.windows.struct.episodes, RowPlace.SPAN: self._most + 1}.get(o.place, self._rows)
        late = o.place in (RowPlace.OFFSETS, RowPlace.GIVEN)  # these read the row of the final observation
        if not 0 <= o.shift <= 1 or prod(source.shape[1:]) != prod(o.shape):
            raise ValueError(f"values {source.shape[1:]} of a column, shift {o.shift}, as {o.shape}")
        if len(source) < reach + (o.shift if late else 0):
            raise DamagedDataset(f"a column of {len(source):,} rows where episodes have {reach:,}.")
        if not (source.flags.aligned and source[:1].flags.c_contiguous):
            source = np.require(source, requirements=("A", "C"))
        self._kept.append(source)
        stride = source.strides[0] if len(source) > 1 else o.size
        return address(source) + o.shift * stride, stride


@dataclass(frozen=True, slots=True)
class BlockRange:
    """A mapped file whose bytes come block by block; or several of one size, which are mapped end to end.

    Attributes
    ----------
    base, nbytes : int
        Address of the first byte, and bytes of all files.
    blocks : int
        Blocks of all files; every file begins with a block of its own.
    chunk : int
        Bytes of each of several files; 0 for a single one.
    """

    base: int
    nbytes: int
    blocks: int
    chunk: int = 0


class Touches:
    """Finds the blocks of files that a plan reads.

    Parameters
    ----------
    plan : Plan
    files : sequence of BlockRange
        Their blocks are numbered from 0 on, one file after the other.
    block : int
        Bytes of a block, a power of two.

    Attributes
    ----------
    files : list of int
        The files that are read at all.
    """

    def __init__(self, plan: Plan, files: Sequence[BlockRange], block: int) -> None:
        self._plan = plan  # which keeps the arrays whose addresses are here
        self._lock, self._process = Lock(), os.getpid()
        firsts = np.cumsum([0, *(f.blocks for f in files)])
        self._firsts: IntArray = firsts
        self._marks = np.zeros(max(1, int(firsts[-1])), np.uint8)
        self._list = np.empty(min(_LISTED, len(self._marks)), np.int64)
        reads: list[_Read] = []
        found: set[int] = set()
        for at, r in plan.reads:
            number = next((i for i, f in enumerate(files) if f.base <= at < f.base + f.nbytes), None)
            if number is not None:
                found.add(number)
                f = files[number]
                per = -(-f.chunk // block) if f.chunk else 0
                reads.append(_Read(r.column, r.at, r.stride, r.size, f.base, int(firsts[number]), f.chunk, per))
        self.files = sorted(found)
        self._reads = (_Read * max(1, len(reads)))(*reads)
        self._touch = _Touch(
            len(reads),
            ctypes.addressof(self._reads),
            block.bit_length() - 1,
            0,
            address(self._marks),
            address(self._list),
            len(self._list),
        )

    def blocks(self, bound: Bound, first: int, n: int, *, before: bool = False) -> list[tuple[int, IntArray]]:
        """Return the blocks that reading samples ``first`` to ``first + n`` takes: numbers of files, ascending blocks.

        Where flags end sums, their blocks must be cached, unless the question is asked ``before``: then it is answered
        as if no flag ended a sum, with the blocks of all flags that can.
        """
        if self._process != os.getpid():  # a thread of the parent may have been at work
            self._lock, self._process = Lock(), os.getpid()
            self._marks[:] = 0
        with self._lock:
            touch = self._touch
            touch.before, touch.count = before, 0
            try:
                bound.touch(first, n, byref(touch))
            finally:
                listed = touch.count <= len(self._list)
                found = np.sort(self._list[: touch.count]) if listed else np.flatnonzero(self._marks)
                self._marks[found] = 0
        at = np.searchsorted(found, self._firsts).tolist()
        return [(i, found[a:b] - self._firsts[i]) for i, (a, b) in enumerate(pairwise(at)) if b > a]


_LISTED = 1 << 16  # blocks of a run that are listed as they are marked; of more, the marks are searched


class Bound:
    """Samples that a plan is applied to, part by part.

    Parameters
    ----------
    plan : Plan
    episode, number : int64 arrays [n]
        Of their windows.
    given : sequence of arrays [n]
        For ``plan.givens``.
    length : int
        Steps of a window; 0 for one, without an axis.
    """

    def __init__(
        self,
        plan: Plan,
        episode: IntArray,
        number: IntArray,
        given: Sequence[Array],
        length: int,
    ) -> None:
        self._kept, self._count = (episode, number, *given), len(episode)
        at = _numbers_at(self._kept, self._count)
        self._given = (c_void_p * len(given))(*at[2:])
        self._samples = _Samples(at[0], at[1], ctypes.addressof(self._given), length)
        self._plan, self._at, self._sent = plan, plan.at, byref(self._samples)
        self.length, self.lead = max(1, length), (length,) if length else ()

    def is_of(self, given: Sequence[Array], length: int) -> bool:
        """Return whether the samples are given the arrays ``given``, and have windows of ``length`` steps."""
        return length == self._samples.length and all(map(is_, given, self._kept[2:]))

    def read(self, first: int, n: int) -> list[Array]:
        """Return the outputs of samples ``first`` to ``first + n``."""
        self._check(first, n)
        (made,), places = self._plan.slabs.take((n, *self.lead), 1)
        self.write(first, n, 1, places)
        return list(made)

    def write(self, first: int, n: int, batches: int, places: Any) -> None:
        """Write the outputs of batches of ``n`` samples from ``first`` on.

        ``places`` are the addresses of the arrays of each batch, int64 [batches * outputs], see `Slabs.take`.
        """
        self._check(first, n * batches)
        bad = _gather(self._at, self._sent, first, n, batches, places)
        if bad >= 0:
            _checked(bad)

    def scatter(self, first: int, slots: IntArray, size: int, places: IntArray) -> None:
        """Write the outputs of samples from ``first`` on into batches that others write to, too.

        Parameters
        ----------
        first : int
        slots : contiguous int64 [n]
            Sample ``first + i`` becomes row ``slots[i] % size`` of batch ``slots[i] // size``.
        size : int
            Samples of a batch.
        places : contiguous int64 [batches, outputs]
            Addresses of the arrays of each batch, in the order of the plan's outputs.
        """
        self._check(first, len(slots))
        batches, columns = places.shape
        outputs = len(self._plan.outputs)
        if columns != max(1, outputs):
            raise ValueError(f"{columns} arrays of a batch for {outputs} outputs")
        _checked(
            _KERNEL.rlds_scatter(
                self._at, self._sent, first, len(slots), address(slots), size, batches, address(places)
            )
        )

    def touch(self, first: int, n: int, marks: Any) -> None:
        """Mark the blocks that `read` reads, see `Touches`."""
        self._check(first, n)
        _checked(_KERNEL.rlds_touch(self._at, self._sent, first, n, marks))

    def _check(self, first: int, n: int) -> None:
        if not 0 <= first <= first + n <= self._count or n < 0:
            raise IndexError(f"samples {first} to {first + n} of {self._count}")


class StepReader:
    """Reads windows of single steps by their numbers, for a plan that is given nothing else: find and gather in one.

    It holds the places of ``n`` samples, so one thread uses it at a time.
    """

    __slots__ = ("_kept", "_plan", "_prefix", "_room", "_samples", "n")

    def __init__(self, plan: Plan, prefix: PrefixTable, n: int) -> None:
        self.n, room = n, np.empty((2, max(n, 1)), np.int64)
        samples = _Samples(address(room[0]), address(room[1]), None, 0)
        self._kept = plan, prefix, room, samples
        self._plan, self._prefix, self._samples = plan.at, prefix.sent, byref(samples)
        self._room = samples.episode, samples.number

    def write(self, numbers: IntArray, places: int) -> None:
        """Write the outputs of windows ``numbers``, contiguous int64 [n], to memory.

        ``places`` is the address of an array of the addresses to write to, one for each output.

        Raises
        ------
        IndexError
            There is no window of such a number.
        """
        bad = _find(self._prefix, address(numbers), self.n, *self._room)
        if bad >= 0:
            raise IndexError(f"number {numbers[bad]} of {self._kept[1].struct.total}")
        _checked(_gather(self._plan, self._samples, 0, self.n, 1, places))


def _numbers_at(arrays: Sequence[Array], n: int) -> list[int]:
    """Return the addresses of contiguous arrays [n] of 64-bit numbers."""
    size = 8 * n
    try:
        at = [_address_of(_byte_of(x)) for x in arrays if x.nbytes == size]  # type: ignore[arg-type]
    except (TypeError, ValueError):  # see `address`
        at = [address(x) for x in arrays if x.nbytes == size and x.flags.c_contiguous]
    if len(at) != len(arrays):
        raise ValueError("arrays [n] of 64-bit numbers are needed")
    return at


_MOST_ROWS = 1 << 60  # sums of a few such numbers fit 64 bits
_PIECE = 1 << 16  # episodes that are checked at a time: they stay in the processor's cache


def _checked(bad: int) -> None:
    if bad >= 0:
        raise IndexError(f"sample {bad} names no step of an episode")


def _fetches(columns: Iterable[_Column], outputs: Iterable[Output]) -> list[_Fetch]:
    """Return the bytes of each row to fetch ahead: neighbouring columns together."""
    read: list[tuple[tuple[int, ...], int, int]] = []
    for c, o in zip(columns, outputs, strict=True):
        if o.source is None or o.place in (RowPlace.EPISODE, RowPlace.SPAN):
            continue
        size = o.source.itemsize * prod(o.source.shape[1:])
        if o.value is Value.SUM and o.other is not None:
            size += (len(o.other) - 1) * c.stride  # the rewards of the steps after it
        if o.place is RowPlace.OFFSETS:
            first, last = min(o.offsets), max(o.offsets)
            if max(-first, last) < _NEAR:
                where = (c.stride, RowPlace.HERE, 0, -1)
                read.append((where, c.base + first * c.stride, (last - first) * c.stride + size))
            continue
        amount = c.amount if o.place is RowPlace.NEIGHBOUR else 0
        where = (c.stride, c.place, amount, c.given)
        read += [(where, c.base or 0, size)] if size and c.base else []
        read += [(where, c.other, size)] if o.value is Value.EITHER else []
    found = []
    for (stride, place, amount, given), group in groupby(sorted(set(read)), key=lambda r: r[0]):
        start = end = 0
        for _, base, size in [*group, ((), 0, 0)]:
            if start and not start <= base <= end + _NEAR:
                found.append(_Fetch(start, stride, place, amount, given, min(end - start, _MOST_FETCHED)))
                start = 0
            start, end = start or base, max(end if start else 0, base + size)
    return found


# -- goals


class GoalTable:
    """Draws goals, see `rlds_cli.loader.Goals`.

    Parameters
    ----------
    shares : (float, float, float)
        Chances of the current, a future and a random goal.
    horizon : (int, int, float)
        0 to 3 for the names of horizons, 4 for a number of steps; that number; the logarithm of gamma.
    windows : WindowTable
    limit : int64 array [episodes]
        Rows of each episode that can be goals, at most its steps and one.
    anywhere : PrefixTable or None
        Of these rows, for random goals.

    Raises
    ------
    DamagedDataset
        An episode has fewer rows than ``limit``.
    """

    def __init__(
        self,
        shares: tuple[float, float, float],
        horizon: tuple[int, int, float],
        windows: WindowTable,
        limit: IntArray,
        anywhere: PrefixTable | None,
    ) -> None:
        windows.check_limit(limit)
        kept = np.ascontiguousarray(limit, np.int64)
        self._kept = kept, windows, anywhere
        which, steps, log_gamma = horizon
        random = anywhere.struct if anywhere else _Prefix()
        self._struct = _Goals(*shares, log_gamma, which, steps, address(kept), random)
        self._windows = byref(windows.struct)

    def find(self, episode: IntArray, number: IntArray, length: int, u: Floats) -> tuple[IntArray, IntArray]:
        """Return the rows of the goals of samples [n], and their steps; -1 for a goal of another episode.

        ``u`` [n] are draws in [0, 1).
        """
        samples = _Samples(*_numbers_at((episode, number), len(episode)), None, length)
        row, step = np.empty((2, len(episode)), np.int64)
        u = np.ascontiguousarray(u, np.float64)
        if len(u) != len(episode):
            raise ValueError(f"{len(u)} draws for {len(episode)} samples")
        places = address(u), address(row), address(step)
        _checked(_KERNEL.rlds_goals(byref(self._struct), self._windows, byref(samples), len(episode), *places))
        return row, step
