"""Export and push: beside a plain copy of the same bytes, and beside uploads by other libraries.

    python benchmarks/sharing.py [PART ...]

Parts: see `PARTS`; all of them unless named. Whatever is compared takes turns, round by round, each time in a process
of its own; figures are medians. All of it writes to ``.bench-data/sharing``, for which the disk matters; whoever writes
also syncs. Results go to ``bench-results/sharing.json``.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from results import DATA, RESULTS, Results

import rlds_cli
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import DatasetNotFound
from rlds_cli.exports.exporting import FORMATS

HOME = DATA / "sharing" / "home"
OUT = DATA / "sharing" / "out"
ID = "local/steps"
EPISODES, LENGTH, OBSERVATION, ACTION = 4000, 1000, 17, 6
ROUNDS = 5
MIB = 1 << 20


def steps() -> Dataset:
    """Four million steps like those of D4RL's locomotion, 390 MiB."""
    try:
        return open_dataset(ID, cache_dir=HOME)
    except DatasetNotFound:
        return rlds_cli.create(ID, made(), cache_dir=HOME)


def made() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        yield {
            "observation": rng.standard_normal((LENGTH + 1, OBSERVATION), np.float32),
            "action": rng.standard_normal((LENGTH, ACTION), np.float32),
            "next": {"reward": rng.standard_normal(LENGTH, np.float32), "truncated": True},
        }


def size_of(directory: Path) -> int:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())


def copy(source: Path, target: Path) -> None:
    """Copy a tree and sync it, as ``cp -r`` and ``sync`` do."""
    shutil.copytree(source, target)
    for file in target.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def measured(*arguments: str) -> dict[str, float]:
    """Run a piece of work in a process of its own; it says seconds and MiB."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def work(kind: str, *arguments: str) -> None:
    """Do one piece of work and print its figures."""
    ds = open_dataset(ID, cache_dir=HOME)
    if kind == "copy":
        todo: Callable[[], object] = lambda: copy(ds.path, OUT / "copy")  # noqa: E731
    else:
        to, verify = arguments
        todo = lambda: rlds_cli.export(ds, to, OUT / to, lossy=True, verify=verify == "verify")  # noqa: E731
    start = time.perf_counter()
    todo()
    seconds = time.perf_counter() - start
    most = max(resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": seconds, "mib": most, "bytes": size_of(OUT)}))


def exports(results: Results) -> None:
    """Each format, with and without the proof, beside a copy of the dataset."""
    ds = steps()
    size = size_of(ds.path)
    ways = {"copy": ("--copy",)}
    for to in FORMATS:
        ways |= {to: ("--export", to, "plain"), f"{to}, imported again": ("--export", to, "verify")}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, arguments in ways.items():
            found[name].append(measured(*arguments))
    copied = median(f["seconds"] for f in found["copy"])
    results.add("a plain copy, synced", size / copied / MIB, "MiB/s", f"{size / MIB:.0f} MiB")
    for name in list(ways)[1:]:
        seconds = median(f["seconds"] for f in found[name])
        note = f"{copied / seconds:.2f} of the copy; {max(f['mib'] for f in found[name]):.0f} MiB the largest process"
        results.add(f"export, {name}", size / seconds / MIB, "MiB/s", note)


PARTS: dict[str, Callable[[Results], None]] = {"exports": exports}


def main() -> None:
    named = sys.argv[1:]
    unknown = set(named) - set(PARTS)
    if unknown:
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    kept: dict[str, list[dict[str, object]]] = {}
    file = RESULTS / "sharing.json"
    if named and file.exists():  # what is not measured again stays
        for row in json.loads(file.read_text())["rows"]:
            kept.setdefault(str(row.get("part")), []).append(row)
    for name in named or PARTS:
        results = Results("sharing")
        PARTS[name](results)
        kept[name] = [{**row, "part": name} for row in results.rows]
        Results("sharing", [row for part in PARTS for row in kept.get(part, ())]).write()


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("--"):
        work(sys.argv[1].removeprefix("--"), *sys.argv[2:])
    else:
        main()
