"""Which member of a mixture every sample comes from, and which of that member's samples it is: index maths alone.

With constant weights both are functions of the sample's number: members take turns by the chairman assignment
(Tijdeman 1980, "The chairman assignment problem"), tabulated over one period. Members drawn at random, and weights that
change, have to be followed from the start; `Ledger` keeps points on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rlds_cli.loader.sampling.order import WINDOW, Order
from rlds_cli.ted import IntArray

LONGEST_PERIOD = 1 << 16
EXACT = 1e-9  # a period fits the weights when every share in it is off by less than this part

_CHUNK = 1 << 18  # draws at a time, of samples that are passed over
_POINTS = 1 << 10

FloatArray = npt.NDArray[np.float64]
State = TypeVar("State")


def quantised(weights: Sequence[float], longest: int = LONGEST_PERIOD) -> tuple[int, ...]:
    """Whole numbers in proportion to ``weights``: turns of every member in a period.

    The shortest period that fits the weights, else of those up to ``longest`` the one that comes closest, by the
    largest relative error of a share. Every positive weight gets a turn: one below about 1 / ``longest`` is more than
    it should be.

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
    """At least one turn each, and ``total`` together: the largest shares give up what the smallest need."""
    turns = np.maximum(np.floor(shares * total), 1).astype(np.int64)
    while (missing := total - int(turns.sum())) != 0:
        lacking = shares * total - turns
        if missing < 0:
            lacking[turns == 1] = np.inf
        turns[np.argmax(lacking) if missing > 0 else np.argmin(lacking)] += np.sign(missing)
    return turns


@lru_cache(maxsize=16)
def period(turns: tuple[int, ...]) -> Period:
    """The chairman assignment for members with so many ``turns`` each; 70 ms for the longest period."""
    return Period(turns, _assign(turns))


def _assign(turns: tuple[int, ...]) -> IntArray:
    """Whose turn it is, [sum of turns].

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
    """Urgencies in the order in which they are served, one a place and none before its ``first``; places start at 1."""
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


class Period:
    """One period of turns.

    Parameters
    ----------
    turns : tuple of int [members]
        How many each member has.
    member : int array [sum of turns]
        Whose turn it is.
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
    """Put ``counts`` samples of every member in one row, evenly; equal places go to the first member.

    Returns
    -------
    member, place : int arrays [sum of counts]
        ``place`` counts the samples of the same member before.
    """
    member = np.repeat(np.arange(len(counts)), counts)
    place = np.concatenate([np.arange(c) for c in counts])
    order = np.argsort((place + 0.5) / np.asarray(counts)[member], kind="stable")
    return member[order], place[order]


def places(member: IntArray, before: Sequence[int]) -> tuple[IntArray, list[int]]:
    """Number the samples of every member from ``before`` on: [len(member)], and where the next ones go on."""
    place, after = np.empty(len(member), np.int64), list(before)
    for m, start in enumerate(before):
        slots = np.flatnonzero(member == m)
        place[slots] = np.arange(start, start + len(slots))
        after[m] += len(slots)
    return place, after


@dataclass(frozen=True)
class Lots:
    """Members drawn at random, independently of each other.

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
        """Members of the samples ``numbers``: those of zero weight are never drawn."""
        return np.searchsorted(self._ends, order.uniform(WINDOW, numbers), "right").astype(np.int64)

    def follow(self, order: Order, counts: list[int], start: int, stop: int) -> list[int]:
        """Samples of every member before ``stop``; ``counts`` are those before ``start``."""
        total = np.array(counts)
        for first in range(start, stop, _CHUNK):
            drawn = self.draw(order, range(first, min(first + _CHUNK, stop)))
            total += np.bincount(drawn, minlength=len(counts))
        followed: list[int] = total.tolist()
        return followed


class Ledger(Generic[State]):
    """States on a way that can only be followed forwards; of one epoch.

    Parameters
    ----------
    start : State
        At 0.
    follow : callable
        From an epoch, a state, its point and a later point to the state there.
    """

    def __init__(self, start: State, follow: Callable[[int, State, int, int], State]) -> None:
        self._start, self._follow = start, follow
        self._epoch, self._points, self._states = 0, [0], [start]

    def at(self, epoch: int, point: int) -> State:
        """The state at ``point``, from the nearest one before it that is known."""
        if epoch != self._epoch:
            self._forget(epoch)
        i = bisect_right(self._points, point) - 1
        if self._points[i] == point:
            return self._states[i]
        state = self._follow(epoch, self._states[i], self._points[i], point)
        self.note(epoch, point, state)
        return state

    def note(self, epoch: int, point: int, state: State) -> None:
        """Keep the state at a point."""
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

    def _forget(self, epoch: int) -> None:
        self._epoch, self._points, self._states = epoch, [0], [self._start]
