"""Libraries that take turns, each in a process of its own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from results import DATA

from loader.cases import Group

ROUNDS = 7
# Environments of peers, see the Makefile.
ELSEWHERE = {
    **dict.fromkeys(("cpprb", "tianshou", "rlox", "flashbax", "torchrl", "torchcodec"), "peers"),
    **dict.fromkeys(("lance", "litdata"), "remote-peers"),
    "lerobot": "lerobot",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def beside(library: str) -> Path:
    """Return the Python that has a library: ours, where its environment was not made."""
    python = DATA / ELSEWHERE.get(library, "") / "bin" / "python"
    return python if library in ELSEWHERE and python.exists() else Path(sys.executable)


@dataclass
class Timed:
    """One case over all rounds: CPU time of a call in microseconds, memory in MiB that it added, page faults a call."""

    unit: str = "µs"
    more_is_better: bool = False
    values: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    anonymous: float = 0.0
    mapped: float = 0.0
    major: float = 0.0
    minor: float = 0.0
    error: str = ""

    @property
    def median(self) -> float:
        return median(self.values) if self.values else float("nan")

    @property
    def busy(self) -> float | None:
        """The median of the CPU time; None for a figure that is not timed."""
        return median(self.cpu) if self.cpu else None

    @property
    def best(self) -> float:
        pick = max if self.more_is_better else min
        return pick(self.values) if self.values else float("nan")


def group(name: str) -> Group:
    """The group of a module."""
    found: Group = importlib.import_module(f"loader.{name}").GROUP
    return found


def run(name: str, threads: int, seconds: float, rounds: int = ROUNDS) -> tuple[Group, dict[str, Timed]]:
    """Time all cases of a group, round by round; names are ``library: case``."""
    what = group(name)
    with ExitStack() as stack:
        processes = {lib: stack.enter_context(_process(name, lib, threads)) for lib in what.libraries}
        timed: dict[str, Timed] = {}
        turns: list[tuple[str, str, Connection, int | None]] = []
        for library, connection in processes.items():
            for case in _cases(library, connection, timed):
                told = _ask(connection, ("build", case))
                key = f"{library}: {case}"
                if "error" in told:
                    timed[key] = Timed(error=told["error"])
                    continue
                most = told.pop("rounds")
                timed[key] = Timed(**told)
                turns.append((key, case, connection, most))
        faults: dict[str, list[tuple[float, float]]] = {}
        for n in range(rounds):
            for key, case, connection, most in turns:
                if timed[key].error or (most is not None and n >= most):
                    continue
                told = _ask(connection, ("time", case, seconds))
                if "error" in told:
                    timed[key].error = told["error"]
                    continue
                timed[key].values.append(told["value"])
                timed[key].cpu += [told["cpu"]] if "cpu" in told else []
                faults.setdefault(key, []).append((told["major"], told["minor"]))
        for key, counted in faults.items():
            timed[key].major, timed[key].minor = (median(f) for f in zip(*counted, strict=True))
    return what, timed


def _cases(library: str, connection: Connection, timed: dict[str, Timed]) -> list[str]:
    try:
        told = connection.recv()
    except EOFError:
        told = {"error": "the process ended"}
    if "error" in told:
        timed[f"{library}: all"] = Timed(error=told["error"])
    return list(told.get("cases", []))


def _ask(connection: Connection, message: tuple[Any, ...]) -> dict[str, Any]:
    try:
        connection.send(message)
        answer: dict[str, Any] = connection.recv()
    except (EOFError, BrokenPipeError):
        return {"error": "the process ended"}
    return answer


@contextmanager
def _process(group: str, library: str, threads: int) -> Iterator[Connection]:
    here, there = Pipe()
    command = [beside(library), "-m", "loader.serving", group, library, str(threads), str(there.fileno())]
    environment = os.environ | {
        **dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads)
        ),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]),
        "RL_LOGGING_LEVEL": "WARNING",
        "PYTHONWARNINGS": "ignore",
    }
    with subprocess.Popen(command, pass_fds=(there.fileno(),), env=environment, stdout=sys.stderr) as process:
        there.close()
        try:
            yield here
        finally:
            here.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
