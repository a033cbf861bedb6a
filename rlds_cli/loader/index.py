"""The episodes and windows that a loader draws from, as arrays, and the windows drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.loader.kernel import PrefixTable, SampleNumbers, WindowTable
from rlds_cli.loader.order import Order
from rlds_cli.loader.tensors import host

if TYPE_CHECKING:
    import torch

    from rlds_cli.dataset import Dataset


T = TypeVar("T")
WINDOW_NAMES = 1 << 32  # of each episode: that of its first window is the name of the episode by so much


class EpisodeIndex:
    """Columns over episodes.

    Attributes
    ----------
    start : int array [episodes]
        First row.
    steps, transitions, observed : int arrays [episodes]
        T, m, and how many observations are recorded (T+1 or T).
    number : int array [episodes]
        k of ``ds.episode(k)``.
    index : int array [episodes]
        Number of the first transition in ``ds[...]``.
    """

    def __init__(
        self,
        start: IntArray,
        steps: IntArray,
        transitions: IntArray,
        observed: IntArray,
        *,
        chosen: IntArray | None = None,
        index: IntArray | None = None,
    ) -> None:
        self.start, self.steps, self.transitions, self.observed = start, steps, transitions, observed
        self._chosen, self._index = chosen, index

    @classmethod
    def of(cls, dataset: Dataset) -> EpisodeIndex:
        """Make the table of all episodes of a dataset or selection.

        It is a copy, 24 or 32 bytes for each episode: the columns of a dataset are mapped files, and the kernel makes
        addresses of the numbers that `WindowTable` has checked, whatever becomes of the files later. Where every step
        is a transition, one copy is both.
        """
        start, steps, observed = (np.array(dataset.episodes[c], np.int64) for c in ("start", "length", "num_observed"))
        transitions = dataset.episodes["num_transitions"]
        same = np.array_equal(transitions, steps)
        return cls(start, steps, steps if same else np.array(transitions, np.int64), observed)

    @cached_property
    def number(self) -> IntArray:
        """Number of each episode, made on demand: 8 MB for a million episodes."""
        return np.arange(len(self)) if self._chosen is None else self._chosen

    @cached_property
    def index(self) -> IntArray:
        """Number of each episode's first transition, made on demand."""
        return np.cumsum(self.transitions) - self.transitions if self._index is None else self._index

    def where(self, chosen: Array) -> EpisodeIndex:
        """Return the episodes that ``chosen`` marks (bool), or lists (int), in that order."""
        if chosen.dtype == bool and chosen.all():
            return self
        columns = (self.start, self.steps, self.transitions, self.observed)
        return EpisodeIndex(*(c[chosen] for c in columns), chosen=self.number[chosen], index=self.index[chosen])

    def __len__(self) -> int:
        return len(self.start)


class NumberIndex:
    """Finds the places of numbers in an ascending array of them, in constant time where most numbers follow each other.

    Parameters
    ----------
    numbers : int array [n]
        Not negative, each once.
    """

    def __init__(self, numbers: IntArray) -> None:
        self._numbers, self._first = numbers, int(numbers[0]) if len(numbers) else 0
        self._span = int(numbers[-1]) + 1 - self._first if len(numbers) else 0
        self._dense = self._span == len(numbers)
        self._table: IntArray | None = None
        if not self._dense and self._span <= _SPARSE * len(numbers):
            self._table = np.full(self._span, -1)
            self._table[numbers - self._first] = np.arange(len(numbers))

    def find(self, wanted: IntArray) -> IntArray:
        """Return the places of numbers [K]; -1 for those that are not there."""
        at: IntArray = wanted - self._first
        inside = at.view(np.uint64) < self._span
        if not inside.all():
            at = np.full(len(wanted), -1)
            at[inside] = self.find(wanted[inside])
        elif self._table is not None:
            at = self._table.take(at)
        elif not self._dense:
            at = np.searchsorted(self._numbers, wanted)
            at = np.where(self._numbers.take(at) == wanted, at, -1)
        return at


_SPARSE = 8  # times as many numbers as there are, for which a table pays


class PrefixIndex:
    """Finds the episode of a number in constant time: 0..total-1 are laid out over episodes, ``counts[e]`` in each.

    A table of about two entries per episode holds the first episode of each equal slice of the range: a look-up and a
    few steps find the episode of almost every number, a binary search finds the others.

    Parameters
    ----------
    counts : int array [episodes]
        Numbers in each episode; all positive. Below 2**31 episodes.
    """

    def __init__(self, counts: IntArray) -> None:
        self.counts = counts
        bounds: IntArray = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=bounds[1:])
        self.starts, self.total = bounds[:-1], int(bounds[-1])
        slices = max(2, 2 * len(counts))
        shift = max(0, (self.total - 1).bit_length() - (slices - 1).bit_length())
        self.table = PrefixTable(bounds, _first_episodes(bounds[1:], self.total, shift), shift)

    def find(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return the episode of every number, and the number's place within the episode."""
        return self.table.find(numbers)


_PIECE = 1 << 16  # episodes whose intermediate values stay in the processor's cache


def _first_episodes(ends: IntArray, total: int, shift: int) -> npt.NDArray[np.int32]:
    """Return the first episode of each slice of the range: the number of those that end before the slice begins."""
    slices = (max(total, 1) - 1 >> shift) + 1
    first = np.zeros(slices, np.int32)
    filled = 0
    for at in range(0, len(ends), _PIECE):
        after = ends[at : at + _PIECE] + ((1 << shift) - 1)
        after >>= shift  # the first slice that begins at the end of the episode, or later
        if at + _PIECE >= len(ends):
            after[-1] = slices
        begin_here = np.diff(after, prepend=filled)
        if (begin_here < 0).any() or after[-1] > slices:  # ends do not ascend, which `PrefixTable` refuses
            return np.zeros(slices, np.int32)
        first[filled : after[-1]] = np.repeat(np.arange(at, at + len(after), dtype=np.int32), begin_here)
        filled = int(after[-1])
    return first


# names of columns that samplers add, and mixtures
PROBABILITY, WEIGHT, WINDOW, INDEX, SOURCE = "probability", "weight", "window", "index", "source"
FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class WindowIndex:
    """All windows of a dataset.

    Attributes
    ----------
    dataset : Dataset
    table : EpisodeIndex
        The episodes that have a window.
    prefix : PrefixIndex
        Numbers all windows 0..prefix.total-1, episode by episode.
    starts : (int, int)
        Stride and offset: a window starts at step ``number * stride + offset`` of its episode.
    pad : {"left", "right"} or None
        The side of a window on which its steps outside the episode are; None where they lie.
    bucket : int or None
        The episodes are sorted by length, and this many neighbours are drawn together.
    in_mixture : bool
        Whether the sampler draws from other datasets, too: it is that of a mixture, and not of one member.
    live : bool
        Whether later versions of the dataset follow.
    """

    dataset: Dataset
    table: EpisodeIndex
    prefix: PrefixIndex
    starts: tuple[int, int]
    pad: str | None = None
    bucket: int | None = None
    in_mixture: bool = False
    live: bool = False

    @cached_property
    def windows(self) -> WindowTable:
        """The table that the kernel reads."""
        t = self.table
        return WindowTable(t.start, t.steps, t.transitions, t.observed, self.starts, self.pad)

    def without_any(self) -> WindowIndex:
        """Return the index of no window."""
        none = self.table.where(np.zeros(len(self.table), bool))
        return replace(self, table=none, prefix=PrefixIndex(np.zeros(0, np.int64)))

    @cached_property
    def longest(self) -> int:
        """Steps of the longest episode."""
        return int(self.table.steps.max(initial=0))

    @cached_property
    def _names(self) -> IntArray:
        """Name of the first window of each episode, the same in every version of a growing dataset."""
        episodes = self.dataset.episodes.index.take(self.table.number)
        return self.dataset.store.table.names_of(episodes) * WINDOW_NAMES

    @cached_property
    def _by_name(self) -> IntArray | None:
        """Rows of the table in the order of `names`; None where they are in it."""
        return None if self.bucket is None else np.argsort(self._names)

    @cached_property
    def names(self) -> IntArray:
        """The name of the first window of each episode, ascending."""
        return self._names if self._by_name is None else self._names[self._by_name]

    @cached_property
    def _index(self) -> NumberIndex:
        return NumberIndex(self.names // WINDOW_NAMES)

    def rows_ascending(self, at: IntArray) -> IntArray:
        """Return the rows of the table of the episodes at places ``at`` [K] of `names`."""
        return at if self._by_name is None else self._by_name.take(at)

    def name(self, episode: IntArray, number: IntArray) -> IntArray:
        """Return the numbers of windows [K] in the column ``window``.

        They count all windows from 0 on. Those of a live loader stay the same in later versions: the name of the
        episode's first window, plus the window's number within the episode.
        """
        if not self.live:
            return self.prefix.starts.take(episode) + number
        names: IntArray = self._names.take(episode) + number
        return names

    def named(self, names: IntArray) -> tuple[IntArray, IntArray]:
        """Return rows of the table [K] and numbers within the episodes [K] of windows, see `name`."""
        if not self.live:
            return self.prefix.find(names)
        at = self._index.find(names // WINDOW_NAMES)
        return self.rows_ascending(at), names % WINDOW_NAMES

    def anchor(self, number: IntArray) -> IntArray:
        """Return the anchor step of windows ``number`` [K] of their episodes: the first step inside."""
        stride, offset = self.starts
        return np.maximum(number * stride + offset, 0)


@dataclass(slots=True, eq=False, weakref_slot=True)
class SampledWindows:
    """The windows that were drawn for some samples.

    Attributes
    ----------
    order : Order
    positions : range or int array [K]
        Numbers of the samples.
    episode : int array [K]
        Rows of the table.
    number : int array [K]
        Number of the window within its episode.
    probability : callable
        Returns the chance of one draw to give each window, float64 [K].
    weight : float array [K] or None
        Importance weights, of prioritised draws.
    names : int array [K] or None
        The windows by `WindowIndex.name`, where the draw knows them.
    bounds : dict, optional
        Plans that are bound to these arrays, where the windows of further samples are written into the same ones.
    """

    order: Order
    positions: SampleNumbers
    episode: IntArray
    number: IntArray
    probability: Callable[[], FloatArray]
    weight: FloatArray | None = None
    names: IntArray | None = None
    bounds: dict[object, Any] | None = None

    def part(self, positions: range) -> SampledWindows:
        """Return the windows of the samples ``positions`` alone, some of the range of numbers."""
        here = _within(self.positions, positions)
        episode, number = (np.ascontiguousarray(x[here]) for x in (self.episode, self.number))
        weight = None if self.weight is None else self.weight[here]
        return SampledWindows(self.order, positions, episode, number, lambda: self.probability()[here], weight)

    def __len__(self) -> int:
        return len(self.episode)


@dataclass(frozen=True)
class DeviceWindows:
    """The windows that were drawn for some samples, on a device. A copy to the host is made when something asks for it.

    Attributes
    ----------
    order, positions
        See `SampledWindows`.
    pool : WindowIndex
    drawn, chance, importance : tensors [K]
        The windows by `WindowIndex.name`, the chance of one draw to give each, and importance weights.
    """

    order: Order
    positions: SampleNumbers
    pool: WindowIndex
    drawn: torch.Tensor
    chance: torch.Tensor
    importance: torch.Tensor
    bounds: ClassVar[None] = None  # every batch is drawn into memory of its own

    @cached_property
    def names(self) -> IntArray:
        """The windows on the host."""
        numbers: IntArray = host(self.drawn)
        return numbers

    @cached_property
    def _found(self) -> tuple[IntArray, IntArray]:
        return self.pool.named(self.names)

    @property
    def episode(self) -> IntArray:
        """Rows of the table [K]."""
        return self._found[0]

    @property
    def number(self) -> IntArray:
        """Number of each window within its episode [K]."""
        return self._found[1]

    @property
    def weight(self) -> FloatArray:
        """Importance weights [K], on the host."""
        weights: FloatArray = host(self.importance)
        return weights

    def probability(self) -> FloatArray:
        """Return the chance of one draw to give each window [K], on the host."""
        chance: FloatArray = host(self.chance)
        return chance

    def part(self, positions: range) -> DeviceWindows:
        """Return the windows of the samples ``positions`` alone, some of the range of numbers."""
        here = _within(self.positions, positions)
        some = (x[here] for x in (self.drawn, self.chance, self.importance))
        return DeviceWindows(self.order, positions, self.pool, *some)

    def __len__(self) -> int:
        return len(self.drawn)


Drawn = SampledWindows | DeviceWindows


def _within(positions: SampleNumbers, some: range) -> slice:
    """Return the places of ``some`` sample numbers of a range of consecutive ones."""
    assert isinstance(positions, range)
    return slice(some.start - positions.start, some.stop - positions.start, some.step)


@dataclass(slots=True, eq=False)
class Located:
    """Samples whose windows are known: those of one gather.

    Attributes
    ----------
    table : EpisodeIndex
    drawn : SampledWindows or DeviceWindows
        Episodes are rows of ``table``.
    length : int
        L; 0 for single steps, without an axis.
    """

    table: EpisodeIndex
    drawn: Drawn
    length: int
    absent: ClassVar[tuple[str, ...]] = ()  # members of a mixture without a window
    _known: dict[object, Any] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.drawn)

    def once(self, key: object, work_out: Callable[..., T], *arguments: object) -> T:
        """Return a value that several columns share, computed once."""
        if key not in self._known:
            self._known[key] = work_out(*arguments)
        found: T = self._known[key]
        return found
