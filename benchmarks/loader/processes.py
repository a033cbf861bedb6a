"""Sixteen processes on one dataset: what they take together, and what each of them loses."""

from __future__ import annotations

from functools import cache

from loader import data
from loader.cases import Builders, Figure, Group, Row
from loader.memory import MIB
from rlds_cli.loader.bench import Measurement, measure

MANY, SECONDS = 16, 2.0


@cache
def _measured(processes: int) -> Measurement:
    return measure(data.halfcheetah(), processes=processes, seconds=SECONDS)


def rlds() -> Builders:
    def total(processes: int) -> Figure:
        return Figure(lambda: (_measured(processes).proportional or 0) / MIB, "MiB", rounds=1)

    def files(processes: int) -> Figure:
        def measure() -> float:
            m = _measured(processes)
            return ((m.proportional or 0) - processes * (m.anonymous or 0)) / MIB

        return Figure(measure, "MiB", rounds=1)

    def share(processes: int) -> Figure:
        return Figure(lambda: 100 * _measured(processes).share_of_limit, "% of the limit", True, rounds=1)

    def rate(processes: int) -> Figure:
        return Figure(lambda: _measured(processes).batches_per_second, "batches/s", True, rounds=1)

    kinds = {"PSS": total, "PSS of files": files, "share of the limit": share, "rate of all": rate}
    return {
        f"{name}, {n} process{'es' if n > 1 else ''}": lambda make=make, n=n: make(n)
        for n in (1, 2, MANY)
        for name, make in kinds.items()
    }


GROUP = Group(
    "sixteen processes on one dataset",
    {"rlds": rlds},
    (
        Row("PSS of the files", "rlds: PSS of files, 16 processes", "rlds: PSS of files, 1 process", 1.1, "at most"),
        Row("PSS, files and anonymous", "rlds: PSS, 16 processes", "rlds: PSS, 1 process", None, "at most"),
        Row(
            "share of the packed take limit",
            "rlds: share of the limit, 16 processes",
            "rlds: share of the limit, 1 process",
            0.9,
        ),
        Row("batches of all", "rlds: rate of all, 16 processes", "rlds: rate of all, 2 processes", 0.9),
    ),
    only_once=True,
)
