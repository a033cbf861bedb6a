"""`Prioritized`: draws by priorities that training reports, with importance weights that correct for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from math import inf, log10, nan
from typing import TYPE_CHECKING, Any

import numpy as np

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
from rlds_cli.loader.kernel import Floats, PrefixTable, SampleNumbers, SumTree
from rlds_cli.loader.order import WINDOW, Order, set_integer
from rlds_cli.loader.samplers import Endless, StatefulDraw, weighted
from rlds_cli.loader.samplers.places import Places
from rlds_cli.loader.samplers.reports import Report
from rlds_cli.loader.tensors import host, portable
from rlds_cli.ted import Array, BoolArray, IntArray

if TYPE_CHECKING:
    import torch

_Convert = Callable[[Any], Any]
LEAST, MOST = 1e-290, 1e290  # masses between them have sums that are neither infinite nor short of bits
_DIGITS = 280  # masses are between 10**-280 and about 10**280


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
        names, episode, number, chance, weight = self.priorities.draw(order, positions, self._pool.prefix.table)
        return SampledWindows(order, positions, episode, number, partial(np.asarray, chance), weight, names)

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


class Priorities:
    """Draws the windows 0..count-1 in proportion to ``(priority + eps) ** alpha``.

    The proportional variant of Schaul et al. (2016), "Prioritized experience replay", section 3.3. Every window starts
    with priority 1 and keeps it until it is updated. A window takes 10.3 bytes.

    Parameters
    ----------
    count : int
        How many windows.
    alpha : float
        How far priorities matter: 0 is not at all, 1 in proportion.
    beta : float
        How far importance weights correct for them: 0 is not at all, 1 in full. May be set at any time.
    eps : float
        Added to every priority, so that a window of priority 0 is still drawn; positive.
    room : int, optional
        How many windows there is room for at first, where windows come and leave.

    Attributes
    ----------
    highest : float
        The highest priority so far, where windows come and leave.

    Raises
    ------
    InvalidArgument
    """

    def __init__(self, count: int, *, alpha: float, beta: float, eps: float, room: int | None = None) -> None:
        self.highest, self._changes = 1.0, room is not None
        self.alpha, self.eps = _number("alpha", alpha), _number("eps", eps)
        self.beta = beta
        if self.eps == 0:
            raise InvalidArgument("eps=0: a window of priority 0 would never be drawn again.", hint="eps=1e-6")
        if not self.alpha * log10(self.eps) > -_DIGITS or not self.alpha * log10(1 + self.eps) < _DIGITS:
            raise InvalidArgument(f"alpha={alpha} with eps={eps}: eps ** alpha is out of range.", hint="alpha=0.6")
        self._most = 10.0 ** min(_DIGITS, _DIGITS / max(self.alpha, 1))
        self._tree = SumTree(count, (1 + self.eps) ** self.alpha, room)

    def sent(self, values: Array) -> Any:
        """Return an array where the masses are, as `find` returns one."""
        return values

    @property
    def count(self) -> int:
        """Number of windows, those that left included."""
        return self._tree.count

    @property
    def masses(self) -> Floats:
        """A copy of ``(priority + eps) ** alpha`` [count]."""
        return self._tree.masses.copy()

    def come(self, count: int, priority: FloatArray | None = None) -> None:
        """Add windows at the end, with priorities [count]; with the highest so far without them."""
        total = self._tree.count + count
        if total > self._tree.capacity:
            self._rebuild(self._tree.masses, 2 * total)
        given: Floats = np.full(count, self.highest) if priority is None else priority.astype(np.float64)
        self._tree.extend((given + self.eps) ** self.alpha)

    def leave(self, first: int, stop: int) -> None:
        """Note that windows [first, stop) left: they are never drawn."""
        self._tree.set(first, stop, 0.0)

    def keep(self, windows: IntArray) -> None:
        """Forget all windows but ``windows``, ascending, which are numbered anew."""
        self._rebuild(self._tree.masses[windows], max(2 * len(windows), 1))

    def _rebuild(self, masses: Floats, room: int) -> None:
        tree = SumTree(len(masses), 0.0, room)
        tree.fill(masses)
        self._tree = tree

    @property
    def beta(self) -> float:
        """The exponent of importance weights, see the parameter."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = _number("beta", beta)

    def find(self, u: Floats) -> Any:
        """Return the windows that uniform draws fall on.

        Parameters
        ----------
        u : float64 array [K]
            Uniform, in [0, 1).

        Returns
        -------
        int64 array [K]
        """
        return self._tree.find(u)

    def draw(
        self, order: Order, positions: SampleNumbers, prefix: PrefixTable
    ) -> tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray]:
        """Draw windows for samples: see `find` and `weigh`; and find each in ``prefix``.

        Returns
        -------
        windows, interval, place : int64 arrays [K]
        probability, weight : float64 arrays [K]
        """
        return self._tree.draw(order.stream(WINDOW), positions, prefix, self._beta)

    def weigh(self, windows: Any) -> tuple[Any, Any]:
        """Return P, the chance of one draw to give each of ``windows`` [K], and their importance weights in (0, 1].

        These are ``(count * P) ** -beta``, divided by the largest of all windows (Schaul et al., section 3.4) and not
        of the batch: a window's weight does not depend on the other windows drawn.
        """
        return self._tree.weigh(windows, self.beta)

    def update(self, windows: Any, priority: Any) -> None:
        """Set priorities, such as absolute TD errors.

        Parameters
        ----------
        windows : int array
            In any shape, on any device; where a window occurs twice, its last priority counts.
        priority : array
            One for each of ``windows``, in any shape; without gradient.

        Raises
        ------
        InvalidArgument
            A priority is negative, infinite or NaN, a window does not exist, or there is not one priority for each
            window. Nothing is changed.
        """
        at, new = self._read(windows, priority, as_integers, as_floats)
        bad = self._tree.update(at, new, eps=self.eps, alpha=self.alpha, most=self._most)
        if bad is not None:
            self._complain(bad, at, new)
        if self._changes:  # it is what windows that come have
            self.highest = max(self.highest, float(new.max(initial=0.0)))

    @staticmethod
    def _read(windows: Any, priority: Any, integers: _Convert, floats: _Convert) -> tuple[Any, Any]:
        """Return windows and priorities [K], converted."""
        at = _convert(integers, windows, "windows are not integers")
        new = _convert(floats, priority, "priorities are not numbers")
        if len(at) != len(new):
            raise InvalidArgument(f"{len(new):,} priorities for {len(at):,} windows: one for each is needed.")
        return at, new

    def check(self, windows: IntArray, priority: FloatArray) -> None:
        """Refuse what `update` would refuse."""
        good = (windows >= 0) & (windows < self.count) & (priority >= 0) & (priority <= self._most)
        if not good.all():
            self._complain(int(good.argmin()), windows, priority)

    def _complain(self, place: int, windows: Any, priority: Any) -> None:
        where, window, value = f"at place {place:,} of {len(windows):,}", int(windows[place]), float(priority[place])
        if not 0 <= window < self.count:
            raise InvalidArgument(f"window {window:,} {where}: there are {self.count:,}. No priority was changed.")
        raise InvalidArgument(
            f"priority {value} {where} (window {window:,}): priorities are finite and not negative, at most"
            f" {self._most:.0e}. None was changed.",
            hint="the absolute value of an error" if value < 0 else None,
        )

    def state(self) -> dict[str, Any]:
        """Return ``alpha``, ``beta``, ``eps``, and `masses`."""
        found = {"alpha": self.alpha, "beta": self.beta, "eps": self.eps, "masses": self.masses}
        return found | ({"highest": self.highest, "room": self._tree.capacity} if self._changes else {})

    def load(self, state: Mapping[str, Any], count: int | None = None) -> None:
        """Restore a `state`, with its ``beta``; where windows come and leave, it is of ``count`` windows.

        Raises
        ------
        WrongState
            The state has another ``count``, ``alpha`` or ``eps``, or is not one. Nothing is changed.
        """
        missing = {"alpha", "beta", "eps", "masses", *(("highest", "room") if self._changes else ())} - set(state)
        if missing:
            raise WrongState(f"This state has no {', '.join(sorted(missing))}: it is not one of priorities.")
        for name in ("alpha", "eps"):
            if state[name] != getattr(self, name):
                raise WrongState(f"The priorities of this state have {name}={state[name]}, not {getattr(self, name)}.")
        masses = np.asarray(state["masses"])
        count = self.count if count is None else count
        if masses.shape != (count,):
            raise WrongState(f"This state has priorities of shape {list(masses.shape)}; {count:,} are needed.")
        if masses.dtype != np.float64 or not self._possible(masses).all():
            raise WrongState(f"The priorities of this state ({masses.dtype}) are not those that were saved.")
        self.beta = state["beta"]
        if self._changes:
            self.highest = float(state["highest"])
            self._rebuild(masses, max(int(state["room"]), count))
        else:
            self.fill(masses)

    def fill(self, masses: Floats) -> None:
        """Set all masses [count]."""
        self._tree.fill(masses)

    def _possible(self, masses: Floats) -> BoolArray:
        """Return which masses a window can have; that of one that left is zero."""
        possible: BoolArray = (masses >= LEAST) & (masses <= MOST)
        return possible | (masses == 0) if self._changes else possible


def _convert(convert: _Convert, values: Any, otherwise: str) -> Any:
    try:
        return convert(values)
    except (TypeError, ValueError):
        kind = getattr(values, "dtype", type(values).__name__)
        raise InvalidArgument(f"{otherwise.capitalize()}: {kind}. No priority was changed.") from None


def as_floats(values: Any) -> FloatArray:
    """Anything like an array, on any device, as float64 [K]."""
    return np.asarray(host(values), np.float64).reshape(-1)


def as_integers(values: Any) -> IntArray:
    """Anything like an array of integers, on any device, as int64 [K]."""
    return np.asarray(host(values)).reshape(-1).astype(np.int64, casting="same_kind", copy=False)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = nan
    if not 0 <= number < inf:
        raise InvalidArgument(f"{name}={value!r}: a number of at least 0 is needed.")
    return number
