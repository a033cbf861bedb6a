"""A process of one library: makes its cases, and times them when told to.

python -m loader.serving GROUP LIBRARY THREADS FD
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loader.cases import Builders, Call, Case, Figure, Made

WARM_CALLS, WARM_SECONDS = 200, 1.0


class Served:
    """The cases of one library in one group."""

    def __init__(self, builders: Builders) -> None:
        self.builders, self.made = builders, dict[str, Made]()

    def build(self, name: str) -> dict[str, Any]:
        """Make a case, run it a little, and say what memory it added."""
        from loader.memory import MIB, memory

        gc.collect()
        before = memory()
        made = self.builders[name]()
        self.made[name] = made
        if isinstance(made, Case) and made.call is not None:
            _warm(made.call)
        added = memory().beyond(before)
        return {
            "unit": made.unit or "µs",
            "more_is_better": bool(made.unit) if isinstance(made, Case) else made.more_is_better,
            "anonymous": (added.anonymous or 0) / MIB,
            "mapped": (added.mapped or 0) / MIB,
            "rounds": made.rounds if isinstance(made, Figure) else None,
        }

    def time(self, name: str, seconds: float) -> dict[str, float]:
        """One round: its figure, and the CPU time in microseconds and the page faults of a call."""
        from loader.memory import faults

        made = self.made[name]
        gc.collect()
        if isinstance(made, Figure):
            before = faults()
            value = made.measure()
            return {"value": value} | _faults(before, faults(), 1)
        call = made.before() if made.before is not None else made.call
        assert call is not None
        before, busy = faults(), _busy()
        calls, taken = _run(call, made.seconds or seconds)
        busy, after = _busy() - busy, faults()
        del call
        if made.before is not None:
            gc.collect()  # files that are still mapped cannot be dropped from the page cache by the next case
        value = calls * made.each / taken if made.unit else 1e6 * taken / calls
        return {"value": value, "cpu": 1e6 * busy / calls} | _faults(before, after, calls)


def _busy() -> float:
    """CPU time in seconds of this process, of its children that live, such as workers, and of those that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_used, _children(os.getpid())))


def _children(process: int) -> Iterator[int]:
    """Processes below one; none where the system does not say."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = task.read_text().split()
        except OSError:
            continue  # it has just ended
        for child in map(int, found):
            yield child
            yield from _children(child)


def _used(process: int) -> float:
    try:
        told = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, told.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def _warm(call: Call) -> None:
    start = time.perf_counter()
    for _ in range(WARM_CALLS):
        call()
        if time.perf_counter() - start > WARM_SECONDS:
            break


def _run(call: Call, seconds: float) -> tuple[int, float]:
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        taken = time.perf_counter() - start
        if taken >= seconds:
            return calls, taken


def _faults(before: tuple[int, int], after: tuple[int, int], calls: int) -> dict[str, float]:
    return {"major": (after[0] - before[0]) / calls, "minor": (after[1] - before[1]) / calls}


def _answer(served: Served, message: tuple[Any, ...]) -> Any:
    what, *arguments = message
    try:
        return served.build(*arguments) if what == "build" else served.time(*arguments)
    except Exception as e:
        if os.environ.get("BENCH_TRACE"):
            traceback.print_exc()
        lines = str(e).strip().splitlines() or [""]
        return {"error": f"{type(e).__name__}: {lines[0]}"}


def main() -> None:
    group, library, threads, descriptor = sys.argv[1:]
    warnings.filterwarnings("ignore")
    connection = Connection(int(descriptor))
    try:
        if importlib.util.find_spec("torch"):
            import torch

            torch.set_num_threads(int(threads))
        served = Served(importlib.import_module(f"loader.{group}").GROUP.libraries[library]())
    except Exception as e:
        connection.send({"error": f"{type(e).__name__}: {e}"})
        return
    connection.send({"cases": list(served.builders)})
    while True:
        try:
            message = connection.recv()
        except EOFError:
            os._exit(0)  # peers' threads need no farewell
        connection.send(_answer(served, message))


if __name__ == "__main__":
    main()
