"""``rlds preprocess`` and ``rlds inspect`` against their aims.

    python benchmarks/preprocess [GROUP ...] [--rounds N]

Groups: see ``preprocess/__init__.py``; all of them unless named. Results go to ``bench-results/preprocess.json``; those
of groups that are not run stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

from loader import report  # noqa: E402
from results import RESULTS, Results  # noqa: E402

import preprocess  # noqa: E402
from preprocess import measuring  # noqa: E402
from preprocess.tables import Group  # noqa: E402


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("groups", nargs="*", metavar="GROUP")
    p.add_argument("--rounds", type=int, default=measuring.ROUNDS)
    chosen = p.parse_args()
    unknown = set(chosen.groups) - set(preprocess.GROUPS)
    if unknown:
        p.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(preprocess.GROUPS)}")
    results, kept = Results("preprocess"), _before()
    for name in chosen.groups or preprocess.GROUPS:
        start = time.perf_counter()
        group = import_module(f"preprocess.{name}").run(chosen.rounds)
        print(f"\n== {group.title}   ({time.perf_counter() - start:.0f} s)", flush=True)
        print(report.text(report.HEADER, (line.cells() for line in group.lines)))
        print(f"{group.note}\n", flush=True)
        kept[name] = _kept(name, group)
        results.rows = [kept[n] for n in preprocess.GROUPS if n in kept]
        results.write()


def _before() -> dict[str, dict[str, Any]]:
    file = RESULTS / "preprocess.json"
    return {row["group"]: row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}


def _kept(name: str, group: Group) -> dict[str, Any]:
    cases = {case: {"unit": _unit(case, group), "values": t.values, "cpu": t.cpu} for case, t in group.times.items()}
    lines = [asdict(line) for line in group.lines]
    return {"group": name, "title": group.title, "note": group.note, "rows": lines, "cases": cases}


def _unit(case: str, group: Group) -> str:
    return "MiB" if case.startswith("RssAnon") else group.unit


if __name__ == "__main__":
    main()
