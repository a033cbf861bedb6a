"""What is timed, and the rows of the table that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Call = Callable[[], object]
_MOST_BYTES = 1 << 30  # of a file that is read ahead


@dataclass
class Case:
    """Something to be timed: ``call`` again and again.

    ``each`` samples come from one call; a case with a ``unit`` is reported as samples a second, one without as
    microseconds a call. ``before`` runs ahead of every round, not timed, and gives the call of that round.
    """

    call: Call | None = None
    each: int = 1
    unit: str = ""
    before: Callable[[], Call] | None = None
    seconds: float | None = None  # of a round, in place of the session's


@dataclass
class Figure:
    """Something that measures itself: one number a round."""

    measure: Callable[[], float]
    unit: str
    more_is_better: bool = False
    rounds: int | None = None


Made = Case | Figure
Builders = Mapping[str, Callable[[], Made]]  # one is made after the other, so that the memory of each is known


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``aim`` with a ``peer``: ours must be ``at least`` so many times as good, or take ``at most`` so many times as
    long. Without one: the figure itself.
    """

    work: str
    ours: str
    peer: str | None
    aim: float | None
    sense: Literal["at least", "at most"] = "at least"


@dataclass(frozen=True)
class Group:
    """Libraries by name, and what each does; ``only_once`` groups do not depend on the number of threads."""

    title: str
    libraries: Mapping[str, Callable[[], Builders]]
    rows: tuple[Row, ...]
    only_once: bool = False
    note: Callable[[], str] | None = None


def batches(dataset: Any, size: int, *, cached: bool = True, **options: Any) -> Call:
    """``next`` on a loader of ours, whose files are in the page cache if they are to be."""
    from rlds_cli.loader import Loader

    iterator = iter(Loader(dataset, size, **options))
    if not cached:
        return lambda: next(iterator)
    next(iterator)  # packed rows are there now
    packed = (Path(dataset.path).parents[2] / "packed").glob(f"{dataset.manifest.fingerprint.partition(':')[2][:12]}-*")
    for file in [*Path(dataset.path).rglob("*"), *(f for found in packed for f in (found, *found.rglob("*")))]:
        if file.is_file() and file.stat().st_size < _MOST_BYTES:
            with file.open("rb") as f:
                while f.read(1 << 24):
                    pass
    return lambda: next(iterator)
