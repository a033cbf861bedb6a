"""Figures that pages show: the least favourable of the last runs, each of another day or machine.

A run is a file of `runs/`, named by its day: where it ran, and the ratios of each row of the loader's benchmarks, in
wall time and in CPU time. `python benchmarks --markdown` adds the last run, and writes the table of the page. A run
of the same day is replaced, unless it was renamed (`DAY.1.json`), as one of another machine is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_DOWN, ROUND_UP, Decimal
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent / "runs"
GROWTH = Path(__file__).parent / "growth.json"  # the last run of growth.py, of which the chart is drawn
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "performance.md"
START, END = "<!-- figures: written by python benchmarks --markdown -->", "<!-- end of figures -->"
START_OF_FORMATS = "<!-- figures of formats: written by python benchmarks --markdown -->"
LAST = 3

# What others measured in CPU time on machines of their own, where it is less than what our runs found.
REPORTED = {("images", "torchrl: raw, memmap"): 6.0}

# For each row of a table its group, and the peer in each column; of a peer in several ways, the fastest counts.
Work = Mapping[str, tuple[str, Mapping[str, str | tuple[str, ...]]]]
COLUMNS = ("TorchRL", "cpprb", "tianshou", "rlox", "limit")
ROWS: Work = {
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
FORMATS = ("litdata", "Lance", "TensorDict", "torchcodec", "LeRobot")
ROWS_OF_FORMATS: Work = {
    "small rows, from the disk": (
        "formats.rows",
        {
            "litdata": ("litdata: no workers", "litdata: 2 workers"),
            "Lance": "lance: take",
            "TensorDict": ("tensordict: memmap, indexed", "torchrl: LazyMemmapStorage"),
            "LeRobot": ("lerobot: no workers", "lerobot: 2 workers"),
        },
    ),
    "small rows, from a bucket": (
        "formats.far_rows",
        {"litdata": "litdata: no workers", "Lance": "lance: LanceDataset, batches shuffled"},
    ),
    "windows of raw images, from the disk": (
        "formats.cameras",
        {
            "litdata": ("litdata: raw, no workers", "litdata: raw, 2 workers"),
            "Lance": "lance: raw, take",
            "TensorDict": "tensordict: memmap, indexed",
        },
    ),
    "windows of raw images, from a bucket": (
        "formats.far_cameras",
        {"litdata": ("litdata: raw, no workers", "litdata: raw, 2 workers"), "Lance": "lance: raw, take"},
    ),
    "windows of JPEG images, from the disk": (
        "formats.cameras",
        {"litdata": ("litdata: jpeg, no workers", "litdata: jpeg, 2 workers"), "Lance": "lance: jpeg, take"},
    ),
    "windows of JPEG images, from a bucket": (
        "formats.far_cameras",
        {"litdata": ("litdata: jpeg, no workers", "litdata: jpeg, 2 workers"), "Lance": "lance: jpeg, take"},
    ),
    "windows of videos, from the disk": (
        "formats.cameras",
        {"torchcodec": "torchcodec: get_frames_at", "LeRobot": ("lerobot: no workers", "lerobot: 2 workers")},
    ),
    "windows of videos, from a bucket": (
        "formats.far_cameras",
        {"torchcodec": "torchcodec: whole videos, get_frames_at"},
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
    """Add a run of the loader's benchmarks, as `results.Results` writes it; groups of the same day are replaced."""
    measured = {group["group"] for group in run["rows"]}
    file = RUNS / f"{run['when'][:10]}.json"
    before = json.loads(file.read_text()) if file.exists() else {"rows": [], "load": 0.0}
    kept = [row for row in before["rows"] if row["group"] not in measured]
    load = max(run["load"], before["load"] if kept else 0.0)  # the highest of the groups
    rows = kept + [
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
    about = {"when": run["when"][:10], "machine": run["machine"], "python": run["python"], "load": load}
    lines = ",\n".join(map(json.dumps, rows))
    file.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n')


def runs(group: str) -> list[dict[str, Any]]:
    """The last runs of a group, oldest first."""
    found = (json.loads(file.read_text()) for file in sorted(RUNS.glob("*.json")))
    return [run for run in found if any(row["group"] == group for row in run["rows"])][-LAST:]


def ratios(group: str, peer: str) -> dict[str, list[float]]:
    """Ratios to a peer by their sense: how many times as fast ours is, or how many times as long it takes.

    Of each run and number of threads the first row of the group that names the peer counts: it is about the plain case.
    """
    found: dict[str, list[float]] = {}
    for run in runs(group):
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
    end = "* what others measured on machines of their own, where it is less"
    return "\n".join([*_lines("work", COLUMNS, ROWS, "of one and two threads, "), end])


def table_of_formats() -> str:
    """The table of formats and their loaders."""
    return "\n".join(_lines("batches", FORMATS, ROWS_OF_FORMATS, ""))


def _lines(what: str, columns: Sequence[str], rows: Work, of: str) -> Iterator[str]:
    yield f"| {what} | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for work, (group, peers) in rows.items():
        yield f"| {work} | {' | '.join(_cell(group, peers.get(c, '')) for c in columns)} |"
    yield f"\nEach figure is the least favourable of these runs, {of}of wall and CPU time:\n"
    used = {(run["when"], run["load"]): run for group, _ in rows.values() for run in runs(group)}
    for run in (used[which] for which in sorted(used)):
        yield f"* {run['when']}, {run['machine']}, Python {run['python']}, load average before it {run['load']:.1f}"


def _cell(group: str, peers: str | tuple[str, ...]) -> str:
    found: dict[str, list[float]] = {}
    for peer in (peers,) if isinstance(peers, str) else peers:
        for sense, measured in ratios(group, peer).items():
            found.setdefault(sense, []).extend(measured)
    limit = LIMITS.get(peers, "") if isinstance(peers, str) else ""
    if "at most" in found:
        low, high = (_number(pick(found["at most"]), ROUND_UP) for pick in (min, max))
        return f"{low if low == high else f'{low} to {high}'} x the time {limit}"
    if "at least" in found:
        return f"{_number(min(found['at least']), ROUND_DOWN)} x {limit}".rstrip()
    return ""


def _number(ratio: float, rounding: str) -> str:
    """Two digits, rounded so that ours looks no better than it is."""
    exact = Decimal(repr(ratio))
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding)):g}"


def write() -> None:
    """Write the tables into the page, between their marks."""
    text = PAGE.read_text(encoding="utf-8")
    for start, made in ((START, table()), (START_OF_FORMATS, table_of_formats())):
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(END)
        text = f"{before}{start}\n\n{made}\n\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8")
