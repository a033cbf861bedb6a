"""Groups of cases, measured as the command line says."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from results import DATA, RESULTS, Results

from loader import report, session


def main(name: str, groups: Sequence[str], about: str) -> None:
    """Measure the groups that are named, or all; results go to ``bench-results/NAME.json``."""
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("groups", nargs="*", metavar="GROUP")
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--seconds", type=float, default=0.2, help="of a round")
    p.add_argument("--rounds", type=int, default=session.ROUNDS)
    chosen = p.parse_args()
    unknown = set(chosen.groups) - set(groups)
    if unknown:
        p.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(groups)}")
    results, before = Results(name), RESULTS / f"{name}.json"
    if chosen.groups and before.exists():
        former = json.loads(before.read_text())
        results.rows = [r for r in former["rows"] if r["group"] not in chosen.groups]
        results.load = max(results.load, former["load"])  # the highest of the groups
    try:
        for group in chosen.groups or groups:
            for threads in chosen.threads:
                results.rows += _group(group, threads, chosen.seconds, chosen.rounds)
                results.write()
    finally:
        shutil.rmtree(DATA / "scratch", ignore_errors=True)


def _group(name: str, threads: int, seconds: float, rounds: int) -> list[dict[str, Any]]:
    start = time.perf_counter()
    module = session.group(name)
    if module.only_once and threads > 1:
        return []
    group, timed = session.run(name, threads, seconds, rounds)
    many = "" if group.only_once else f", {threads} thread{'s' if threads > 1 else ''}"
    taken = time.perf_counter() - start
    print(f"\n== {group.title}{many}   ({taken:.0f} s)", flush=True)
    found = report.lines(group, timed)
    print(report.text(report.HEADER, (line.cells() for line in found)))
    note = group.note() if group.note else ""
    print(note + ("\n" if note else ""))
    print(report.text(report.CASES, report.case_rows(timed)), flush=True)
    about = {"group": name, "title": group.title, "threads": None if group.only_once else threads, "note": note}
    return [about | {"rows": [asdict(line) for line in found], "cases": {k: asdict(t) for k, t in timed.items()}}]
