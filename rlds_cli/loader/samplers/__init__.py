"""The protocol between the loader and a sampler.

A sampler turns sample numbers into windows. It sees the number of windows of each episode and no data, so it works
with every kind of window. To add a sampler, write a file in this package and export its class from ``rlds_cli.loader``:

* The class is a frozen dataclass that implements `Sampler`, usually as `Endless` or `Epochs`. Its ``repr`` is part of
  a loader's state, so it must name all arguments and stay as it is.
* If the sampler learns from training, its ``over`` returns a `StatefulDraw`.

Nothing outside this package asks for a sampler's class. The loader asks instead:

============================== ========================================================================================
question                       answer
============================== ========================================================================================
Does an epoch end?             ``endless`` and ``drop_last``.
Which columns does it add?     ``gives``.
Which episode columns decide?  ``columns``: a state is not loaded after a change of one of them.
How many windows has a sample? ``sides``: where there are several, batches have an axis for them.
Do samples lie anywhere?       ``scattered``: then what is missing of a remote dataset arrives in the background.
Can it draw from this dataset? ``over`` raises if not. ``pool.in_mixture`` says that the dataset is one of a mixture.
Does it learn from training?   ``over`` returns a `StatefulDraw`. This observes reports, saves its state, and limits how
                               far the loader reads ahead. Ranks exchange their reports. Worker processes are refused.
Does the dataset grow?         ``pool.live``. ``over`` is called again for every version; a `StatefulDraw` is asked
                               to ``take_up`` the new windows instead.
============================== ========================================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rlds_cli.loader.index import Drawn, WindowIndex
from rlds_cli.loader.kernel import SampleNumbers
from rlds_cli.loader.order import Order
from rlds_cli.loader.samplers.reports import Report

if TYPE_CHECKING:
    import torch

Draw = Callable[[Order, SampleNumbers], Drawn]


class Sampler(Protocol):
    """The protocol between the loader and a sampler.

    ``over`` returns a function that draws. Unless it is a `StatefulDraw`, that function depends on its arguments alone:
    sample number p is the same in every process and in every batch. ``endless`` samplers take any p >= 0; the others
    have one epoch of ``pool.prefix.total`` samples.
    """

    @property
    def endless(self) -> bool:
        """True if samples are drawn without end."""
        ...

    @property
    def drop_last(self) -> bool:
        """True if the last batch of an epoch is left out when it is not full."""
        ...

    @property
    def gives(self) -> tuple[str, ...]:
        """Names of the columns that the sampler adds to every batch."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Episode columns that the sampler reads. A state is not loaded after a change of one of them."""
        ...

    @property
    def sides(self) -> int:
        """Windows of a sample: the draw returns so many for each sample number, and batches are [B, sides, ...]."""
        ...

    @property
    def scattered(self) -> bool:
        """True if the samples of a batch lie anywhere in the dataset; False if they lie close together."""
        ...

    def over(self, pool: WindowIndex) -> Draw:
        """Return the function that draws windows of ``pool`` [K] for an order and sample numbers [K].

        With several `sides`, [sides * K]: those of one sample follow each other.

        Raises
        ------
        InvalidArgument, UnknownField
            The sampler cannot draw from this dataset.
        """
        ...


class Endless:
    """Base of samplers that draw with replacement."""

    __slots__ = ()

    endless = True
    scattered = True
    sides = 1
    drop_last = False
    gives: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """No episode column decides what is drawn."""
        return ()


class Epochs:
    """Base of samplers that draw without replacement."""

    __slots__ = ()

    endless = False
    sides = 1
    gives: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """No episode column decides what is drawn."""
        return ()


class StatefulDraw(ABC):
    """Draws that depend on what training reports.

    Batches must then be drawn one by one, in the process that trains, and their state is saved with the loader's. On
    several ranks every draw observes the same reports, and each rank draws its own samples.

    Attributes
    ----------
    ahead : int
        Batches that the draw itself makes before they are asked for.
    on_device : bool
        Whether it draws on a device, see `move_to`.
    """

    ahead: int
    on_device = False

    @abstractmethod
    def __call__(self, order: Order, positions: SampleNumbers) -> Drawn:
        """Draw the samples with these numbers."""

    @abstractmethod
    def move_to(self, device: torch.device) -> None:
        """Keep what was learned on a device, draw there, and observe reports of tensors there."""

    @abstractmethod
    def check(self, report: Report) -> None:
        """Refuse a report that `observe` would refuse.

        Raises
        ------
        InvalidArgument
        """

    @abstractmethod
    def observe(self, report: Report, beta: float | None = None) -> None:
        """Take what training reports of a batch, all ranks together.

        Raises
        ------
        InvalidArgument
            The report is not possible; nothing is changed.
        """

    @abstractmethod
    def reserve(self, prefetch: int | None, usual: int) -> int:
        """Return how many gathers the loader may read ahead, and draw that many batches fewer ahead.

        ``prefetch`` is the user's choice, ``usual`` the loader's own where the user made none.

        Raises
        ------
        InvalidArgument
            ``prefetch`` is too large.
        """

    @abstractmethod
    def frontier(self, epoch: int, sample: int) -> int:
        """Return the first sample from ``sample`` on that is not drawn yet."""

    @abstractmethod
    def take_up(self, pool: WindowIndex) -> StatefulDraw:
        """Draw from a new version of the dataset from now on, and return the draw that does.

        Samples that are drawn already stay as they are: windows of the version before.
        """

    @abstractmethod
    def over(self, pool: WindowIndex) -> StatefulDraw:
        """Return the draw that gives what is drawn, or will be, as windows of ``pool``."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the batches drawn ahead: the loader moves to another position."""

    @abstractmethod
    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Return all that the draws after this position depend on; ``torch.load(weights_only=True)`` must read it."""

    @abstractmethod
    def load(self, state: Mapping[str, Any], order: Order) -> None:
        """Restore a `state`.

        Raises
        ------
        WrongState
            The state is of another sampler or dataset; nothing is changed.
        """
