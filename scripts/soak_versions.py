"""Random histories of datasets and of addresses, with kills, failing servers and several users, for some minutes.

Usage: python scripts/soak_versions.py [--minutes 10] [--seed 0]

Each history is a process of its own, of a seed that is printed if it fails; `tests/contract/versions_history.py` and
`tests/contract/address_history.py` run one by its seed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEPS = 25  # of a history at addresses


def histories(seed: int) -> list[list[str]]:
    """Return the commands that run the histories of a seed, without their directory."""
    foreign = ["--foreign"] if sys.platform == "linux" and os.geteuid() == 0 and seed % 2 else []
    return [
        ["versions_history.py", str(seed), *foreign],
        ["address_history.py", str(seed), "--steps", str(STEPS)],
    ]


def main() -> int:
    """Run histories until the time is over; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()) % 1_000_000, help="the first; by default the clock's"
    )
    given = parser.parse_args()
    end, done = time.monotonic() + 60 * given.minutes, 0
    for seed in count(given.seed):
        for program, *arguments in histories(seed):
            with tempfile.TemporaryDirectory() as directory:
                command = [
                    sys.executable,
                    str(ROOT / "tests" / "contract" / program),
                    arguments[0],
                    directory,
                    *arguments[1:],
                ]
                environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
                run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if run.returncode:
                print(run.stdout[-2000:], run.stderr[-4000:], f"failed: {' '.join(command)}", sep="\n")
                return 1
            done += 1
        if time.monotonic() > end:
            print(f"{done} histories of {given.seed} to {seed} held")
            return 0
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
