"""Which samples, in what order: pure index maths, without data.

A sampler turns sample numbers into windows. It sees nothing but how many windows every episode has, so that it is
tested without a dataset and works with every kind of window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

import numpy as np

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.index import Drawn, FloatArray, Guide, Pool
from rlds_cli.loader.order import EPISODE, WINDOW, Order, Positions, make_whole
from rlds_cli.ted import IntArray

Draw = Callable[[Order, Positions], Drawn]


class Sampler(Protocol):
    """What the loader asks of a sampler.

    ``over`` gives a function that draws. Unless it learns priorities, that must be a function of its arguments alone:
    sample number p is the same whoever asks, and together with whatever other numbers. ``endless`` samplers take any
    p >= 0; the others have one epoch of ``pool.guide.total`` samples.
    """

    @property
    def endless(self) -> bool:
        """Whether samples are drawn without end."""
        ...

    @property
    def drop_last(self) -> bool:
        """Whether the last batch of an epoch is left out when it is not full."""
        ...

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of the columns that it adds to every batch."""
        ...

    def over(self, pool: Pool) -> Draw:
        """Return what draws from ``pool``: from an order and sample numbers [K] to windows [K]."""
        ...


class Endless:
    """Draws with replacement."""

    __slots__ = ()

    @property
    def endless(self) -> bool:
        """True."""
        return True

    @property
    def gives(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def drop_last(self) -> bool:
        """False: there is no last batch."""
        return False


@dataclass(frozen=True, slots=True)
class Uniform(Endless):
    """Independent draws with replacement; never ends.

    Parameters
    ----------
    by : {"window", "episode"}
        Every window is equally likely; or every episode that has a window is, and then every window in it, so that
        short episodes weigh as much as long ones.
    """

    by: Literal["window", "episode"] = "window"

    def __post_init__(self) -> None:
        if self.by not in ("window", "episode"):
            raise InvalidArgument(f'Uniform(by={self.by!r}): by is "window" or "episode".')

    def over(self, pool: Pool) -> Draw:
        """Return what draws from ``pool``, see `Sampler`."""
        return partial(_any_window if self.by == "window" or pool.bucket else _any_episode, pool)


def _any_window(pool: Pool, order: Order, positions: Positions) -> Drawn:
    guide = pool.guide
    if pool.bucket is None:
        numbers = order.below(WINDOW, positions, guide.total)
    else:
        numbers = _in_buckets(order, positions, guide.total, pool.bucket)
    return Drawn(order, positions, *guide.find(numbers), partial(_even, guide, len(positions)))


def _in_buckets(order: Order, positions: Positions, total: int, bucket: int) -> IntArray:
    """Draws of which each run of ``bucket`` comes from ``bucket`` neighbours, every number equally likely.

    Neighbourhoods are not cut at fixed places, which would favour the numbers of a smaller last one; they wrap around.
    """
    numbers = np.asarray(positions, np.int64)
    first = order.below(EPISODE, numbers // bucket, total)
    return (first + order.below(WINDOW, numbers, min(bucket, total))) % total


def _any_episode(pool: Pool, order: Order, positions: Positions) -> Drawn:
    counts = pool.guide.counts
    episode = order.below(EPISODE, positions, len(counts))
    number = within(order, positions, counts.take(episode))

    def probability() -> FloatArray:
        return 1.0 / (len(counts) * counts.take(episode))

    return Drawn(order, positions, episode, number, probability)


def within(order: Order, positions: Positions, counts: IntArray) -> IntArray:
    """One of the windows of each episode, all equally likely [K]; ``counts`` [K] of them."""
    numbers: IntArray = (order.uniform(WINDOW, positions) * counts).astype(np.int64)
    return numbers


def _even(guide: Guide, samples: int) -> FloatArray:
    return np.full(samples, 1.0 / guide.total)


class Epochs:
    """Draws without replacement."""

    __slots__ = ()

    @property
    def endless(self) -> bool:
        """False."""
        return False

    @property
    def gives(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True, slots=True)
class Shuffled(Epochs):
    """Every window once per epoch, in an order of its own each epoch.

    The permutation is computed, not stored: no memory, and any place in it is found at once.

    Parameters
    ----------
    drop_last : bool
        Leave out the last batch of an epoch when it is not full.
    block : int, optional
        For data that does not fit into memory: cut the dataset into blocks of so many consecutive windows, read the
        blocks in random order, and mix the windows of ``live`` blocks at a time. Every window still comes once per
        epoch; but those of one block come close together, so that a batch is less varied than one of a full shuffle.
    live : int
        Blocks mixed at a time: about ``block * live`` windows should fit into memory.
    """

    drop_last: bool = False
    block: int | None = field(default=None, kw_only=True)
    live: int = field(default=16, kw_only=True)

    def __post_init__(self) -> None:
        if self.block is not None:
            make_whole(self, "block", 1)
        make_whole(self, "live", 1)

    def over(self, pool: Pool) -> Draw:
        """Return what draws from ``pool``, see `Sampler`."""
        return partial(self._draw, pool)

    def _draw(self, pool: Pool, order: Order, positions: Positions) -> Drawn:
        total = pool.guide.total
        if pool.bucket is not None:
            numbers = order.shuffled_in_blocks(positions, total, pool.bucket, 1)
        elif self.block is not None:
            numbers = order.shuffled_in_blocks(positions, total, self.block, self.live)
        else:
            numbers = order.shuffled(positions, total)
        return Drawn(order, positions, *pool.guide.find(numbers), partial(_even, pool.guide, len(positions)))


@dataclass(frozen=True, slots=True)
class Sequential(Epochs):
    """Every window once per epoch, in the order of the dataset."""

    @property
    def drop_last(self) -> bool:
        """False."""
        return False

    def over(self, pool: Pool) -> Draw:
        """Return what draws from ``pool``, see `Sampler`."""

        def draw(order: Order, positions: Positions) -> Drawn:
            numbers = np.asarray(positions, np.int64)
            return Drawn(order, positions, *pool.guide.find(numbers), partial(_even, pool.guide, len(positions)))

        return draw
