"""``rlds inspect``: the page, statistics of every element, and the report."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from loader import data as large
from results import DATA

from preprocess import data
from preprocess.measuring import taking_turns, work
from preprocess.tables import Group, against, alone


def run(rounds: int) -> Group:
    """Seconds beyond the start of the interpreter."""
    billion = large.billion()
    homes = {f"{n // 10**6}M": (data.steps(n).id, data.HOME) for n in (data.MANY, data.MOST)}
    ways: dict[str, Callable[[], float]] = {"python": _timed("-c", "")}
    for size, (id, home) in {**homes, "1e9": (billion.id, large.HOME)}.items():
        ways[f"inspect, {size} steps"] = _inspect(id, home)
        ways[f"inspect --stats, {size} steps"] = _inspect(id, home, "--stats")
        if size != "1e9":
            ways[f"inspect --html, {size} steps"] = _inspect(id, home, "--html", str(DATA / "report.html"), "--force")
    for size, n in (("1M", data.MANY), ("20M", data.MOST)):
        ways[f"bare read, {size} steps"] = lambda n=n: work("read", count=n)["seconds"]  # type: ignore[misc]
    times = taking_turns(ways, rounds)
    start = times["python"].median
    lines = [
        alone(f"inspect, {size} steps", times[f"inspect, {size} steps"].median - start, "s", 0.5, "at most")
        for size in ("1M", "20M", "1e9")
    ]
    for what in ("--stats", "--html"):
        for size in ("1M", "20M"):
            ours, read = times[f"inspect {what}, {size} steps"].median - start, times[f"bare read, {size} steps"].median
            lines.append(against(f"inspect {what}, {size} steps", ours, "s", "bare read", read, 0.5))
    note = "Beyond the start of Python. The bare read is `readinto` of all arrays from the page cache."
    return Group("Inspect", tuple(lines), times, "s", note)


def _inspect(id: str, home: object, *options: str) -> Callable[[], float]:
    return _timed("-m", "rlds_cli", "inspect", id, "-q", "--cache-dir", str(home), *options)


def _timed(*arguments: str) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return time.perf_counter() - start

    return measure
