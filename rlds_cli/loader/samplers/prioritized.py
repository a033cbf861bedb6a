"""`Prioritized`: draws by priorities that training reports, with importance weights that correct for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.integers import set_integer
from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.index import (
    INDEX,
    PROBABILITY,
    WEIGHT,
    DeviceWindows,
    Drawn,
    FloatArray,
    SampledWindows,
    WindowIndex,
)
from rlds_cli.loader.index import WINDOW as WINDOW_COLUMN
from rlds_cli.loader.kernel import SampleNumbers, TreeDraws
from rlds_cli.loader.order import WINDOW, Order
from rlds_cli.loader.samplers import Endless, StatefulDraw, weighted
from rlds_cli.loader.samplers.places import Places
from rlds_cli.loader.samplers.priorities import Priorities
from rlds_cli.loader.samplers.reports import Report
from rlds_cli.loader.tensors import host, portable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Prioritized(Endless):
    """Draws with replacement in proportion to ``(priority + eps) ** alpha``; never ends.

    The proportional variant of Schaul et al. 2016, "Prioritized experience replay". Every window has priority 1, or the
    one given by ``priority``, until ``loader.update_priorities(batch, priority)`` says otherwise. Batches have
    ``probability``; ``weight`` [B, 1] (or [B, L, 1]), the importance weights ``(n * probability) ** -beta`` divided by
    the largest of any window; ``window``, by which updates find their place; and ``index``, i of ``ds[i]``.

    A batch is drawn when it is asked for, by the priorities of that moment. With ``lag``, it is drawn ``lag`` batches
    earlier, so that it can be read ahead (``prefetch`` up to ``lag``). Several ranks draw from the same priorities,
    which they exchange by ``torch.distributed``. In a mixture each member has its own priorities; there is no ``lag``.

    With ``Loader(memory="device")`` priorities stay on the device, where they are drawn from and updated. Sums are
    rounded there in another way: about one draw of 10**10 falls on the neighbour of the window that the host draws.

    Parameters
    ----------
    alpha : float
        How far priorities matter: 0 is not at all.
    beta : float
        How far importance weights correct for it: 1 is in full. ``update_priorities(..., beta=)`` changes it.
    eps : float
    lag : int
        Batches drawn before an update counts.
    priority : str or array, optional
        Initial priorities, not negative: the name of an episode column, or an array with one number per episode
        ``[ds.num_episodes]``, per transition ``[len(ds)]`` or per step ``[ds.num_steps]``. A window has that of its
        episode, or of its anchor: the step of a transition, the first step of a slice that is inside its episode. An
        update replaces it. A state holds the priorities of its moment, and needs a loader with the same initial ones.

    Examples
    --------
    >>> Prioritized(priority=np.abs(td_error))  # of every transition, by an earlier critic  # doctest: +SKIP
    """

    alpha: float = 0.6
    beta: float = 0.4
    eps: float = 1e-6
    lag: int = 0
    priority: str | FloatArray | None = field(default=None, kw_only=True)

    gives = (PROBABILITY, WEIGHT, WINDOW_COLUMN, INDEX)

    @property
    def columns(self) -> tuple[str, ...]:
        """The episode column of initial priorities, if it is one."""
        return (self.priority,) if isinstance(self.priority, str) else ()

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) or not np.isfinite(value) or value < 0:
                raise InvalidArgument(f"Prioritized({name}={value!r}): a number of at least 0 is needed.")
            object.__setattr__(self, name, float(value))
        set_integer(self, "lag", 0)
        if self.priority is not None:
            object.__setattr__(self, "priority", weighted.frozen(self.priority, "Prioritized", "priorities"))

    def over(self, pool: WindowIndex) -> PrioritizedDraw:
        """Return the draw over ``pool``, see `Sampler`."""
        if pool.in_mixture and isinstance(self.priority, np.ndarray):
            raise InvalidArgument(
                f"{self} over a Mixture: an array is of the episodes of one dataset.",
                hint="Member(dataset, sampler=Prioritized(priority=array))",
            )
        return PrioritizedDraw(self, pool)

    def __repr__(self) -> str:
        priority = "" if self.priority is None else f", priority={weighted.shown(self.priority)}"
        return f"Prioritized(alpha={self.alpha}, beta={self.beta}, eps={self.eps}, lag={self.lag}{priority})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prioritized) and repr(self) == repr(other)  # the repr holds a hash of the priorities

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A batch that was drawn: sample numbers, windows by `WindowIndex.name`, chances and importance weights [K].

    These are arrays, or tensors of the device that they were drawn on.
    """

    epoch: int
    positions: range
    windows: Any
    probability: Any
    weight: Any


class _DrawMemory:
    """Memory of the windows of a batch: used again for the next one when nobody has the last windows any more."""

    def __init__(self, count: int) -> None:
        self.draws, self._bounds = TreeDraws(count), dict[object, Any]()
        self._probability = partial(np.asarray, self.draws.chance)
        self._last: ReferenceType[SampledWindows] | None = None

    @property
    def is_taken(self) -> bool:
        """Whether somebody still has the windows that were drawn last."""
        return self._last is not None and self._last() is not None

    def windows(self, order: Order, positions: SampleNumbers) -> SampledWindows:
        """Return what was drawn."""
        d = self.draws
        found = SampledWindows(
            order, positions, d.interval, d.within, self._probability, d.weight, d.number, self._bounds
        )
        self._last = ref(found)
        return found


class PrioritizedDraw(StatefulDraw):
    """Draws batches one after the other, ``lag`` of them before they are asked for.

    Parameters
    ----------
    sampler : Prioritized
    pool : WindowIndex

    Attributes
    ----------
    ahead : int
        ``lag``, less the batches that the loader asks for early in order to read them ahead.
    """

    def __init__(self, sampler: Prioritized, pool: WindowIndex) -> None:
        self.ahead = sampler.lag
        self._begun = False  # something was drawn, or a state was loaded
        self._sampler, self._pool, total = sampler, pool, pool.prefix.total
        self._drawn: deque[_Drawn] = deque(maxlen=2 * sampler.lag + 1)  # some given out, some not yet asked for
        self._memories: deque[_DrawMemory] = deque(maxlen=2)  # the loader has a batch while the next one is drawn
        self._places = Places() if pool.live else None
        made = partial(Priorities, alpha=sampler.alpha, beta=sampler.beta, eps=sampler.eps)
        self.priorities = made(total) if self._places is None else made(0, room=2 * total)
        if self._places is not None:
            self._come(self._places, pool)
        elif sampler.priority is not None:
            self.priorities.update(np.arange(total), _initial(pool, sampler.priority))

    def move_to(self, device: torch.device) -> None:
        """Keep priorities on a device, and draw there, see `StatefulDraw`."""
        from rlds_cli.loader.samplers.device_priorities import DevicePriorities

        self.priorities = DevicePriorities(self.priorities, device)
        self.on_device = True

    def __call__(self, order: Order, positions: SampleNumbers) -> Drawn:
        """Return the samples with these numbers, and draw the next ``ahead`` batches."""
        if not self._sampler.lag and self._places is None and not self.on_device:
            return self._at_once(order, positions)
        if not self._sampler.lag:
            return self._given(order, positions, *self._draw(order, positions))
        assert isinstance(positions, range)  # this rank's part of a batch, which is drawn whole: states are the same
        whole = range(positions.stop - len(positions) * positions.step, positions.stop)
        wanted = self._batch(order, whole)
        for _ in range(self.ahead):
            whole = range(whole.stop, whole.stop + len(whole))
            self._batch(order, whole)
        given = self._given(order, wanted.positions, wanted.windows, wanted.probability, wanted.weight)
        return given if positions == wanted.positions else given.part(positions)

    def _at_once(self, order: Order, positions: SampleNumbers) -> SampledWindows:
        """Draw and find windows in one call, where all of them stay."""
        self._begun = True
        memory = self._memory(len(positions))
        self.priorities.draw(order, positions, self._pool.prefix.table, memory.draws)
        windows = memory.windows(order, positions)
        self._memories.append(memory)
        return windows

    def _memory(self, count: int) -> _DrawMemory:
        """Return memory that no other draw has, until it is put back."""
        try:
            memory = self._memories.popleft() if len(self._memories) == self._memories.maxlen else None
        except IndexError:  # another thread was faster
            memory = None
        return _DrawMemory(count) if memory is None or memory.draws.count != count or memory.is_taken else memory

    def _batch(self, order: Order, positions: range) -> _Drawn:
        found = next((d for d in self._drawn if (d.epoch, d.positions) == (order.epoch, positions)), None)
        if found is None:
            found = _Drawn(order.epoch, positions, *self._draw(order, positions))
            self._drawn.append(found)
        return found

    def _draw(self, order: Order, positions: SampleNumbers) -> tuple[Any, Any, Any]:
        """Draw windows by `WindowIndex.name`, with their chances and importance weights [K], see `_Drawn`."""
        self._begun = True
        places = self.priorities.find(order.uniform(WINDOW, positions))
        windows = places if self._places is None else self._places.names(places)
        return windows, *self.priorities.weigh(places)

    def _given(self, order: Order, positions: SampleNumbers, windows: Any, probability: Any, weight: Any) -> Drawn:
        if self.on_device:
            return DeviceWindows(order, positions, self._pool, windows, probability, weight)
        return SampledWindows(order, positions, *self._pool.named(windows), partial(np.asarray, probability), weight)

    def frontier(self, epoch: int, sample: int) -> int:
        """Return the first sample from ``sample`` on that is not drawn yet, see `StatefulDraw`."""
        return max([sample, *(d.positions.stop for d in self._drawn if d.epoch == epoch)])

    def take_up(self, pool: WindowIndex) -> PrioritizedDraw:
        """Give new windows the highest priority so far, and those that left none, see `StatefulDraw`.

        Before the first draw it begins anew: the places of windows, and with them the order of additions in the sums,
        follow from the versions that samples were drawn from. So it does where dropped episodes are restored.
        """
        assert self._places is not None
        if not self._begun or self._places.has_returned(pool):
            fresh = PrioritizedDraw(self._sampler, pool)
            fresh.ahead = self.ahead
            return fresh
        self._come(self._places, pool)
        return self.over(pool)

    def over(self, pool: WindowIndex) -> PrioritizedDraw:
        """Return this draw as it gives windows of ``pool``, see `StatefulDraw`."""
        found = copy(self)
        found._pool = pool
        return found

    def _come(self, places: Places, pool: WindowIndex) -> None:
        given = self._sampler.priority
        assert given is None or isinstance(given, str)
        values = None if given is None else _of_column(pool, given).values.take(pool.table.number)
        for first, stop in places.leave(pool):
            self.priorities.leave(first, stop)
        stay = places.close_gaps()
        if stay is not None:
            self.priorities.keep(stay)
        rows = places.come(pool)
        counts = pool.prefix.counts.take(rows)
        self.priorities.come(int(counts.sum()), None if values is None else np.repeat(values.take(rows), counts))

    def reserve(self, prefetch: int | None, usual: int) -> int:
        """Return how many gathers may be read ahead: at most ``lag``."""
        depth = usual if prefetch is None else prefetch
        if prefetch is not None and depth > self.ahead:
            raise InvalidArgument(
                f"prefetch={depth} with {self._sampler}: batches would be drawn before updates that count.",
                hint=f"Prioritized(lag={depth}), or prefetch={self.ahead}",
            )
        depth = min(depth, self.ahead)
        self.ahead -= depth
        return depth

    def check(self, report: Report) -> None:
        """Refuse what `observe` would refuse, see `StatefulDraw`."""
        self.priorities.check(*self._placed(report))

    def _placed(self, report: Report) -> tuple[IntArray, FloatArray]:
        """Return the places of windows that are still there, and their priorities [K]."""
        if self._places is None or not len(report.windows):
            return report.windows, report.priority
        places, there = self._places.find(report.windows)
        return (places, report.priority) if there is None else (places[there], report.priority[there])

    def observe(self, report: Report, beta: float | None = None) -> None:
        """Set priorities; where a window occurs twice, its last priority counts.

        Windows that have left a growing dataset have none. ``beta`` applies to importance weights from the next draw
        on.

        Raises
        ------
        InvalidArgument
            A priority is negative or not finite; nothing is changed.
        """
        self.priorities.update(*self._placed(report))
        self._begun = True
        if beta is not None:
            self.priorities.beta = beta

    def forget(self) -> None:
        """Drop the batches drawn ahead: the loader moves elsewhere."""
        self._drawn.clear()

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Return priorities and the batches drawn but not given out; arrays as tensors, which ``torch.load`` reads."""
        pending = [d for d in self._drawn if d.epoch == epoch and d.positions[0] >= sample]
        drawn = [
            {
                "first": d.positions[0],
                "windows": portable(host(d.windows)),
                "probability": portable(host(d.probability)),
                "weight": portable(host(d.weight)),
            }
            for d in sorted(pending, key=lambda d: d.positions[0])
        ]
        held = self.priorities.state()
        held["masses"] = portable(held["masses"])
        return {"priorities": held | ({} if self._places is None else self._places.state()), "drawn": drawn}

    def load(self, state: Mapping[str, Any], order: Order) -> None:
        """Restore a `state`.

        Raises
        ------
        WrongState
            The state has another number of windows or other settings; nothing is changed.
        """
        if "priorities" not in state or "drawn" not in state:
            raise WrongState("this state has no priorities.", hint="that of a loader with Prioritized")
        drawn = [self._loaded(d, order.epoch) for d in state["drawn"]]
        held = {name: host(x) if name == "masses" else x for name, x in state["priorities"].items()}
        places = None if self._places is None else Places()
        if places is not None and self._places is not None:
            places.load(held)
            self.priorities.load(held, count=places.total)
            self._places.take(places)
        else:
            self.priorities.load(held)
        self.forget()
        self._drawn.extend(drawn)
        self._begun = True

    def _loaded(self, drawn: Mapping[str, Any], epoch: int) -> _Drawn:
        windows = np.asarray(host(drawn["windows"]), np.int64)
        positions = range(int(drawn["first"]), int(drawn["first"]) + len(windows))
        probability, weight = (np.asarray(host(drawn[name]), np.float64) for name in ("probability", "weight"))
        return _Drawn(epoch, positions, *map(self.priorities.sent, (windows, probability, weight)))


def _initial(pool: WindowIndex, priority: str | FloatArray) -> FloatArray:
    """Return the priority of every window; with priorities by transition, 1 for an anchor that is not one."""
    return _of_column(pool, priority).of_windows(pool, without=1.0)


def _of_column(pool: WindowIndex, priority: str | FloatArray) -> weighted.DatasetWeights:
    """Return the priorities that were given.

    Raises
    ------
    InvalidArgument
        One is negative or not finite.
    """
    given = weighted.of(pool, priority, "Prioritized", "priorities")
    good = (given.values >= 0) & (given.values < np.inf)
    if not good.all():
        place = int(good.argmin())
        raise InvalidArgument(
            f"Prioritized, {given.what}: priority {given.values[place]} at place {place:,} of {len(good):,}:"
            " priorities are finite and not negative.",
            hint="the absolute values of errors",
        )
    return given
