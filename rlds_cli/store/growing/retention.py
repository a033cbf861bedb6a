"""Retention of growing datasets: the newest episodes, a uniform sample of all, or the best."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlds_cli.errors import DamagedDataset, InvalidArgument


@dataclass(frozen=True, slots=True)
class Fifo:
    """Keep the newest episodes: as many as hold at most ``steps`` steps, or so many ``episodes``.

    The newest episode always stays, however long it is.
    """

    steps: int | None = None
    episodes: int | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.episodes is None):
            raise InvalidArgument(f"{self}: give steps or episodes.")
        _check_count(self, self.steps if self.episodes is None else self.episodes)


@dataclass(frozen=True, slots=True)
class Reservoir:
    """Keep ``episodes`` episodes, a uniform sample of all that were ever added, by a priority drawn for each.

    Source: the method of random sort keys, Vitter, "Random Sampling with a Reservoir" (1985). The priority is a
    function of ``seed`` and the episode's number.
    """

    episodes: int
    seed: int = 0

    def __post_init__(self) -> None:
        _check_count(self, self.episodes)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 63:
            raise InvalidArgument(f"{self}: seed must be a whole number from 0 to 2**63 - 1.")


@dataclass(frozen=True, slots=True)
class Top:
    """Keep the ``episodes`` episodes with the largest value of an episode column; of equal ones, the older.

    ``by`` is ``total_reward``, ``length``, or a column of numbers of your own; an episode without a value leaves first.
    """

    episodes: int
    by: str = "total_reward"

    def __post_init__(self) -> None:
        _check_count(self, self.episodes)
        if not isinstance(self.by, str) or not self.by:
            raise InvalidArgument(f"{self}: by must name an episode column.")


Keep = Fifo | Reservoir | Top
_POLICIES: Mapping[str, type[Any]] = {"fifo": Fifo, "reservoir": Reservoir, "top": Top}


def _check_count(policy: object, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidArgument(f"{policy}: a whole number of at least 1 is needed.")


def to_json(keep: Keep | None) -> dict[str, Any]:
    """Return a policy for the manifest; empty for none."""
    if keep is None:
        return {}
    given = {name: getattr(keep, name) for name in keep.__dataclass_fields__}
    return {"policy": type(keep).__name__.lower(), **{n: v for n, v in given.items() if v is not None}}


def from_json(found: Mapping[str, Any]) -> Keep | None:
    """Return the policy of a manifest."""
    if not found:
        return None
    given = {name: value for name, value in found.items() if name != "policy"}
    try:
        policy: Keep = _POLICIES[found["policy"]](**given)
    except (KeyError, TypeError, InvalidArgument) as e:
        raise DamagedDataset(f"The manifest has no policy that there is: {dict(found)}.") from e
    return policy


def described(found: Mapping[str, Any]) -> str:
    """Say in words what the policy of a manifest keeps."""
    keep = from_json(found)
    if isinstance(keep, Fifo):
        return f"the newest {keep.episodes:,} episodes" if keep.episodes else f"the newest {keep.steps or 0:,} steps"
    if isinstance(keep, Reservoir):
        return f"a uniform sample of {keep.episodes:,} episodes"
    return "every episode" if keep is None else f"the {keep.episodes:,} episodes with the largest {keep.by}"


# -- at work


@dataclass(frozen=True, slots=True)
class Added:
    """An episode as a policy sees it. ``born`` is its number when it was first written: compacting gives it another."""

    number: int
    steps: int
    value: float = math.nan  # of the column that `Top` compares
    born: int = 0


class Kept(Protocol):
    """The episodes that may leave."""

    def take(self, episode: Added) -> None:
        """Note an existing episode; episodes come in the order of their numbers."""
        ...

    def add(self, episode: Added) -> list[int]:
        """Take an episode, and return the numbers of those that leave for it."""
        ...

    def forget(self, numbers: Iterable[int]) -> None:
        """Note that episodes left for another reason."""
        ...


class _Everything:
    """Without a policy nothing leaves."""

    def take(self, episode: Added) -> None:
        pass

    def add(self, episode: Added) -> list[int]:
        return []

    def forget(self, numbers: Iterable[int]) -> None:
        pass


class _Newest:
    """Episodes in order, of at most so many steps or episodes: eight bytes for each."""

    def __init__(self, keep: Fifo) -> None:
        self._most = (keep.steps if keep.episodes is None else keep.episodes) or 0
        self._by_steps = keep.episodes is None
        self._first, self._weights = 0, array("q")  # number of an episode; what it counts, and those after it
        self._oldest = self._held = 0  # place of the oldest episode; sum of all

    def take(self, episode: Added) -> None:
        if not self._weights:
            self._first = episode.number
        self._weights.frombytes(bytes(8 * (episode.number - self._first - len(self._weights))))
        weight = episode.steps if self._by_steps else 1
        self._weights.append(weight)
        self._held += weight

    def add(self, episode: Added) -> list[int]:
        self.take(episode)
        left, weights = [], self._weights
        while self._held > self._most and self._oldest < len(weights) - 1:
            if weights[self._oldest]:
                left.append(self._first + self._oldest)
                self._held -= weights[self._oldest]
                weights[self._oldest] = 0
            self._oldest += 1
        if self._oldest > 1024 and 2 * self._oldest > len(weights):
            del weights[: self._oldest]
            self._first, self._oldest = self._first + self._oldest, 0
        return left

    def forget(self, numbers: Iterable[int]) -> None:
        for at in (number - self._first for number in numbers):
            if 0 <= at < len(self._weights):
                self._held -= self._weights[at]
                self._weights[at] = 0


class _Largest:
    """A heap of episodes; the one with the smallest value leaves first, of equal ones the newest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[float, int]] = []  # value, minus number; of some that are gone, too
        self._there: set[int] = set()

    def value(self, episode: Added) -> float:
        return -math.inf if math.isnan(episode.value) else episode.value

    def take(self, episode: Added) -> None:
        heapq.heappush(self._heap, (self.value(episode), -episode.number))
        self._there.add(episode.number)

    def add(self, episode: Added) -> list[int]:
        self.take(episode)
        left = []
        while len(self._there) > self._most:
            number = -heapq.heappop(self._heap)[1]
            if number in self._there:
                self._there.discard(number)
                left.append(number)
        return left

    def forget(self, numbers: Iterable[int]) -> None:
        self._there.difference_update(numbers)
        if len(self._heap) > 2 * len(self._there) + 64:
            self._heap = [(value, minus) for value, minus in self._heap if -minus in self._there]
            heapq.heapify(self._heap)


class _Sampled(_Largest):
    """A uniform sample: each episode's value is drawn."""

    def __init__(self, keep: Reservoir) -> None:
        super().__init__(keep.episodes)
        self._seed = keep.seed

    def value(self, episode: Added) -> float:
        return float(np.random.Generator(np.random.Philox(key=(self._seed, episode.born))).random())


def at_work(keep: Keep | None) -> Kept:
    """Return a policy without episodes."""
    if isinstance(keep, Fifo):
        return _Newest(keep)
    if isinstance(keep, Reservoir):
        return _Sampled(keep)
    return _Everything() if keep is None else _Largest(keep.episodes)
