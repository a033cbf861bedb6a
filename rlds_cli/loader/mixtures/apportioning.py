"""The three ways in which a mixture's samples are shared out: exactly, by lots, by weights that change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import floor, isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.mixtures.shares import FloatArray, Ledger, Lots, period, places, quantised, spread
from rlds_cli.loader.reading import Run
from rlds_cli.loader.sampling.order import Order, Positions
from rlds_cli.ted import IntArray

Weights = Mapping[str, float]


class Turns(NamedTuple):
    """Samples by member; parts of it for ranks.

    Attributes
    ----------
    member : int array [K]
    place : int array [K]
        How many of the same member's samples come before, from the start of the epoch.
    chance : callable
        Gives the share that the member of each had when it was drawn, float64 [K].
    """

    member: IntArray
    place: IntArray
    chance: Callable[[], FloatArray]


class Apportioning(Protocol):
    """What a mixture asks of a way to share out its samples."""

    @property
    def shares(self) -> FloatArray | None:
        """Share of every member [members], adding up to 1; None when it changes."""
        ...

    def turns(self, run: Run, mine: range) -> Turns:
        """Members of the samples ``mine``, some of ``run``."""
        ...

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Samples of every member before ``sample`` [members]."""
        ...

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """What, beside ``counts``, is needed to go on from there; plain numbers."""
        ...

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Take over what is known of a place."""
        ...


class Constant:
    """Exact counts, from the tabulated period.

    Parameters
    ----------
    weights : sequence of float [members]
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self._period = period(quantised(weights))
        self.shares: FloatArray = self._period.turns / len(self._period)

    def turns(self, run: Run, mine: range) -> Turns:
        """Return members and places, see `Apportioning`."""
        member, place = self._period.find(numbers(mine))
        return Turns(member, place, lambda: self.shares.take(member))

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Return the samples of every member, see `Apportioning`."""
        counts: list[int] = self._period.counts(sample).tolist()
        return counts

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Nothing: the number of the sample says it all."""
        return {}

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Do nothing: the number of the sample says it all."""


class Random:
    """Every sample's member drawn independently.

    Parameters
    ----------
    weights : sequence of float [members]
    order : callable
        From an epoch to the randomness of the members' draws.
    """

    def __init__(self, weights: Sequence[float], order: Callable[[int], Order]) -> None:
        w = np.asarray(weights, np.float64)
        self.shares: FloatArray = w / w.sum()
        self._lots, self._order = Lots(tuple(weights)), order
        self._ledger = Ledger([0] * len(weights), self._follow)

    def _follow(self, epoch: int, counts: list[int], start: int, stop: int) -> list[int]:
        return self._lots.follow(self._order(epoch), counts, start, stop)

    def turns(self, run: Run, mine: range) -> Turns:
        """Return members and places, see `Apportioning`."""
        everyone, epoch = run.everyone, run.order.epoch
        member = self._lots.draw(self._order(epoch), everyone)
        place, after = places(member, self._ledger.at(epoch, everyone.start))
        self._ledger.note(epoch, everyone.stop, after)
        part = _part(everyone, mine)
        return Turns(member[part], place[part], lambda: self.shares.take(member[part]))

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Return the samples of every member, see `Apportioning`."""
        return self._ledger.at(epoch, sample)

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """Nothing beside the counts."""
        return {}

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Note the counts."""
        self._ledger.note(epoch, sample, counts)


class Standing(NamedTuple):
    """Where members stand before a batch.

    ``owed`` is what each should have had so far, less what it had: sum of weight * batch size, less ``counts``.
    """

    counts: list[int]
    owed: list[float]


class Changing:
    """Weights that are a function of the batch's number.

    Counts of a batch make up for what members are owed; or, with an ``order``, members are drawn independently.

    Parameters
    ----------
    weights : callable
        From the number of a batch to the shares of the members in it [members], adding up to 1.
    members : int
    batch_size : int
        Of the global batch.
    order : callable, optional
        From an epoch to the randomness of the members' draws.
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
        self._ledger = Ledger(Standing([0] * members, [0.0] * members), self._follow)

    def _follow(self, epoch: int, standing: Standing, start: int, stop: int) -> Standing:
        for batch in range(start, stop):
            standing = self._batch(epoch, batch, standing, self._weights(batch))[2]
        return standing

    def _batch(
        self, epoch: int, batch: int, standing: Standing, weights: list[float]
    ) -> tuple[IntArray, IntArray, Standing]:
        """Members of a batch, how many of the same come before within it, and where they stand after it."""
        due = [o + w * self._size for o, w in zip(standing.owed, weights, strict=True)]
        if self._order is None:
            given = apportion(due, weights, self._size)
            member, place = _spread(tuple(given))
        else:
            drawn = range(batch * self._size, (batch + 1) * self._size)
            member = Lots(tuple(weights)).draw(self._order(epoch), drawn)
            place, given = places(member, [0] * len(weights))
        counts = [c + g for c, g in zip(standing.counts, given, strict=True)]
        return member, place, Standing(counts, [d - g for d, g in zip(due, given, strict=True)])

    def turns(self, run: Run, mine: range) -> Turns:
        """Return members and places, see `Apportioning`."""
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
        return Turns(member[part], place[part], partial(np.array(weights).take, in_tables[part]))

    def counts(self, epoch: int, sample: int) -> list[int]:
        """Return the samples of every member, see `Apportioning`."""
        return self._ledger.at(epoch, sample // self._size).counts

    def state(self, epoch: int, sample: int) -> dict[str, Any]:
        """The batch size, and what members are owed."""
        return {"batch_size": self._size, "owed": self._ledger.at(epoch, sample // self._size).owed}

    def load(self, epoch: int, sample: int, counts: list[int], state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises
        ------
        WrongState
            Of another batch size: the weights go by batches.
        """
        if state["batch_size"] != self._size:
            raise WrongState(
                f"this state is of batches of {state['batch_size']}, this loader's have {self._size}: weights that"
                " change from batch to batch need the same size.",
                hint=f"Loader(..., batch_size={state['batch_size']})",
            )
        self._ledger.note(epoch, sample // self._size, Standing(counts, [float(x) for x in state["owed"]]))


_spread = lru_cache(maxsize=1024)(spread)


def apportion(due: Sequence[float], weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers that add up to ``total``, near ``due``: rounded down, the rest by the largest remainders.

    Those whose weight is zero get none, and nobody less than none.
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
    """Shares in the order of ``names``, adding up to 1.

    Raises
    ------
    InvalidArgument
        Not one finite number, not negative, for each; or all are zero.
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


def numbers(positions: Positions) -> IntArray:
    """Sample numbers as an array."""
    if isinstance(positions, range):
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return positions


def _part(everyone: range, mine: range) -> slice:
    """Where the samples ``mine`` stand among ``everyone``."""
    return slice(mine.start - everyone.start, None, mine.step)
