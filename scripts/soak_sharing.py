"""Kill pushes and downloads at random moments, and check that nothing wrong is ever there, and that little is repeated.

Usage: python scripts/soak_sharing.py [--kills 20] [--seed 0] [--directory]

A dataset and one that grows are pushed to an object store on this machine (``--directory``: to a directory) by
processes that are killed with SIGKILL. After each kill, whoever looks finds no dataset, the old one or the new one,
whole. The same for downloads: the dataset is not there, or it is whole.
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

sys.path.extend(str(Path(__file__).parents[1] / "tests" / name) for name in ("support", "contract"))

import numpy as np
from object_store import ObjectStore

import rlds_cli
from rlds_cli.errors import DatasetNotFound
from rlds_cli.keep.verification import verify

OBJECT = 1 << 20  # bytes of an object: small, so that a push has many
ROWS = 200_000
PUSH = f"""
from rlds_cli.share import packing
packing.LEAST = {OBJECT}
import rlds_cli
rlds_cli.push({{id!r}}, {{to!r}})
"""
PULL = "import rlds_cli; rlds_cli.download({to!r}, name={id!r})"


def make(seed: int) -> str:
    """Write an ordinary dataset, another one for each seed; return its fingerprint."""
    rng = np.random.default_rng(seed)
    episode = {
        "observation": rng.integers(0, 256, (ROWS + 1, 64), np.uint8),
        "action": rng.integers(0, 9, ROWS),
        "next/reward": rng.standard_normal(ROWS),
    }
    return rlds_cli.create("local/soak", [episode], force=True).fingerprint


def grow(seed: int) -> str:
    """Add episodes to the dataset that grows; return its fingerprint."""
    rng = np.random.default_rng(seed)
    with rlds_cli.writer("local/grows") as w:
        w.add_episodes(
            {"observation": rng.standard_normal((5001, 8)), "action": rng.standard_normal((5000, 2))} for _ in range(20)
        )
    return rlds_cli.open_dataset("local/grows").fingerprint


def run(code: str, home: Path) -> subprocess.Popen[bytes]:
    """Start a process that works in a home."""
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"RLDS_HOME": str(home)})


def timed(code: str, home: Path) -> float:
    """Let a process end, and return its seconds."""
    began = time.monotonic()
    if run(code, home).wait():
        raise SystemExit(f"failed: {code}")
    return time.monotonic() - began


def kill(code: str, home: Path, after: float) -> bool:
    """Start a process, and kill it after some seconds; return whether it was still at work."""
    child = run(code, home)
    time.sleep(after)
    child.send_signal(signal.SIGKILL)
    return child.wait() == -signal.SIGKILL


def look(to: str, allowed: set[str], scratch: Path) -> None:
    """Check that an address has nothing, or one of these datasets, whole."""
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        ds = rlds_cli.download(to, name="local/looked", home=scratch)
    except DatasetNotFound:
        return
    if ds.fingerprint not in allowed or not verify("local/looked", home=scratch).ok:
        raise SystemExit(f"{to} has {ds.fingerprint}, not one of {allowed}")


def main() -> None:
    """Run, and print what was found."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--directory", action="store_true")
    given = arguments.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as scratch, ObjectStore(latency=0.005) as server:
        top = Path(scratch)
        server.buckets["soak"] = {}
        os.environ |= server.environ(top / "mine")
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
        base = str(top / "store") if given.directory else "s3://soak/store"
        for id, change in (("local/soak", make), ("local/grows", grow)):
            to = f"{base}/{id.partition('/')[2]}"
            _push(id, change, to, given.kills, rng, top, server)
            _pull(id, change, to, given.kills, rng, top)


def _push(id: str, change: object, to: str, kills: int, rng: random.Random, top: Path, server: ObjectStore) -> None:
    assert callable(change)
    code = PUSH.format(id=id, to=to)
    hit, begun = 0, server.received
    allowed = {change(0)}  # what may be there
    longest = timed(code, top / "mine")
    needed = server.received - begun
    for k in range(kills):
        new = change(k + 1)
        allowed.add(new)
        hit += kill(code, top / "mine", rng.uniform(0.2, 1.0) * longest)
        look(to, allowed, top / "look")
        if k % 4 == 3 or k == kills - 1:
            timed(code, top / "mine")
            look(to, {new}, top / "look")
            allowed = {new}
    print(f"{id}: {hit} of {kills} pushes killed at work; the address was whole each time ({needed / 2**20:.0f} MiB)")


def _pull(id: str, change: object, to: str, kills: int, rng: random.Random, top: Path) -> None:
    code = PULL.format(id="local/there", to=to)
    home = top / "theirs"
    hit, expected = 0, rlds_cli.open_dataset(id).fingerprint
    longest = timed(code, home)
    for _ in range(kills):
        if (home / "datasets/local/there").exists():
            shutil.rmtree(home)
        hit += kill(code, home, rng.uniform(0.3, 1.0) * longest)
        try:
            found = rlds_cli.open_dataset("local/there", home=home).fingerprint
        except DatasetNotFound:
            continue
        if found != expected or not verify("local/there", home=home).ok:
            raise SystemExit(f"{home} has {found}, not {expected}")
    timed(code, home)
    ds = rlds_cli.open_dataset("local/there", home=home)
    if ds.fingerprint != expected or not verify("local/there", home=home).ok:
        raise SystemExit(f"{home} has {ds.fingerprint}, not {expected}")
    shutil.rmtree(home)
    print(f"{id}: {hit} of {kills} downloads killed at work; nothing else than the dataset was ever there")


if __name__ == "__main__":
    main()
