"""Samplers whose windows are all equally likely: `Uniform`, `Shuffled` and `Sequential`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.integers import set_integer
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.index import FloatArray, PrefixIndex, SampledWindows, WindowIndex
from rlds_cli.loader.kernel import SampleNumbers
from rlds_cli.loader.order import EPISODE, WINDOW, Order
from rlds_cli.loader.samplers import Draw, Endless, Epochs

WarmUp = Literal["first_part"]
FIRST_BYTES = 64 << 20  # of the rows of a first part, all fields together
GROWTH = 4  # windows by which it grows with each sample


@dataclass(frozen=True, slots=True, repr=False)
class Uniform(Endless):
    """Independent draws with replacement; never ends.

    Parameters
    ----------
    by : {"window", "episode"}
        ``window``: every window is equally likely. ``episode``: every episode with a window is equally likely, then
        every window in it, so short episodes count as much as long ones.
    warm_up : {"first_part"}, optional
        For a remote dataset of which little is cached: the samples that come first are drawn from the first windows of
        the dataset, whose rows take about 64 MiB, and each later one from 4 windows more. So the early samples are
        **not** drawn from all windows. Sample number i stays a function of (seed, epoch, i), and once all windows are
        reached, it is what it is without a warm-up. Without it the draw is exact, and the first batches wait.
    """

    by: Literal["window", "episode"] = "window"
    warm_up: WarmUp | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.by not in ("window", "episode"):
            raise InvalidArgument(f'Uniform(by={self.by!r}): by is "window" or "episode".')
        if self.warm_up not in (None, "first_part"):
            raise InvalidArgument(f'warm_up={self.warm_up!r}: "first_part" or None.')
        if self.warm_up and self.by != "window":
            raise InvalidArgument('warm_up="first_part" is for windows that are equally likely.', hint='by="window"')

    def __repr__(self) -> str:
        warm_up = f", warm_up={self.warm_up!r}" if self.warm_up else ""  # states of other draws stay as they are
        return f"Uniform(by={self.by!r}{warm_up})"

    def over(self, pool: WindowIndex) -> Draw:
        """Return the draw over ``pool``, see `Sampler`."""
        if self.warm_up:
            if pool.bucket:
                raise InvalidArgument('warm_up="first_part" with a bucket: windows are in no order of rows.')
            return partial(_first_windows, pool, first_part(pool))
        return partial(_any_window if self.by == "window" or pool.bucket else _any_episode, pool)


def _any_window(pool: WindowIndex, order: Order, positions: SampleNumbers) -> SampledWindows:
    prefix = pool.prefix
    if pool.bucket is None:
        numbers = order.below(WINDOW, positions, prefix.total)
    else:
        numbers = _in_buckets(order, positions, prefix.total, pool.bucket)
    return SampledWindows(order, positions, *prefix.find(numbers), partial(_even, prefix, len(positions)))


def first_part(pool: WindowIndex) -> int:
    """Return the number of windows that the first sample of a warm-up is drawn from."""
    row_bytes = sum(f.row_bytes for f in pool.dataset.schema.values())
    return min(max(1, FIRST_BYTES // max(1, row_bytes)), pool.prefix.total)


def _first_windows(pool: WindowIndex, first: int, order: Order, positions: SampleNumbers) -> SampledWindows:
    prefix = pool.prefix
    passed = np.minimum(np.asarray(positions, np.int64), prefix.total)
    reach = np.minimum(first + GROWTH * passed, prefix.total)
    numbers = (order.uniform(WINDOW, positions) * reach).astype(np.int64)
    return SampledWindows(order, positions, *prefix.find(numbers), lambda: 1.0 / reach)


def _in_buckets(order: Order, positions: SampleNumbers, total: int, bucket: int) -> IntArray:
    """Draw each run of ``bucket`` samples from ``bucket`` neighbouring numbers, every number equally likely.

    Neighbourhoods start anywhere and wrap around: cut at fixed places, a smaller last one would be favoured.
    """
    numbers = np.asarray(positions, np.int64)
    first = order.below(EPISODE, numbers // bucket, total)
    return (first + order.below(WINDOW, numbers, min(bucket, total))) % total


def _any_episode(pool: WindowIndex, order: Order, positions: SampleNumbers) -> SampledWindows:
    counts = pool.prefix.counts
    episode = order.below(EPISODE, positions, len(counts))
    number = within(order, positions, counts.take(episode))

    def probability() -> FloatArray:
        return 1.0 / (len(counts) * counts.take(episode))

    return SampledWindows(order, positions, episode, number, probability)


def within(order: Order, positions: SampleNumbers, counts: IntArray) -> IntArray:
    """Draw one of the ``counts`` [K] windows of each episode, all equally likely [K]."""
    numbers: IntArray = (order.uniform(WINDOW, positions) * counts).astype(np.int64)
    return numbers


def _even(prefix: PrefixIndex, samples: int) -> FloatArray:
    return np.full(samples, 1.0 / prefix.total)


@dataclass(frozen=True, slots=True)
class Shuffled(Epochs):
    """Every window once per epoch, in an order of its own each epoch.

    The permutation is computed, not stored: it takes no memory, and any place in it is found at once.

    Parameters
    ----------
    drop_last : bool
        Leave out the last batch of an epoch when it is not full.
    block : int, optional
        For data that does not fit into memory: cut the dataset into blocks of so many consecutive windows, read the
        blocks in random order, and mix the windows of ``live`` blocks at a time. Every window still comes once per
        epoch, but the windows of a block come close together, so a batch is less varied than with a full shuffle.
    live : int
        Blocks mixed at a time: about ``block * live`` windows should fit into memory.
    """

    drop_last: bool = False
    block: int | None = field(default=None, kw_only=True)
    live: int = field(default=16, kw_only=True)

    def __post_init__(self) -> None:
        if self.block is not None:
            set_integer(self, "block", 1)
        set_integer(self, "live", 1)

    @property
    def scattered(self) -> bool:
        """Return whether windows are drawn from all of the dataset, and not from some blocks at a time."""
        return self.block is None

    def over(self, pool: WindowIndex) -> Draw:
        """Return the draw over ``pool``, see `Sampler`."""
        return partial(self._draw, pool)

    def _draw(self, pool: WindowIndex, order: Order, positions: SampleNumbers) -> SampledWindows:
        total = pool.prefix.total
        if pool.bucket is not None:
            numbers = order.shuffled_in_blocks(positions, total, pool.bucket, 1)
        elif self.block is not None:
            numbers = order.shuffled_in_blocks(positions, total, self.block, self.live)
        else:
            numbers = order.shuffled(positions, total)
        return SampledWindows(order, positions, *pool.prefix.find(numbers), partial(_even, pool.prefix, len(positions)))


@dataclass(frozen=True, slots=True)
class Sequential(Epochs):
    """Every window once per epoch, in the order of the dataset."""

    drop_last = False
    scattered = False

    def over(self, pool: WindowIndex) -> Draw:
        """Return the draw over ``pool``, see `Sampler`."""

        def draw(order: Order, positions: SampleNumbers) -> SampledWindows:
            numbers = np.asarray(positions, np.int64)
            return SampledWindows(
                order, positions, *pool.prefix.find(numbers), partial(_even, pool.prefix, len(positions))
            )

        return draw
