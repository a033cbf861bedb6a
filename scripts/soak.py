"""Kill conversion and preprocess at random moments, many times; no half dataset may ever be seen.

    python scripts/soak.py [--times 20] [--seed 0]

After each kill a dataset either is not there, or verifies and has the fingerprint of an undisturbed run; the same
command then ends with that fingerprint.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import archives

FUNCTION = """
def scale(episode):
    episode["observation"] = (episode["observation"] * 2).astype("float32")
    return episode
"""


def rlds(home: Path, *arguments: str) -> list[str]:
    """A command line that works in ``home``."""
    return [sys.executable, "-m", "rlds_cli", *arguments, "-q", "--cache-dir", str(home)]


def fingerprint(home: Path, id: str) -> str | None:
    """The verified fingerprint of a dataset, None where it is not there; exits where it is there and wrong."""
    family, _, name = id.partition("/")
    if not (home / "datasets" / family / name).exists():
        return None
    subprocess.run(rlds(home, "verify", id), check=True, capture_output=True)
    shown = subprocess.run(rlds(home, "info", id, "--fingerprint"), check=True, capture_output=True, text=True)
    return shown.stdout.strip()


def disturb(command: list[str], home: Path, id: str, expected: str, seconds: float, chance: random.Random) -> str:
    """Kill the command once at a random moment, look, and run it to its end; what was seen after the kill."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        time.sleep(chance.uniform(0, seconds))
        os.killpg(run.pid, signal.SIGKILL)
    seen = fingerprint(home, id)
    if seen not in (None, expected):
        sys.exit(f"after a kill {id} is there with {seen}, not {expected}")
    kept = any(len(j.read_text().splitlines()) > 1 for j in home.glob("partial/*/journal.jsonl"))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if fingerprint(home, id) != expected:
        sys.exit(f"after a kill and a rerun {id} has {fingerprint(home, id)}, not {expected}")
    return "whole" if seen else "resumed" if kept else "nothing yet"


def soak(name: str, command: list[str], home: Path, id: str, times: int, chance: random.Random) -> None:
    """Disturb one command ``times`` times, and print what was seen."""
    subprocess.run(rlds(home, "rm", id, "--yes"), capture_output=True)  # what an earlier round has made
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    expected = fingerprint(home, id)
    assert expected is not None
    tally: dict[str, int] = {}
    for _ in range(times):
        shutil.rmtree(home / "partial", ignore_errors=True)
        subprocess.run(rlds(home, "rm", id, "--yes"), check=True, stdout=subprocess.DEVNULL)
        seen = disturb(command, home, id, expected, seconds, chance)
        tally[seen] = tally.get(seen, 0) + 1
    print(f"{name}: killed {times} times within {seconds:.1f} s, after it: {tally}; always ended with {expected[:18]}")


def main() -> None:
    """Soak conversion and preprocess, alone and with workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "home"
        archive = archives.d4rl_v2(Path(directory) / "a.hdf5", steps=1_000_000, observation=5, action=2)
        function = Path(directory) / "function.py"
        function.write_text(FUNCTION)
        convert = rlds(home, "import", str(archive), "--as", "local/soak")
        soak("conversion", convert, home, "local/soak", given.times, chance)
        soak("conversion, 2 workers", [*convert, "-j", "2"], home, "local/soak", given.times, chance)
        for jobs in ("0", "2"):
            preprocess = rlds(home, "preprocess", "local/soak", "--fn", f"{function}:scale", "-j", jobs)
            soak(f"preprocess, -j {jobs}", preprocess, home, "local/soak@scale", given.times, chance)


if __name__ == "__main__":
    main()
