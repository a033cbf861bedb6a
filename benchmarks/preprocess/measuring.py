"""Work that takes turns, each piece in a process of its own; medians, and rates beyond start-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROUNDS = 3


@dataclass
class Times:
    """What one way of working took, round by round: by the clock, and of all its processes' CPU time where it is known.

    Other work on the machine enters the second much less.
    """

    values: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def best(self) -> float:
        return min(self.values)


class Took(NamedTuple):
    """By the clock, and of the CPU."""

    seconds: float
    cpu: float


def work(what: str, **how: Any) -> dict[str, Any]:
    """One piece of work in a new process; raises where it fails."""
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths), "RL_LOGGING_LEVEL": "WARNING"}
    command = [sys.executable, "-W", "ignore", "-m", "preprocess.working", what, json.dumps(how)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it ended"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found.get("check") is False:
        raise RuntimeError("the result is not what NumPy makes of it")
    return found


def taking_turns(ways: Mapping[str, Callable[[], float | Took]], rounds: int = ROUNDS) -> dict[str, Times]:
    """Each way once a round."""
    times = {name: Times() for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            took = way()
            times[name].values.append(took if isinstance(took, float) else took.seconds)
            times[name].cpu += [] if isinstance(took, float) else [took.cpu]
            print(f"   {name}: {times[name].values[-1]:.3g}", file=sys.stderr, flush=True)
    return times


def beyond(few: int, many: int, what: str, **how: Any) -> Callable[[], Took]:
    """Nanoseconds a step: the time of ``many`` steps less that of ``few``, so that starting up is not in it."""

    def measure() -> Took:
        small, large = (work(what, count=n, **how) for n in (few, many))
        return Took(*((large[k] - small[k]) / (many - few) * 1e9 for k in Took._fields))

    return measure


def alone(what: str, count: int, **how: Any) -> Callable[[], Took]:
    """Nanoseconds a step, of what does not start up."""

    def measure() -> Took:
        found = work(what, count=count, **how)
        return Took(*(found[k] / count * 1e9 for k in Took._fields))

    return measure


def command(*arguments: str) -> Callable[[], Took]:
    """Seconds of a command of Python's, from its start."""

    def measure() -> Took:
        start, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return Took(time.perf_counter() - start, used)

    return measure
