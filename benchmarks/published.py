"""Figures that pages show: the least favourable of the last runs, each of another day or machine.

A run is a file of `runs/`, named by its day: where it ran, and the ratios of each row of the loader's benchmarks, in
wall time and in CPU time. `python benchmarks --markdown` adds the last run, and writes the table of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import ROUND_DOWN, ROUND_UP, Decimal
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent / "runs"
GROWTH = Path(__file__).parent / "growth.json"  # the last run of growth.py, of which the chart is drawn
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "performance.md"
START, END = "<!-- figures: written by python benchmarks --markdown -->", "<!-- end of figures -->"
LAST = 3

# What others measured in CPU time on machines of their own, where it is less than what our runs found.
REPORTED = {("images", "torchrl: raw, memmap"): 6.0}

COLUMNS = ("TorchRL", "cpprb", "tianshou", "rlox", "limit")
# For each row of the page its group, and the peer in each column.
ROWS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "256 transitions, uniform": (
        "transitions",
        {
            "TorchRL": "torchrl: memmap",
            "cpprb": "cpprb: ReplayBuffer",
            "tianshou": "tianshou: ReplayBuffer",
            "rlox": "rlox: OfflineDatasetBuffer",
            "limit": "limit: packed take",
        },
    ),
    "the same, shuffled": ("shuffled", {"TorchRL": "torchrl: memmap, without replacement"}),
    "32 slices of 64": (
        "slices",
        {
            "TorchRL": "torchrl: SliceSampler, cached",
            "rlox": "rlox: sample_sequences",
            "limit": "limit: C memcpy",
        },
    ),
    "prioritised: 256 and their update": (
        "prioritized",
        {
            "TorchRL": "torchrl: PrioritizedSampler",
            "cpprb": "cpprb: PrioritizedReplayBuffer",
            "tianshou": "tianshou: PrioritizedReplayBuffer",
        },
    ),
    "images of 64x64x3, raw": (
        "images",
        {"TorchRL": "torchrl: raw, memmap", "limit": "limit: C memcpy, outputs used again"},
    ),
    "windows of 24 KiB, not in memory": (
        "cold",
        {"TorchRL": "torchrl: windows", "limit": "pread: windows, 16 threads"},
    ),
}
LIMITS = {
    "limit: packed take": "of one `numpy.take` of packed rows",
    "limit: C memcpy": "of `memcpy` in C into fresh memory",
    "limit: C memcpy, outputs used again": "of `memcpy` in C into memory that is used again",
    "pread: windows, 16 threads": "the rate of `pread` with 16 threads",
}
WAITS = {"cold"}  # groups that wait for the disk: their CPU time says little


def keep(run: Mapping[str, Any]) -> None:
    """Add a run of the loader's benchmarks, as `results.Results` writes it; one of the same day is replaced."""
    rows = [
        {
            "group": group["group"],
            "threads": group["threads"] or 1,
            "peer": row["peer"],
            "ratio": row["ratio"],
            "cpu": row["cpu"],
            "sense": row["sense"],
        }
        for group in run["rows"]
        for row in group["rows"]
        if row["peer"] and row["ratio"] is not None
    ]
    about = {"when": run["when"][:10], "machine": run["machine"], "python": run["python"], "load": run["load"]}
    lines = ",\n".join(map(json.dumps, rows))
    (RUNS / f"{about['when']}.json").write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n')


def runs() -> list[dict[str, Any]]:
    """The last runs, oldest first."""
    return [json.loads(file.read_text()) for file in sorted(RUNS.glob("*.json"))[-LAST:]]


def ratios(group: str, peer: str) -> dict[str, list[float]]:
    """Ratios to a peer by their sense: how many times as fast ours is, or how many times as long it takes.

    Of each run and number of threads the first row of the group that names the peer counts: it is about the plain case.
    """
    found: dict[str, list[float]] = {}
    for run in runs():
        seen = set()
        for row in run["rows"]:
            if (row["group"], row["peer"]) == (group, peer) and row["threads"] not in seen:
                seen.add(row["threads"])
                both = (row["ratio"],) if group in WAITS else (row["ratio"], row["cpu"])
                found.setdefault(row["sense"], []).extend(x for x in both if x is not None)
    if (group, peer) in REPORTED:
        found["at least"].append(REPORTED[group, peer])
    return found


def worst(group: str, peer: str) -> float:
    """How many times as fast as a peer ours is, in the least favourable measurement."""
    return min(ratios(group, peer)["at least"])


def table() -> str:
    """The table of the page, with the runs that it is from."""

    def lines() -> Iterator[str]:
        yield f"| work | {' | '.join(COLUMNS)} |"
        yield "|---" * (len(COLUMNS) + 1) + "|"
        for work, (group, peers) in ROWS.items():
            yield f"| {work} | {' | '.join(_cell(group, peers.get(c, '')) for c in COLUMNS)} |"
        yield "\nEach figure is the least favourable of these runs, of one and two threads, of wall and CPU time:\n"
        for run in runs():
            yield f"* {run['when']}, {run['machine']}, Python {run['python']}, load average before it {run['load']:.1f}"

        yield "* what others measured on machines of their own, where it is less"

    return "\n".join(lines())


def _cell(group: str, peer: str) -> str:
    found = ratios(group, peer) if peer else {}
    if "at most" in found:
        low, high = (_number(pick(found["at most"]), ROUND_UP) for pick in (min, max))
        return f"{low if low == high else f'{low} to {high}'} x the time {LIMITS[peer]}"
    if "at least" in found:
        return f"{_number(min(found['at least']), ROUND_DOWN)} x {LIMITS.get(peer, '')}".rstrip()
    return ""


def _number(ratio: float, rounding: str) -> str:
    """Two digits, rounded so that ours looks no better than it is."""
    exact = Decimal(repr(ratio))
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding)):g}"


def write() -> None:
    """Write the table into the page, between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n{table()}\n\n{END}{after}", encoding="utf-8")
