"""Time of commands from a cold start of Python, and the modules that they import.

python benchmarks/startup.py

CPU time is that of the command and of the processes that it starts. Python with Typer, Rich and NumPy is the limit of a
command that reads a dataset.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from results import Results

import rlds_cli

RUNS = 9
SAMPLE = Path(rlds_cli.__file__).parent / "samples" / "pendulum-d4rl.hdf5"
COUNT = "import sys\nfrom rlds_cli.cli import main\ntry: main()\nexcept SystemExit: pass\nprint(len(sys.modules))"
COMMANDS = (
    ["--help"],
    ["list"],
    ["list", "hopper", "medium"],
    ["list", "--local"],
    ["inspect", "sample/pendulum-d4rl"],
    ["download", "sample/pendulum-d4rl"],
    ["import", str(SAMPLE), "--name", "local/small"],
)


def main() -> None:
    results = Results("startup")
    with tempfile.TemporaryDirectory() as home:
        environment = {"RLDS_HOME": home, "HOME": home, "PATH": ""}

        def run(command: Sequence[str]) -> tuple[float, float]:
            shutil.rmtree(Path(home, "datasets", "local"), ignore_errors=True)
            shutil.rmtree(Path(home, "versions", "local"), ignore_errors=True)
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, capture_output=True, check=True, env=environment)
            wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
            return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        def measure(what: str, command: Sequence[str], note: str = "") -> None:
            wall, cpu = map(min, zip(*(run(command) for _ in range(RUNS)), strict=True))
            results.add(what, wall * 1000, "ms", f"CPU {cpu * 1000:.0f} ms{note}")

        run([sys.executable, "-m", "rlds_cli", "download", "-q", "sample/pendulum-d4rl"])
        measure("python alone", [sys.executable, "-c", ""])
        limit = "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import typer.main, rich.console, numpy"
        measure("python with typer, rich and numpy", [sys.executable, "-c", limit])
        for command in COMMANDS:
            ours = [sys.executable, "-m", "rlds_cli", *command]
            run(ours)
            counted = subprocess.run(
                [sys.executable, "-c", COUNT, *command, *(["--force"] if command[0] == "import" else [])],
                capture_output=True,
                text=True,
                env=environment,
            )
            name = " ".join(SAMPLE.name if word == str(SAMPLE) else word for word in command)
            measure(f"rlds {name}", ours, f", {counted.stdout.split()[-1]} modules")
    results.write()


if __name__ == "__main__":
    main()
