"""The first data of a live loader: it can wait until there are enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rlds_cli.dataset import Dataset
from rlds_cli.errors import EmptyWindow, InvalidArgument
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.order import integer

_LOOK = 0.01  # seconds between looks for a new version
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a live loader waits for its first data: until it can draw, and datasets that grow have enough steps.

    Attributes
    ----------
    seconds : float
        0 for not at all.
    steps : int
        Of each dataset that grows.
    """

    seconds: float = 0.0
    steps: int = 0

    @classmethod
    def of(cls, seconds: Any, steps: Any, live: Any) -> Wait:
        """Check the arguments of a loader.

        Raises
        ------
        InvalidArgument
            They are no number of seconds and steps, or the loader takes nothing up.
        """
        if seconds is None and steps is None:
            return cls()
        if live is not True:
            given = "wait" if steps is None else "min_steps"
            why = "the loader is not live" if live is False else "a log says what is drawn"
            raise InvalidArgument(f"{given}=: {why}.", hint="live=True")
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0
        if seconds is not None and not number:
            raise InvalidArgument(f"wait={seconds!r}: a number of seconds is needed.", hint="wait=60.0")
        return cls(float(seconds or 0), 0 if steps is None else integer("min_steps", steps, 1))

    def first(self, dataset: Dataset | Mixture, make: Callable[[Dataset | Mixture], T]) -> T:
        """Return what ``make`` makes of a dataset, or of later versions of it, as soon as it can.

        Raises
        ------
        EmptyWindow
            Time is up; the message says how many steps there are.
        """
        if not (self.seconds or self.steps):
            return make(dataset)
        until = time.monotonic() + self.seconds
        while True:
            found = _growing(dataset)
            try:
                made = make(dataset)
                if all(d.num_steps >= self.steps for d in found):
                    return made
                why = f"{self.steps:,} steps were asked for."
            except EmptyWindow as e:
                why = e.message
            while True:
                if time.monotonic() >= until:
                    there = " and ".join(f"{d.id} has {d.num_steps:,} steps" for d in found)
                    late = f" after {self.seconds:g} s" if self.seconds else ""
                    raise EmptyWindow(f"{why} Now{late} {there}.", hint="wait=SECONDS, while a writer adds episodes")
                if any(d.store.newest_version != d.version for d in found):
                    break
                time.sleep(_LOOK)
            dataset = _newest(dataset)


def _growing(dataset: Dataset | Mixture) -> list[Dataset]:
    """Return the datasets that grow."""
    members = [m.dataset for m in dataset.parts.values()] if isinstance(dataset, Mixture) else [dataset]
    return [d for d in members if isinstance(d, Dataset) and not d.store.why_fixed]


def _newest(dataset: Dataset | Mixture) -> Dataset | Mixture:
    if not isinstance(dataset, Mixture):
        return dataset.refresh()
    grown = {
        name: replace(m, dataset=m.dataset.refresh())
        for name, m in dataset.parts.items()
        if isinstance(m.dataset, Dataset)
    }
    return replace(dataset, members={**dataset.members, **grown})
