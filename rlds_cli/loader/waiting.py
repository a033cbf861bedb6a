"""The first data of a live loader: it can wait until there are enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from rlds_cli.base.integers import set_integer
from rlds_cli.dataset import Dataset
from rlds_cli.errors import EmptyWindow, InvalidArgument
from rlds_cli.loader.mixture.mixture import Mixture

_LOOK = 0.01  # seconds between looks for a new version
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """``Loader(live=Live(...))``: take up new versions of a growing dataset, and wait for the first data.

    Parameters
    ----------
    wait : float
        Seconds to wait until there is a window to draw, and ``min_steps``. 0 raises at once where there is none.
    min_steps : int
        Steps that each growing dataset must have before the first batch.

    Raises
    ------
    InvalidArgument
        A value is negative, or not a number.
    """

    wait: float = 0.0
    min_steps: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.wait, int | float) or isinstance(self.wait, bool) or not self.wait >= 0:
            raise InvalidArgument(f"Live(wait={self.wait!r}): a number of seconds is needed.", hint="wait=60.0")
        set_integer(self, "min_steps", 0)


def first(live: Live, dataset: Dataset | Mixture, make: Callable[[Dataset | Mixture], T]) -> T:
    """Return what ``make`` makes of a dataset, or of later versions of it, as soon as it can.

    Raises
    ------
    EmptyWindow
        Time is up; the message says how many steps there are.
    """
    if not (live.wait or live.min_steps):
        return make(dataset)
    until = time.monotonic() + live.wait
    while True:
        found = _growing(dataset)
        try:
            made = make(dataset)
            if all(d.num_steps >= live.min_steps for d in found):
                return made
            why = f"{live.min_steps:,} steps were asked for."
        except EmptyWindow as e:
            why = e.message
        while True:
            if time.monotonic() >= until:
                there = " and ".join(f"{d.id} has {d.num_steps:,} steps" for d in found)
                late = f" after {live.wait:g} s" if live.wait else ""
                raise EmptyWindow(
                    f"{why} Now{late} {there}.", hint="live=Live(wait=SECONDS), while a writer adds episodes"
                )
            if any(d.store.newest_version != d.version for d in found):
                break
            time.sleep(_LOOK)
        dataset = _newest(dataset)


def _growing(dataset: Dataset | Mixture) -> list[Dataset]:
    """Return the growing datasets."""
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
