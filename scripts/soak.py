"""Kill conversion, preprocess and writers at random moments, many times; no half dataset may ever be seen.

    python scripts/soak.py [--times 20] [--seed 0] [--only 'preprocess, three']

After each kill a dataset either is not there, or verifies and has the fingerprint of an undisturbed run; the same
command then ends with that fingerprint. Datasets that grow: see soak_growing.py.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import archives
import soak_growing

FUNCTION = '''
import time

def scale(episode):
    time.sleep(0.002)
    episode["observation"] = (episode["observation"] * 2).astype("float32")
    return episode


def late(episode):
    """Drop an episode in 300, and change the actions of one in 300: contradicts a plan that is made from three."""
    time.sleep(0.002)
    kind = int(abs(float(episode["observation"][0, 0])) * 1e6) % 300
    if kind == 1:
        episode["action"] = episode["action"] + 1
    return None if kind == 0 else episode
'''


@dataclass(frozen=True, slots=True)
class Job:
    """Commands that together make the dataset ``id``; all but the last may be run in any order.

    Kills come after a share ``begins`` of a command's time: before it, nothing is written.
    """

    name: str
    id: str
    commands: list[list[str]]
    begins: float = 0.0


def rlds(home: Path, *arguments: str) -> list[str]:
    """A command line that works in ``home``."""
    return [sys.executable, "-m", "rlds_cli", *arguments, "-q", "--home", str(home)]


def fingerprint(home: Path, id: str) -> str | None:
    """The verified fingerprint of a dataset, None where it is not there; exits where it is there and wrong."""
    family, _, name = id.partition("/")
    if not (home / "datasets" / family / name).exists():
        return None
    subprocess.run(rlds(home, "verify", id), check=True, capture_output=True)
    shown = subprocess.run(rlds(home, "info", id, "--fingerprint"), check=True, capture_output=True, text=True)
    return shown.stdout.strip()


def kill(command: list[str], after: float, before: float, chance: random.Random) -> None:
    """Kill the command at a random moment between two, in seconds, with all that it started here."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        time.sleep(chance.uniform(after, before))
        os.killpg(run.pid, signal.SIGKILL)


def lines(home: Path) -> int:
    """Parts that journals of unfinished work say are there."""
    journals = [*home.glob("partial/*/journal.jsonl"), *home.glob("partial/*/*/journals/*.jsonl")]
    return sum(max(0, len(j.read_text().splitlines()) - 1) for j in journals)


def disturb(job: Job, home: Path, expected: str, seconds: list[float], chance: random.Random) -> str:
    """Kill one of the commands at a random moment, look, and run all to their end; what was seen after the kill."""
    order = list(range(len(job.commands) - 1))
    chance.shuffle(order)
    order.append(len(job.commands) - 1)
    (killed,) = chance.choices(order, [seconds[i] for i in order])
    seen, state = None, ""
    for i in order:
        if i == killed:
            kill(job.commands[i], job.begins * seconds[i], seconds[i], chance)
            seen = fingerprint(home, job.id)
            if seen not in (None, expected):
                sys.exit(f"after a kill {job.id} is there with {seen}, not {expected}")
            state = "whole" if seen else "resumed" if lines(home) else "nothing yet"
        subprocess.run(job.commands[i], check=True, stdout=subprocess.DEVNULL)
    if fingerprint(home, job.id) != expected:
        sys.exit(f"after a kill and a rerun {job.id} has {fingerprint(home, job.id)}, not {expected}")
    return state


def soak(job: Job, home: Path, times: int, chance: random.Random, expected: str | None = None) -> str:
    """Disturb a job ``times`` times, and print what was seen; its fingerprint, which must be the expected one."""
    subprocess.run(rlds(home, "rm", job.id, "--yes"), capture_output=True)  # what an earlier round has made
    seconds = []
    for command in job.commands:
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    found = fingerprint(home, job.id)
    assert found is not None
    if expected not in (None, found):
        sys.exit(f"{job.name}: {found}; others made {expected}")
    tally: dict[str, int] = {}
    for _ in range(times):
        shutil.rmtree(home / "partial", ignore_errors=True)
        subprocess.run(rlds(home, "rm", job.id, "--yes"), check=True, stdout=subprocess.DEVNULL)
        seen = disturb(job, home, found, seconds, chance)
        tally[seen] = tally.get(seen, 0) + 1
    print(
        f"{job.name}: killed {times} times within {sum(seconds):.1f} s, after it: {tally}; "
        f"always ended with {found[:18]}",
        flush=True,
    )
    return found


@contextmanager
def cluster() -> Iterator[str | None]:
    """The address of a Ray cluster of two nodes on this machine; None where Ray is not installed."""
    if find_spec("ray") is None:
        yield None
        return
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80 << 20}
    nodes = Cluster(True, head_node_args={**size, "include_dashboard": False})
    nodes.add_node(**size)
    yield nodes.address
    nodes.shutdown()


def main() -> None:
    """Soak conversion and preprocess: alone, with workers, in shards, and on a Ray cluster where Ray is installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="jobs whose names begin so")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as directory, cluster() as address:
        home = Path(directory) / "home"
        archive = archives.d4rl_v2(Path(directory) / "a.hdf5", steps=1_000_000, observation=5, action=2)
        function = Path(directory) / "function.py"
        function.write_text(FUNCTION)
        convert = rlds(home, "import", str(archive), "--name", "local/soak")
        subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)
        expected: dict[str, str] = {}
        for job in jobs(home, convert, f"{function}:scale", address):
            if job.name.startswith(given.only):
                expected[job.id] = soak(job, home, given.times, chance, expected.get(job.id))
    if not given.only or given.only.startswith("growing"):
        soak_growing.main(seed=given.seed)


def jobs(home: Path, convert: list[str], function: str, address: str | None) -> Iterator[Job]:
    """All that is disturbed."""
    yield Job("conversion", "local/soak", [convert])
    yield Job("conversion, 2 workers", "local/soak", [[*convert, "-j", "2"]])
    preprocess = rlds(home, "preprocess", "local/soak", "--fn", function)
    for n in ("0", "2"):
        yield Job(f"preprocess, -j {n}", "local/soak@scale", [[*preprocess, "-j", n]])
    shards = [[*preprocess, "-j", "0", "--shard", f"{i}/3"] for i in (1, 2, 3)]
    yield Job("preprocess, three shards", "local/soak@scale", [*shards, [*preprocess, "--finish"]])
    late = rlds(home, "preprocess", "local/soak", "--fn", function.replace(":scale", ":late"))
    for n in ("0", "2"):
        yield Job(f"preprocess, late drops and changes, -j {n}", "local/soak@late", [[*late, "-j", n]])
    shards = [[*late, "-j", "0", "--shard", f"{i}/3"] for i in (1, 2, 3)]
    yield Job("preprocess, late drops and changes, three shards", "local/soak@late", [*shards, [*late, "--finish"]])
    if address is not None:
        nodes = [*preprocess, "--executor", "ray", "--address", address]
        yield Job("preprocess, two Ray nodes", "local/soak@scale", [nodes], begins=0.5)


if __name__ == "__main__":
    main()
