"""Wall time of commands from a cold start of Python, and the modules that they import.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from results import Results

RUNS = 7
COUNT = "import sys\nfrom rlds_cli.cli import main\ntry: main()\nexcept SystemExit: pass\nprint(len(sys.modules))"


def main() -> None:
    results = Results("startup")
    with tempfile.TemporaryDirectory() as home:
        environment = {"RLDS_HOME": home, "HOME": home, "PATH": ""}

        def run(*command: str) -> float:
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True, env=environment)
            return time.perf_counter() - start

        run(sys.executable, "-m", "rlds_cli", "download", "-q", "sample/pendulum-d4rl")
        python = min(run(sys.executable, "-c", "") for _ in range(RUNS))
        results.add("python alone", python * 1000, "ms")
        for command in (["--help"], ["list"], ["list", "hopper", "medium"], ["inspect", "sample/pendulum-d4rl"],
                        ["download", "sample/pendulum-d4rl"]):  # fmt: skip
            best = min(run(sys.executable, "-m", "rlds_cli", *command) for _ in range(RUNS))
            counted = subprocess.run(
                [sys.executable, "-c", COUNT, *command], capture_output=True, text=True, env=environment
            )
            results.add(f"rlds {' '.join(command)}", best * 1000, "ms", f"{counted.stdout.split()[-1]} modules")
    results.write()


if __name__ == "__main__":
    main()
