"""Figures of one run: printed as a table, kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(os.environ.get("BENCH_RESULTS", "bench-results"))
DATA = Path(os.environ.get("BENCH_DATA", ".bench-data"))
LOAD = os.getloadavg()[0]  # before anything is run: other work on the machine
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that is measured compiles what it imports


@dataclass
class Results:
    """Named figures with their unit, and ratios between them; all of one run on one machine."""

    name: str
    rows: list[dict[str, object]] = field(default_factory=list)
    load: float = LOAD

    def add(self, what: str, value: float, unit: str, note: str = "") -> float:
        """Keep a figure and print it."""
        self.rows.append({"what": what, "value": value, "unit": unit, "note": note})
        print(f"{what:58} {value:12,.3f} {unit:8} {note}", flush=True)
        return value

    def write(self) -> None:
        """Write ``<RESULTS>/<name>.json``."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        about = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine": f"{os.cpu_count()} cores ({_processor()}), {_memory_gib():.0f} GiB, {platform.system()}",
        }
        (RESULTS / f"{self.name}.json").write_text(json.dumps(about | asdict(self), indent=1) + "\n")


def run_parts(name: str, parts: Mapping[str, Callable[[Results], None]], named: Sequence[str]) -> None:
    """Measure the named parts, or all, and write ``<RESULTS>/<name>.json``; what is not measured again stays in it."""
    unknown = set(named) - set(parts)
    if unknown:
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    kept: dict[str, list[dict[str, object]]] = {}
    file = RESULTS / f"{name}.json"
    if named and file.exists():
        for row in json.loads(file.read_text())["rows"]:
            kept.setdefault(str(row.get("part")), []).append(row)
    for part in named or parts:
        results = Results(name)
        parts[part](results)
        kept[part] = [{**row, "part": part} for row in results.rows]
        Results(name, [row for p in parts for row in kept.get(p, ())]).write()


def _processor() -> str:
    """Return the processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def memory(which: str = "VmHWM") -> float:
    """A figure of this process from /proc/self/status, in MiB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except FileNotFoundError:
        return float("nan")
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))
