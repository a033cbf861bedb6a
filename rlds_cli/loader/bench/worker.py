"""The process that loads batches and measures itself: ``python -m rlds_cli.loader.bench.worker FD``, FD a connection.

A message starts each stage, so that all workers enter it together::

    BenchJob -> bytes of a batch     opens the dataset, makes the loader, reads a few batches
    RUN      -> WorkerResult         batches for so many seconds
    MEMORY   -> Memory               of this process
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch  # what a loader imports is not its memory

from rlds_cli.base.array_types import Array
from rlds_cli.dataset import Batch, Dataset
from rlds_cli.errors import RldsError
from rlds_cli.loader.bench import END, IMPORTED, MEMORY, RUN, BenchJob, Memory, Round, WorkerResult
from rlds_cli.loader.loader import Loader
from rlds_cli.loader.storage.remote import blocks_of
from rlds_cli.store import open_store

_ROUND = 0.25  # seconds of the loader, then of the limit, and so on
_WARM = 64  # batches before anything is timed
_COLD_ROUNDS = 5
_STATUS, _SMAPS, _MAPS = Path("/proc/self/status"), Path("/proc/self/smaps"), Path("/proc/self/maps")


class TimedLoader:
    """The loader of a job, opened again for every cold round."""

    def __init__(self, job: BenchJob) -> None:
        blocks = blocks_of(job.dataset)
        self.job, self.remote = job, blocks is not None
        if blocks is not None:
            blocks.fills = False  # nothing arrives beside what is measured
        begun = time.perf_counter()
        self.open()
        self.batch_bytes = _bytes(self.next())
        self.first_batch = time.perf_counter() - begun

    def open(self) -> None:
        """Open the dataset and make the loader."""
        job = self.job
        dataset = job.dataset
        if not self.remote:
            dataset = Dataset(open_store(dataset.path), dataset.episodes.index)
        self.loader = Loader(
            dataset, job.batch_size, window=job.window, sampler=job.sampler, seed=job.seed, steps=1 << 40
        )
        self.batches: Iterator[Batch] = iter(self.loader)
        self.priority = np.random.default_rng(0).random(job.batch_size)

    def next(self) -> Batch:
        """Return a batch; with `Prioritized`, update its priorities first."""
        batch = next(self.batches)
        if "window" in self.job.sampler.gives:  # updates name windows
            self.loader.update_priorities(batch, self.priority)
        return batch

    def cool(self) -> None:
        """Close the dataset, drop its files from the page cache, and open it again."""
        used = {f for f in mapped_files() if self._is_data(f)}
        del self.loader, self.batches
        for file in used:
            evict(file)
        self.open()

    def _is_data(self, file: Path) -> bool:
        return file.is_relative_to(self.job.dataset.path.resolve()) or file.parent.name == "packed"


def limit(descriptor: int, batch_size: int, sample_bytes: int) -> Callable[[], Any]:
    """Return a function that takes as many random rows of as many bytes from one array."""
    width = max(8, sample_bytes)
    content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    packed: Array = np.frombuffer(content, np.dtype((np.void, width)), len(content) // width)
    if width <= 4096:  # numbers are taken faster than scalars of a few bytes
        packed = np.frombuffer(content, np.int64, len(packed) * (width // 8)).reshape(-1, width // 8)
    rng = np.random.default_rng(0)
    return lambda: packed.take(rng.integers(len(packed), size=batch_size), axis=0)


def _timed(call: Callable[[], Any], seconds: float) -> Round:
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        taken = time.perf_counter() - start
        if taken >= seconds:
            return calls, taken


def run(loading: TimedLoader, batch_bytes: int) -> WorkerResult:
    """Alternate rounds of the loader and of the limit until the loader has had its seconds."""
    job = loading.job
    take = limit(job.limit, job.batch_size, batch_bytes // job.batch_size)
    take()
    length = job.seconds / _COLD_ROUNDS if job.cold else min(_ROUND, job.seconds)
    rounds: list[Round] = []
    limits: list[Round] = []
    major = minor = 0
    while sum(taken for _, taken in rounds) < job.seconds:
        if job.cold:
            loading.cool()
        before = faults()
        rounds.append(_timed(loading.next, length))
        after = faults()
        major, minor = major + after[0] - before[0], minor + after[1] - before[1]
        limits.append(_timed(take, length / 4))
    stats = loading.loader.stats()
    return WorkerResult(tuple(rounds), tuple(limits), batch_bytes, major, minor, loading.first_batch, stats)


def _bytes(batch: Batch) -> int:
    return sum(int(getattr(x, "nbytes", 0)) for _, x in batch.leaves())


def memory(libraries: Collection[Path] = ()) -> Memory:
    """Read the current figures; the files of ``libraries`` do not count as proportional."""
    status = dict(_sizes(_lines(_STATUS)))
    return Memory(status.get("RssAnon"), status.get("RssFile"), _proportional(libraries))


def _proportional(libraries: Collection[Path]) -> int | None:
    """Sum Pss: each mapping has a line ``7f1c-7f1d r--p 0 fe:01 812  /a/file``, then ``Pss: 4 kB`` and others."""
    lines = _lines(_SMAPS)
    total, counted = 0, True
    for line in lines:
        parts = line.split(maxsplit=5)
        if not parts[0].endswith(":"):
            counted = len(parts) < 6 or Path(parts[5]) not in libraries
        elif parts[0] == "Pss:" and counted:
            total += int(parts[1]) * 1024
    return total if lines else None


def _sizes(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Parse lines such as ``RssAnon:   812 kB`` into bytes."""
    for parts in map(str.split, lines):
        if len(parts) == 3 and parts[2] == "kB":
            yield parts[0].rstrip(":"), int(parts[1]) * 1024


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def faults() -> tuple[int, int]:
    """Return this process's major page faults so far, which waited for the disk, and its minor ones."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt, used.ru_minflt


def mapped_files() -> set[Path]:
    """Return the files that this process has mapped."""
    names = (parts[5] for parts in (line.split(maxsplit=5) for line in _lines(_MAPS)) if len(parts) == 6)
    return {Path(name) for name in names if name.startswith("/") and not name.endswith(" (deleted)")}


def evict(file: Path) -> None:
    """Drop a file's clean pages that no process has mapped from the page cache.

    Do nothing where the system has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def serve(connection: Connection) -> None:
    """Answer messages until `END`."""
    torch.zeros(1)
    connection.send(IMPORTED)
    loading, batch_bytes = None, 0
    libraries = mapped_files()
    while (wanted := connection.recv()) != END:
        if isinstance(wanted, BenchJob):
            loading = TimedLoader(wanted)
            warm = 0 if loading.remote else _WARM  # the blocks that batches wait for are a part of the measurement
            batch_bytes = max([loading.batch_bytes, *(_bytes(loading.next()) for _ in range(warm))])
            connection.send(batch_bytes)
        elif wanted == MEMORY:
            connection.send(memory(libraries))
        elif wanted == RUN and loading is not None:
            connection.send(run(loading, batch_bytes))


def main() -> None:
    """Serve the parent process; an error is sent in place of an answer."""
    connection = Connection(int(sys.argv[1]))
    try:
        serve(connection)
    except RldsError as e:
        connection.send(e)
    except (EOFError, KeyboardInterrupt):
        pass


if __name__ == "__main__":
    main()
