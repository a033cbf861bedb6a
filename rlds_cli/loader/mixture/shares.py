"""The shares of a mixture's members: each sample's member, and its number among the member's samples.

There are three ways to share samples out. With constant weights (`ConstantShares`), members take turns by the chairman
assignment (Tijdeman 1980, "The chairman assignment problem"), tabulated over one period: member and number follow from
the sample's number. Members drawn at random (`RandomShares`) and weights that change (`DeficitRounds`) have to be
followed from the start of the epoch; `Checkpoints` keeps states on the way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from heapq import heappop, heappush
from math import floor, gcd, inf, isfinite
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import EmptyWindow, InvalidArgument, WrongState
from rlds_cli.loader.kernel import SampleNumbers
from rlds_cli.loader.order import WINDOW, Order
from rlds_cli.loader.schedule import Ranks, SampleRun

LONGEST_PERIOD = 1 << 16
MOST_ERROR = 2.5  # of a member's count in any stretch of a rank; where it would be more, ranks are dealt samples
EXACT = 1e-9  # a period fits the weights if the relative error of every share is less than this
_CHUNK = 1 << 18  # draws at a time, when samples are skipped
_POINTS = 1 << 10
FloatArray = npt.NDArray[np.float64]
State = TypeVar("State")


def quantised(weights: Sequence[float], longest: int = LONGEST_PERIOD) -> tuple[int, ...]:
    """Round ``weights`` to integers: the turns of every member in a period.

    The period is the shortest that fits the weights, else the one up to ``longest`` with the smallest relative error of
    a share. Every positive weight gets a turn, which is too much for a share below about 1 / ``longest``.

    Parameters
    ----------
    weights : sequence of float [members]
        Not negative, not all zero.
    longest : int
    """
    w: FloatArray = np.asarray(weights, np.float64)
    drawn = np.flatnonzero(w)
    shares = w[drawn] / w[drawn].sum()
    turns = np.zeros(len(w), np.int64)
    turns[drawn] = _closest(shares, longest)
    return tuple((turns // np.gcd.reduce(turns)).tolist())


def _closest(shares: FloatArray, longest: int) -> IntArray:
    periods = np.arange(len(shares), longest + 1)
    total, worst = np.zeros(len(periods)), np.zeros(len(periods))
    for share in shares:
        exact = share * periods
        rounded = np.maximum(np.rint(exact), 1)
        total += rounded
        np.maximum(worst, np.abs(rounded / exact - 1), out=worst)
    worst[total != periods] = np.inf
    fitting = np.flatnonzero(worst < EXACT)
    best = int(fitting[0]) if fitting.size else int(worst.argmin())
    if np.isfinite(worst[best]):
        turns: IntArray = np.maximum(np.rint(shares * periods[best]), 1).astype(np.int64)
        return turns
    return _apportioned(shares, longest)


def _apportioned(shares: FloatArray, total: int) -> IntArray:
    """Give each member at least one turn, and ``total`` in all: the largest shares give up turns for the smallest."""
    turns = np.maximum(np.floor(shares * total), 1).astype(np.int64)
    while (missing := total - int(turns.sum())) != 0:
        lacking = shares * total - turns
        if missing < 0:
            lacking[turns == 1] = np.inf
        turns[np.argmax(lacking) if missing > 0 else np.argmin(lacking)] += np.sign(missing)
    return turns


@lru_cache(maxsize=16)
def period(turns: tuple[int, ...]) -> TurnPeriod:
    """Return the chairman assignment for members with so many ``turns`` each; 70 ms for the longest period."""
    return TurnPeriod(turns, _assign(turns))


def _assign(turns: tuple[int, ...]) -> IntArray:
    """Assign the turns of a period to members [sum of turns].

    Tijdeman's rule for K members with shares w: of the members with n * w - taken >= d, for d = 1 / (2K - 2), turn n
    goes to the one with the least (1 - d - (n * w - taken)) / w. So turn j of a member has a first possible place and
    a deadline, which do not depend on the others.
    """
    drawn = [m for m, t in enumerate(turns) if t]
    total, k = sum(turns), 2 * len(drawn) - 2
    if k == 0:
        return np.full(total, drawn[0], np.int64)
    member = np.repeat(drawn, [turns[m] for m in drawn])
    j = np.concatenate([np.arange(turns[m]) for m in drawn])
    rate = k * np.asarray(turns)[member]
    first = -(-total * (1 + k * j) // rate)
    by_deadline = np.argsort(total * (k * (j + 1) - 1) / rate, kind="stable")
    urgency = np.empty(total, np.int64)
    urgency[by_deadline] = np.arange(total)
    return member[by_deadline].take(_earliest_deadline_first(first, urgency))


def _earliest_deadline_first(first: IntArray, urgency: IntArray) -> IntArray:
    """Order urgencies by deadline, one for each place and none before its ``first``; places start at 1."""
    coming = np.argsort(first, kind="stable")
    firsts, urgencies = first[coming].tolist(), urgency[coming].tolist()
    waiting: list[int] = []
    served, i = [], 0
    for place in range(1, len(firsts) + 1):
        while i < len(firsts) and firsts[i] <= place:
            heappush(waiting, urgencies[i])
            i += 1
        served.append(heappop(waiting))
    return np.array(served)


@lru_cache(maxsize=64)
def strided_error(turns: tuple[int, ...], world: int) -> float:
    """Return by how much a member's count in a stretch of every ``world``-th turn is off its share, at most.

    It is infinite if the period has a common divisor with ``world``: ranks then come to turns of their own.
    """
    of = period(turns)
    if gcd(len(of), world) > 1:
        return inf
    member, _ = of.find(np.arange(len(of)) * world % len(of))
    off = [np.cumsum((member == m) - share) for m, share in enumerate(of.turns / len(of))]
    return max(float(np.ptp(np.append(x, 0.0))) for x in off)


class TurnPeriod:
    """One period of turns.

    Parameters
    ----------
    turns : tuple of int [members]
        Turns of each member.
    member : int array [sum of turns]
        Member of each turn.
    """

    def __init__(self, turns: tuple[int, ...], member: IntArray) -> None:
        self.turns: IntArray = np.array(turns)
        self._member = member
        self._before: IntArray = np.empty(len(member), np.int64)  # turns of the same member before this one
        for m in range(len(turns)):
            self._before[member == m] = np.arange(turns[m])

    def __len__(self) -> int:
        return len(self._member)

    def find(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Member of every turn, and how many turns of that member come before it."""
        rounds = numbers // len(self)
        within = numbers - rounds * len(self)
        member = self._member.take(within)
        return member, rounds * self.turns.take(member) + self._before.take(within)

    def counts(self, number: int) -> IntArray:
        """Turns of every member before turn ``number``."""
        rounds, within = divmod(number, len(self))
        counts: IntArray = rounds * self.turns + np.bincount(self._member[:within], minlength=len(self.turns))
        return counts


def spread(counts: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Spread ``counts`` samples of every member evenly over one row; ties go to the first member.

    Returns
    -------
    member, place : int arrays [sum of counts]
        ``place`` is the number of earlier samples of the same member.
    """
    member = np.repeat(np.arange(len(counts)), counts)
    place = np.concatenate([np.arange(c) for c in counts])
    order = np.argsort((place + 0.5) / np.asarray(counts)[member], kind="stable")
    return member[order], place[order]


def places(member: IntArray, before: Sequence[int]) -> tuple[IntArray, list[int]]:
    """Number the samples of every member from ``before`` on [len(member)]; return these and the next numbers."""
    place, after = np.empty(len(member), np.int64), list(before)
    for m, start in enumerate(before):
        slots = np.flatnonzero(member == m)
        place[slots] = np.arange(start, start + len(slots))
        after[m] += len(slots)
    return place, after


@dataclass(frozen=True)
class MemberDraws:
    """Independent random draws of members.

    Parameters
    ----------
    weights : sequence of float [members]
    """

    weights: tuple[float, ...]

    @cached_property
    def _ends(self) -> FloatArray:
        ends = np.cumsum(self.weights)
        inner: FloatArray = ends[:-1] / ends[-1]
        return inner

    def draw(self, order: Order, numbers: range) -> IntArray:
        """Draw the members of the samples ``numbers``; members of zero weight are never drawn."""
        return np.searchsorted(self._ends, order.uniform(WINDOW, numbers), "right").astype(np.int64)

    def follow(self, order: Order, counts: list[int], start: int, stop: int) -> list[int]:
        """Count the samples of every member before ``stop``; ``counts`` are those before ``start``."""
        total = np.array(counts)
        for first in range(start, stop, _CHUNK):
            drawn = self.draw(order, range(first, min(first + _CHUNK, stop)))
            total += np.bincount(drawn, minlength=len(counts))
        followed: list[int] = total.tolist()
        return followed


class Checkpoints(Generic[State]):
    """States of one epoch at some points, of a computation that only goes forwards.

    Parameters
    ----------
    start : State
        The state at point 0.
    follow : callable
        Computes the state at a later point from an epoch, a state, its point and that later point.
    """

    def __init__(self, start: State, follow: Callable[[int, State, int, int], State]) -> None:
        self._start, self._follow = start, follow
        self._epoch, self._points, self._states = 0, [0], [start]

    def at(self, epoch: int, point: int) -> State:
        """Return the state at ``point``, computed from the nearest known one before it."""
        if epoch != self._epoch:
            self._forget(epoch)
        i = bisect_right(self._points, point) - 1
        if self._points[i] == point:
            return self._states[i]
        state = self._follow(epoch, self._states[i], self._points[i], point)
        self.note(epoch, point, state)
        return state

    def note(self, epoch: int, point: int, state: State) -> None:
        """Note the state at a point."""
        if epoch != self._epoch:
            self._forget(epoch)
        i = bisect_right(self._points, point)
        if self._points[i - 1] == point:
            self._states[i - 1] = state
            return
        self._points.insert(i, point)
        self._states.insert(i, state)
        if len(self._points) > _POINTS:  # every second one, the first and the latest excepted
            del self._points[1 : _POINTS // 2 : 2], self._states[1 : _POINTS // 2 : 2]

    def cut(self, epoch: int, point: int) -> None:
        """Forget the states after a point."""
        if epoch != self._epoch:
            self._forget(epoch)
        after = bisect_right(self._points, point)
        del self._points[after:], self._states[after:]

    def _forget(self, epoch: int) -> None:
        self._epoch, self._points, self._states = epoch, [0], [self._start]


Weights = Mapping[str, float]


class MemberTurns(NamedTuple):
    """The members of some samples.

    Attributes
    ----------
    member : int array [K]
    place : int array [K]
        Number of earlier samples of the same member, from the start of the epoch.
    chance : callable
        Returns the share of each sample's member at the time of its draw, float64 [K].
    """

    member: IntArray
    place: IntArray
    chance: Callable[[], FloatArray]

    def of(self, part: IntArray) -> MemberTurns:
        """Return the members of some of the samples [n], by their numbers among these."""
        return MemberTurns(self.member.take(part), self.place.take(part), lambda: self.chance().take(part))


class SourceShares(Protocol):
    """The protocol of a way to share samples out among members."""

    @property
    def shares(self) -> FloatArray | None:
        """Share of every member [members], adding up to 1; None if it changes."""
        ...

    def in_turn(self, world: int) -> bool:
        """Return whether samples rank, rank + world, ... hold every member's share, whatever the rank."""
        ...

    def turns(self, run: SampleRun, mine: range) -> MemberTurns:
        """Return the members of the samples ``mine``, some of ``run``."""
        ...

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Return the samples of every member before ``sample`` [members]."""
        ...

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Return what else, besides ``counts``, the next turns depend on: plain numbers."""
        ...

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Restore the counts and the `state` of a position."""
        ...


class ConstantShares:
    """Exact counts with constant weights, from a tabulated period.

    Parameters
    ----------
    weights : sequence of float [members]
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._turns = quantised(weights)
        self._period = period(self._turns)
        self.shares: FloatArray = self._period.turns / len(self._period)

    def in_turn(self, world: int) -> bool:
        """Return whether every rank's turns hold the shares as those of all ranks do, see `SourceShares`."""
        return world == 1 or strided_error(self._turns, world) < MOST_ERROR

    def turns(self, run: SampleRun, mine: range) -> MemberTurns:
        """Return members and places, see `SourceShares`."""
        member, place = self._period.find(numbers(mine))
        return MemberTurns(member, place, lambda: self.shares.take(member))

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Return the samples of every member, see `SourceShares`."""
        counts: list[int] = self._period.counts(sample).tolist()
        return counts

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Return nothing: turns follow from the sample's number."""
        return {}

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Do nothing: turns follow from the sample's number."""


class RandomShares:
    """Random counts: the member of every sample is drawn independently.

    Parameters
    ----------
    weights : sequence of float [members]
    order : callable
        Returns the order of the draws of members, for an epoch.
    """

    def __init__(self, weights: Sequence[float], order: Callable[[int], Order]) -> None:
        w = np.asarray(weights, np.float64)
        self.shares: FloatArray = w / w.sum()
        self._lots, self._order = MemberDraws(tuple(weights)), order
        self._ledger = Checkpoints([0] * len(weights), self._follow)

    def _follow(self, epoch: int, counts: list[int], start: int, stop: int) -> list[int]:
        return self._lots.follow(self._order(epoch), counts, start, stop)

    def in_turn(self, world: int) -> bool:
        """Return True: members of samples are independent."""
        return True

    def turns(self, run: SampleRun, mine: range) -> MemberTurns:
        """Return members and places, see `SourceShares`."""
        everyone, epoch = run.everyone, run.order.epoch
        member = self._lots.draw(self._order(epoch), everyone)
        place, after = places(member, self._ledger.at(epoch, everyone.start))
        self._ledger.note(epoch, everyone.stop, after)
        part = _part(everyone, mine)
        return MemberTurns(member[part], place[part], lambda: self.shares.take(member[part]))

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Return the samples of every member, see `SourceShares`."""
        return self._ledger.at(epoch, sample)

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Return nothing: turns follow from the counts."""
        return {}

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Note the counts."""
        self._ledger.note(epoch, sample, counts)


class Deficits(NamedTuple):
    """The counts and the deficits of members before a batch.

    ``owed`` is the deficit of each: the sum of weight * batch size so far, less its count.
    """

    counts: list[int]
    owed: list[float]


class DeficitRounds:
    """Weights that are a function of the batch's number, in deficit rounds.

    The counts of a batch make up for the deficits of the batches before. With an ``order``, members are drawn at
    random.

    Parameters
    ----------
    weights : callable
        Returns the shares of the members in a batch [members], adding up to 1, for its number.
    members : int
    batch_size : int
        Samples of the global batch.
    order : callable, optional
        Returns the order of the draws of members, for an epoch.
    """

    shares = None

    def __init__(
        self,
        weights: Callable[[int], list[float]],
        members: int,
        batch_size: int,
        order: Callable[[int], Order] | None = None,
    ) -> None:
        self._weights, self._size, self._order = weights, batch_size, order
        self._ledger = Checkpoints(Deficits([0] * members, [0.0] * members), self._follow)

    def _follow(self, epoch: int, standing: Deficits, start: int, stop: int) -> Deficits:
        for batch in range(start, stop):
            standing = self._batch(epoch, batch, standing, self._weights(batch))[2]
        return standing

    def _batch(
        self, epoch: int, batch: int, standing: Deficits, weights: list[float]
    ) -> tuple[IntArray, IntArray, Deficits]:
        """Return the members of a batch, the earlier samples of each within it, and the deficits after it."""
        due = [o + w * self._size for o, w in zip(standing.owed, weights, strict=True)]
        if self._order is None:
            given = apportion(due, weights, self._size)
            member, place = _spread(tuple(given))
        else:
            drawn = range(batch * self._size, (batch + 1) * self._size)
            member = MemberDraws(tuple(weights)).draw(self._order(epoch), drawn)
            place, given = places(member, [0] * len(weights))
        counts = [c + g for c, g in zip(standing.counts, given, strict=True)]
        return member, place, Deficits(counts, [d - g for d, g in zip(due, given, strict=True)])

    def in_turn(self, world: int) -> bool:
        """Return whether members of samples are independent: in rounds, those of a batch have fixed places."""
        return world == 1 or self._order is not None

    def turns(self, run: SampleRun, mine: range) -> MemberTurns:
        """Return members and places, see `SourceShares`."""
        epoch, first = run.order.epoch, run.first // self._size
        standing = self._ledger.at(epoch, first)
        members, within, before, weights = [], [], [], []
        for batch in range(first, first + run.batches):
            weights.append(self._weights(batch))
            before.append(standing.counts)
            member, place, standing = self._batch(epoch, batch, standing, weights[-1])
            members.append(member)
            within.append(place)
        self._ledger.note(epoch, first + run.batches, standing)
        member = np.concatenate(members)
        in_tables = member + np.arange(0, run.batches * len(before[0]), len(before[0])).repeat(self._size)
        place = np.concatenate(within) + np.array(before).take(in_tables)
        part = _part(run.everyone, mine)
        return MemberTurns(member[part], place[part], partial(np.array(weights).take, in_tables[part]))

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Return the samples of every member, see `SourceShares`."""
        return self._ledger.at(epoch, sample // self._size).counts

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Return the batch size and the deficits."""
        return {"batch_size": self._size, "owed": self._ledger.at(epoch, sample // self._size).owed}

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Restore counts and deficits.

        Raises
        ------
        WrongState
            The state is of another batch size: weights go by batches.
        """
        if state["batch_size"] != self._size:
            raise WrongState(
                f"this state is of batches of {state['batch_size']}, this loader's have {self._size}: weights that"
                " change from batch to batch need the same size.",
                hint=f"Loader(..., batch_size={state['batch_size']})",
            )
        self._ledger.note(epoch, sample // self._size, Deficits(counts, [float(x) for x in state["owed"]]))


class LiveRounds(DeficitRounds):
    """Deficit rounds of a live mixture, whose members may have no windows yet.

    The share of a member without windows goes to the others, by their weights. Which members have windows may change
    from run to run.

    Parameters
    ----------
    weights : callable
        Returns the weights of the members in a batch [members], for its number.
    names : sequence of str
        Of the members.
    batch_size : int
        Samples of the global batch.
    order : callable, optional
        Returns the order of the draws of members, for an epoch.
    """

    def __init__(
        self,
        weights: Callable[[int], Sequence[float]],
        names: Sequence[str],
        batch_size: int,
        order: Callable[[int], Order] | None = None,
    ) -> None:
        super().__init__(self._shares, len(names), batch_size, order)
        self._asked, self._names = weights, names
        self._known_epoch, self._since = 0, list[int]()  # first batches, ascending, and the factors from there on
        self._factors = list[tuple[float, ...]]()

    def use(self, epoch: int, batch: int, factors: tuple[float, ...]) -> None:
        """Multiply the members' weights by ``factors`` [members] from ``batch`` on, and forget what came later."""
        if epoch != self._known_epoch:
            self._known_epoch, self._since, self._factors = epoch, [], []
        if self._since and self._since[-1] <= batch and self._factors[-1] == factors:
            return
        kept = bisect_left(self._since, batch)
        del self._since[kept:], self._factors[kept:]
        self._ledger.cut(epoch, batch)
        if not kept or self._factors[-1] != factors:
            self._since.append(batch)
            self._factors.append(factors)

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Restore counts and deficits, see `DeficitRounds`, in place of those of all that was shared out before."""
        super().load(epoch, sample, counts, state)
        self._ledger.cut(epoch, 0)
        super().load(epoch, sample, counts, state)
        self._known_epoch, self._since, self._factors = epoch, [0], self._factors[-1:]

    def _shares(self, batch: int) -> list[float]:
        """Return the shares of the members in a batch.

        Raises
        ------
        EmptyWindow
            All members with windows have weight zero.
        """
        factors = self._factors[max(0, bisect_right(self._since, batch) - 1)]
        weights = [w * f for w, f in zip(self._asked(batch), factors, strict=True)]
        total = sum(weights)
        if not total:
            absent = ", ".join(name for name, f in zip(self._names, factors, strict=True) if not f)
            raise EmptyWindow(
                f"Mixture at step {batch:,}: {absent} has no windows yet, and all others have weight zero.",
                hint="a positive weight of another member",
            )
        return [w / total for w in weights]


_spread = lru_cache(maxsize=1024)(spread)


_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio


def dealt(turns: MemberTurns, members: int, run: SampleRun, ranks: Ranks) -> IntArray:
    """Return the samples of a rank, as numbers within ``run``, ascending: of every batch, its share of every member.

    A member's counts on two ranks differ by one at most, in every batch. Two members are dealt out to the ranks in
    turn, from batch to batch: the first one forwards and the second one backwards, so that all ranks have samples equal
    in number, and those of each member differ by one at most at any time. More members are dealt one after the other;
    the rank that comes first changes from batch to batch by the golden ratio, so that remainders are even over time.

    Parameters
    ----------
    turns : MemberTurns
        Of all samples of ``run``.
    members : int
        How many there are.
    run : SampleRun
    ranks : Ranks
    """
    starts = np.arange(0, len(turns.member), run.size)
    if members == 2:
        backwards = (run.first + starts - 1).repeat(run.size) - turns.place
        return np.flatnonzero(np.where(turns.member, backwards, turns.place) % ranks.world == ranks.rank)
    by_member = np.argsort(turns.member.reshape(run.batches, run.size), axis=1, kind="stable")
    batches = range(run.first // run.size, run.first // run.size + run.batches)
    turned = np.array([(n * _GOLDEN % (1 << 64)) * ranks.world >> 64 for n in batches])
    first = (ranks.rank + turned) % ranks.world
    chosen = np.take_along_axis(by_member, first[:, None] + np.arange(0, run.size, ranks.world), axis=1)
    chosen.sort(axis=1)
    return (chosen + starts[:, None]).reshape(-1)


def apportion(due: Sequence[float], weights: Sequence[float], total: int) -> list[int]:
    """Round ``due`` to integers that add up to ``total``: down, then up by the largest remainders.

    A member of zero weight gets none, and no count is negative.
    """
    given = [max(floor(d), 0) if w > 0 else 0 for d, w in zip(due, weights, strict=True)]
    able = [m for m, w in enumerate(weights) if w > 0]
    while (left := total - sum(given)) > 0:
        given[max(able, key=lambda m: due[m] - given[m])] += 1
    while left < 0:
        given[min((m for m in able if given[m]), key=lambda m: due[m] - given[m])] -= 1
        left += 1
    return given


def normalised(weights: Any, names: Sequence[str], when: str = "") -> list[float]:
    """Return the shares in the order of ``names``, adding up to 1.

    Raises
    ------
    InvalidArgument
        There is not one finite number, not negative, for each name, or all are zero.
    """
    if not isinstance(weights, Mapping):
        raise InvalidArgument(f"Mixture: weights{when} {weights!r}: a number for each of {', '.join(names)} is needed.")
    if weights.keys() != set(names):
        missing = [n for n in names if n not in weights]
        says = f"no weight of {', '.join(missing)}" if missing else "a weight of no member"
        raise InvalidArgument(
            f"Mixture: {says}: weights{when} are of {', '.join(map(str, weights))}; members are {', '.join(names)}."
        )
    numbers = [_number(n, weights[n], when) for n in names]
    total = sum(numbers)
    if not 0 < total < float("inf"):
        raise InvalidArgument(f"Mixture: weights{when} of {', '.join(names)} sum to {total:g}: nothing can be drawn.")
    return [x / total for x in numbers]


def _number(name: str, weight: Any, when: str) -> float:
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = float("nan")
    if not (isfinite(number) and number >= 0):
        raise InvalidArgument(f'Mixture: the weight of "{name}"{when} is {weight!r}: a number of at least 0 is needed.')
    return number


def numbers(positions: SampleNumbers) -> IntArray:
    """Return sample numbers as an array."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return positions


def _part(everyone: range, mine: range) -> slice:
    """Return the places of the samples ``mine`` among ``everyone``."""
    return slice(mine.start - everyone.start, None, mine.step)
