"""Downloads over the loopback interface: against `requests` with a hash, over broken connections, and slow ones.

    python benchmarks/download.py

The baseline reads 1 MiB at a time with `requests`, updates one sha256 and writes nothing. Ours also writes the file,
syncs and records it: once to memory (/dev/shm), and once to the disk, whose own speed stands beside it. Rounds
alternate, the median counts; the server is a process of its own that sends with `sendfile`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from results import DATA, Results

from rlds_cli.base import settings
from rlds_cli.base.http.client import Parallelism, RetryPolicy
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile

SIZE = 10**9
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
MEMORY = Path("/dev/shm")
RATE = 20 << 20  # bytes a second and connection of the slow server
AT_ONCE = Parallelism(after=0.0, worth=0.0, fast=1 << 40)  # several connections from the beginning
HASTY = RetryPolicy(first=0.01, longest=0.1)


def noise(path: Path, size: int) -> str:
    """Make a file; its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    if not path.exists() or path.stat().st_size != size:
        with path.open("wb") as f:
            for k in range(0, size, 1 << 20):
                f.write(os.urandom(min(1 << 20, size - k)))
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def served(file: Path, *how: object) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("loopback.py")), str(file), *map(str, how)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin and server.stdout
        yield server.stdout.readline().strip()
        server.stdin.close()


def sent(url: str) -> dict[str, int]:
    """What the server has sent since it was last asked."""
    return dict(requests.get(url.rpartition("/")[0] + "/sent", timeout=10).json())


def with_requests(url: str, sha256: str | None) -> float:
    start, digest = time.perf_counter(), hashlib.sha256()
    with requests.get(url, stream=True, timeout=60) as response:
        for block in response.iter_content(1 << 20):
            if sha256 is not None:
                digest.update(block)
    assert sha256 in (None, digest.hexdigest())
    return time.perf_counter() - start


def ours(url: str, sha256: str, below: Path, *, size: int = SIZE, width: Parallelism | None = None) -> float:
    where = settings.read(below / "home", {})
    with tempfile.TemporaryDirectory(dir=below) as target:
        start = time.perf_counter()
        planned = planning.plan([RemoteFile("file.bin", (url,), size=size, sha256=sha256)], Path(target), where)
        fetching.fetch(planned, where, width=width, policy=HASTY)
        return time.perf_counter() - start


def disk(file: Path, below: Path) -> float:
    """Writing and syncing the same bytes, without anything else."""
    with tempfile.TemporaryDirectory(dir=below) as target, file.open("rb") as f:
        start = time.perf_counter()
        with (Path(target) / "file.bin").open("wb") as out:
            shutil.copyfileobj(f, out, 1 << 20)
            os.fsync(out.fileno())
        return time.perf_counter() - start


def medians(ways: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(way())
    return {name: statistics.median(t) for name, t in times.items()}


def whole(results: Results, file: Path, sha256: str) -> None:
    with served(file) as url:
        ways = {"requests, sha256, nothing written": lambda: with_requests(url, sha256)}
        if MEMORY.is_dir():
            ways["rlds, into memory"] = lambda: ours(url, sha256, MEMORY)
        ways["write and fsync alone, to this disk"] = lambda: disk(file, DATA)
        ways["rlds, to this disk"] = lambda: ours(url, sha256, DATA)
        found = medians(ways)
    for name, seconds in found.items():
        results.add(f"1 GB: {name}", seconds, "s", f"{1 / seconds:.2f} GB/s")
    baseline = found["requests, sha256, nothing written"]
    if MEMORY.is_dir():
        results.add(
            "1 GB: rate into memory / requests' rate", baseline / found["rlds, into memory"], "x", "at least 0.9 wanted"
        )
    results.add(
        "1 GB: rate to this disk / requests' rate", baseline / found["rlds, to this disk"], "x", "at least 0.9 wanted"
    )


def broken(results: Results, file: Path, sha256: str) -> None:
    below = MEMORY if MEMORY.is_dir() else DATA
    with served(file, 0.05) as url:
        shares = []
        for _ in range(ROUNDS):
            ours(url, sha256, below, width=AT_ONCE)
            shares.append(sent(url)["sent"] / SIZE)
    most = f"at most {max(shares):.3f} of {ROUNDS} runs; at most 1.3 wanted"
    results.add("5 % of connections interrupted: bytes sent / size of the file", statistics.median(shares), "x", most)


def slow(results: Results, file: Path, sha256: str) -> None:
    size, below = file.stat().st_size, MEMORY if MEMORY.is_dir() else DATA
    with served(file, 0, RATE) as url:
        one, several = (
            ours(url, sha256, below, size=size, width=width)
            for width in (Parallelism(of_a_file=1), Parallelism(after=1.0, worth=1.0))
        )
    note = f"{size / one / 2**20:.0f} and {size / several / 2**20:.0f} MiB/s; the server gives a connection 20 MiB/s"
    results.add("200 MB, slow server: time over one / over several connections", one / several, "x", note)


def main() -> None:
    os.environ["NO_PROXY"] = "*"
    results = Results("download")
    file, short = DATA / "download.bin", DATA / "download-200mb.bin"
    sha256 = noise(file, SIZE)
    whole(results, file, sha256)
    broken(results, file, sha256)
    slow(results, short, noise(short, 200_000_000))
    results.write()
    for path in (file, short):
        path.unlink()


if __name__ == "__main__":
    main()
