"""Kill exports at random moments, and check that nothing incomplete ever has the name asked for.

Usage: python scripts/soak_exports.py [--kills 20] [--seed 0] [FORMAT ...]

For each format a process exports a dataset, and is killed with SIGKILL, with all of its workers. After each kill the
directory is not there, or its files are those of an undisturbed export. The same command goes on, proves what it wrote,
and ends with the same fingerprint.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import rlds_cli
from rlds_cli.archives import FORMATS

EPISODES, LENGTH = 300, 1000
EXPORT = """
import json
import rlds_cli
from rlds_cli.archives.exports import format as formats
formats.units_of.__defaults__ = (1 << 20,)  # small, so that there are many units
done = rlds_cli.export({id!r}, {to!r}, {directory!r}, lossy=True, jobs=2)
print(json.dumps([done.fingerprint, done.proved]))
"""


def make() -> str:
    """Write the dataset, 60 MB; return its id."""
    rng = np.random.default_rng(0)
    episodes = (
        {
            "observation": {"state": rng.standard_normal((LENGTH + 1, 48), np.float32)},
            "action": rng.standard_normal((LENGTH, 4), np.float32),
            "next": {"reward": rng.standard_normal(LENGTH, np.float32), "truncated": True},
        }
        for _ in range(EPISODES)
    )
    return rlds_cli.create("local/soak", episodes).id


def started(id: str, to: str, directory: Path) -> subprocess.Popen[str]:
    """Start an export, in a process group of its own."""
    code = EXPORT.format(id=id, to=to, directory=str(directory))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)


def finished(process: subprocess.Popen[str]) -> list[Any]:
    """Wait for an export; return its fingerprint and whether it is proved."""
    out, _ = process.communicate(timeout=600)
    if process.returncode:
        sys.exit(f"an export ended with code {process.returncode}")
    found: list[Any] = json.loads(out.splitlines()[-1])
    return found


def soak(id: str, to: str, kills: int, rng: random.Random, place: Path) -> None:
    """Kill exports to one format."""
    directory, begun = place / f"out-{to}" / "soak", time.monotonic()
    expected = finished(started(id, to, directory))
    whole, took = sizes(directory), time.monotonic() - begun
    shutil.rmtree(directory)
    killed = resumed = 0
    while killed < kills:
        process = started(id, to, directory)
        time.sleep(rng.uniform(0.2, 0.8) * took)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
        if directory.exists():
            if sizes(directory) != whole:
                sys.exit(f"{to}: kill {killed} left something incomplete in {directory}")
            if hidden(directory).exists():
                check(finished(started(id, to, directory)), expected, to)
            shutil.rmtree(directory)
        elif (hidden(directory) / "journal").exists():
            resumed += 1
            if rng.random() < 0.3:
                check(finished(started(id, to, directory)), expected, to)
                shutil.rmtree(directory)
    check(finished(started(id, to, directory)), expected, to)
    if sizes(directory) != whole or hidden(directory).exists():
        sys.exit(f"{to}: the files differ from those of an undisturbed export")
    print(f"{to}: {killed} kills, {resumed} of them with work that went on; the same files at the end")


def check(found: list[Any], expected: list[Any], to: str) -> None:
    """Exit if an export that went on gave something else."""
    if found != expected:
        sys.exit(f"{to}: {found} instead of {expected}")


def hidden(directory: Path) -> Path:
    """The directory of an export that is at work."""
    return directory.with_name(f".{directory.name}.rlds-export")


def sizes(directory: Path) -> dict[str, int]:
    """The files below a directory, with their sizes; those of Rerun differ by the ids that it gives to rows."""
    files = [f for f in directory.rglob("*") if f.is_file()]
    return {str(f.relative_to(directory)): f.stat().st_size * (f.suffix != ".rrd") for f in files}


def main() -> None:
    """Run the soak test."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument(
        "formats", nargs="*", default=[to for to in FORMATS if to != "rerun" or find_spec("rerun")], metavar="FORMAT"
    )
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        os.environ["RLDS_HOME"] = f"{place}/home"
        id = make()
        for to in options.formats:
            soak(id, to, options.kills, rng, Path(place))


if __name__ == "__main__":
    main()
