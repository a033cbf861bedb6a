"""Which samples, in what order: pure index maths, without data.

A sampler turns sample numbers into windows. It sees nothing but how many windows every episode has, so that it is
tested without a dataset and works with every kind of window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.guide import Guide
from rlds_cli.loader.order import EPISODE, WINDOW, Order
from rlds_cli.ted import IntArray


class Sampler(Protocol):
    """What the loader asks of a sampler.

    ``draw`` must be a function of its arguments alone: sample number p is the same whoever asks, and together with
    whatever other numbers. ``endless`` samplers take any p >= 0; the others have one epoch of ``windows.total``
    samples.
    """

    @property
    def endless(self) -> bool:
        """Whether samples are drawn without end."""
        ...

    @property
    def drop_last(self) -> bool:
        """Whether the last batch of an epoch is left out when it is not full."""
        ...

    def draw(self, windows: Guide, order: Order, positions: range) -> tuple[IntArray, IntArray]:
        """Return the episode of every sample [len(positions)], and which of that episode's windows it is."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
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

    @property
    def endless(self) -> bool:
        """True."""
        return True

    @property
    def drop_last(self) -> bool:
        """False: there is no last batch."""
        return False

    def draw(self, windows: Guide, order: Order, positions: range) -> tuple[IntArray, IntArray]:
        """Return episodes and windows, see `Sampler`."""
        if self.by == "window":
            return windows.find(order.below(WINDOW, positions, windows.total))
        episode = order.below(EPISODE, positions, len(windows.counts))
        within = order.uniform(WINDOW, positions) * windows.counts.take(episode)
        return episode, within.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Every window once per epoch, in an order of its own each epoch.

    The permutation is computed, not stored: no memory, and any place in it is found at once.

    Parameters
    ----------
    drop_last : bool
        Leave out the last batch of an epoch when it is not full.
    """

    drop_last: bool = False

    @property
    def endless(self) -> bool:
        """False."""
        return False

    def draw(self, windows: Guide, order: Order, positions: range) -> tuple[IntArray, IntArray]:
        """Return episodes and windows, see `Sampler`."""
        return windows.find(order.shuffled(positions, windows.total))


@dataclass(frozen=True, slots=True)
class Sequential:
    """Every window once per epoch, in the order of the dataset."""

    @property
    def endless(self) -> bool:
        """False."""
        return False

    @property
    def drop_last(self) -> bool:
        """False."""
        return False

    def draw(self, windows: Guide, order: Order, positions: range) -> tuple[IntArray, IntArray]:
        """Return episodes and windows, see `Sampler`."""
        return windows.find(np.arange(positions.start, positions.stop, positions.step, dtype=np.int64))
