"""Measure the speed and the memory of loading a dataset, beside a plain copy of the same bytes.

>>> from rlds_cli.loader import bench
>>> bench.measure("d4rl/hopper-medium-v2", window="Slice(32)", batch_size=8)  # doctest: +SKIP

Every measurement runs in processes of its own (`rlds_cli.loader.bench.worker`). The figures of memory come from Linux's
``/proc``; on other systems they are None. Windows and samplers may be text, as on a command line (``Slice(32)``), which
is parsed and never evaluated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from statistics import median
from threading import Event as Signal
from threading import Thread
from typing import Any, BinaryIO

from rlds_cli.base.integers import integer
from rlds_cli.base.progress import Event, Progress, shown, silent
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import BatchSize, InvalidArgument, RldsError
from rlds_cli.loader.samplers import Sampler
from rlds_cli.loader.stats import LoaderStats
from rlds_cli.loader.storage.remote import blocks_of
from rlds_cli.loader.texts import parse_sampler, parse_window
from rlds_cli.loader.windows.windows import Window

__all__ = ["Measurement", "measure"]
_LIMIT_BYTES = 256 << 20  # of the array that the limit reads: as large as the dataset, up to this
_MOST_PROCESSES = 256
_SPEAK = 0.5  # seconds between two reports
IMPORTED, RUN, MEMORY, END = "imported", "run", "memory", "end"  # messages from and to a worker

Round = tuple[int, float]  # batches, seconds


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of one measurement. Rates are of all processes together, medians over rounds; sizes are in bytes.

    Parameters
    ----------
    id : str
    version : int
    window, sampler : str
        As Python would write them.
    batch_size, processes : int
    cold : bool
        Whether the files were dropped from the page cache before every round.
    seconds : float
        Loaded by each process.
    batches_per_second, samples_per_second, bytes_per_second : float
    best_batches_per_second : float
        Of the best round of each process.
    batch_bytes : int
    limit_bytes_per_second : float
        Of ``numpy.take`` on one packed array: as many rows of as many bytes per batch, in the same run.
    share_of_limit : float
        ``bytes_per_second / limit_bytes_per_second``.
    anonymous : int or None
        RssAnon that dataset, loader and batches add to the imports; of the process with the most.
    mapped : int or None
        RssFile that they add, of the process with the most: pages of files, which processes share.
    proportional : int or None
        Pss that they add, without libraries, summed over all processes while all run: a page that four processes share
        counts once.
    major_faults, minor_faults : int
        Page faults of all processes while loading; the major ones waited for the disk.
    first_batch : float
        Seconds from the construction of the loader to its first batch, in the slowest process.
    waiting : float
        Part of the time, from the first batch on, for which processes waited for blocks of a remote dataset.
    requests, fetched, used : int
        Requests to the store, bytes that it sent, and bytes of all batches; 0 requests of a local dataset.
    """

    id: str
    version: int
    window: str
    sampler: str
    batch_size: int
    processes: int
    cold: bool
    seconds: float
    batches_per_second: float
    best_batches_per_second: float
    samples_per_second: float
    bytes_per_second: float
    batch_bytes: int
    limit_bytes_per_second: float
    share_of_limit: float
    anonymous: int | None
    mapped: int | None
    proportional: int | None
    major_faults: int
    minor_faults: int
    first_batch: float
    waiting: float
    requests: int
    fetched: int
    used: int


@dataclass(frozen=True, slots=True)
class BenchJob:
    """The task of a worker.

    ``limit`` is the descriptor of a file that is read row by row for comparison; ``cold`` drops the dataset's files
    from the page cache before every round.
    """

    dataset: Dataset
    window: Window
    sampler: Sampler
    batch_size: int
    seed: int
    seconds: float
    cold: bool
    limit: int


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """Rounds of the loader and of the limit, bytes of a batch, page faults while loading, what was waited for."""

    rounds: tuple[Round, ...]
    limit: tuple[Round, ...]
    batch_bytes: int
    major_faults: int
    minor_faults: int
    first_batch: float
    stats: LoaderStats


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of this process.

    ``anonymous`` (RssAnon) belongs to it alone; ``mapped`` (RssFile) are pages of files, which processes share;
    ``proportional`` (Pss) counts each page divided by the number of processes that have it.
    """

    anonymous: int | None
    mapped: int | None
    proportional: int | None

    def beyond(self, before: Memory) -> Memory:
        """Return the bytes beyond ``before``."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Memory(*(None if a is None or b is None else max(0, a - b) for a, b in pairs))


def measure(
    ref: StrPath | Dataset,
    *,
    window: Window | str = "Transition()",
    sampler: Sampler | str = "Uniform()",
    batch_size: int = 256,
    cold: bool = False,
    processes: int = 1,
    seconds: float = 3.0,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Measurement:
    """Load batches of a dataset for some seconds and return the figures.

    Each process loads in an order of its own; with `Prioritized`, every batch updates its priorities.

    Parameters
    ----------
    ref : str, path or Dataset
        A dataset: an id, a directory, or the address of one that was pushed. What a remote dataset lacks is fetched, so
        a second measurement finds more of it here.
    window, sampler : window and sampler, or str
        As for `Loader`; as text, ``"Slice(32)"``, ``"Shuffled"``.
    batch_size : int
    cold : bool
        Drop the files of the dataset from the page cache before every round, as if the data were larger than memory.
        In one process only.
    processes : int
        Number of processes that load at the same time.
    seconds : float
        How long each of them loads.
    progress : callable or bool, optional
        Told what arrives of a remote dataset meanwhile; True shows bars.

    Raises
    ------
    DatasetNotFound
        There is no such dataset.
    InvalidArgument
        Another value is not possible.
    EmptyWindow, BatchSize
        As `Loader` raises them.
    """
    dataset = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    chosen = parse_window(window) if isinstance(window, str) else window
    drawn = parse_sampler(sampler) if isinstance(sampler, str) else sampler
    count = integer("processes", processes, 1)
    if count > _MOST_PROCESSES:
        raise InvalidArgument(f"processes={count}: at most {_MOST_PROCESSES}.")
    if cold and count > 1:
        raise InvalidArgument("cold files are measured in one process: others would keep them in memory.")
    if cold and blocks_of(dataset) is not None:
        raise InvalidArgument(
            f"cold files of {dataset.id}, a remote dataset.", hint="RLDS_HOME=/an/empty/directory, where nothing is yet"
        )
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"seconds={seconds!r} must be a positive number.")
    size = integer("batch_size", batch_size, 1, BatchSize)
    with _ones(min(_LIMIT_BYTES, _content_bytes(dataset))) as ones, ExitStack() as stack:
        jobs = [BenchJob(dataset, chosen, drawn, size, k, seconds, cold, ones.fileno()) for k in range(count)]
        workers = [stack.enter_context(_worker(ones.fileno())) for _ in jobs]
        with _telling(dataset, seconds, shown(progress)):
            ran, before, after = _load(workers, jobs)
    return _summary(jobs[0], ran, [a.beyond(b) for b, a in zip(before, after, strict=True)])


@contextmanager
def _telling(dataset: Dataset, seconds: float, progress: Progress) -> Iterator[None]:
    """Report twice a second, while a remote dataset is measured, what arrived and how long it was waited for."""
    if blocks_of(dataset) is None or progress is silent:
        yield
        return
    tell, ended, begun = dataset.store.files.watched(progress), Signal(), time.monotonic()

    def speak() -> None:
        while not ended.wait(_SPEAK):
            passed = min(int(time.monotonic() - begun), int(seconds))
            tell(Event(dataset.id, "measure", "", passed, int(seconds) + 1, "seconds"))

    speaker = Thread(target=speak, daemon=True, name="rlds-bench")
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()
        tell(Event(dataset.id, "measure", "", int(seconds) + 1, int(seconds) + 1, "seconds"))


def _load(
    workers: Sequence[Connection], jobs: Sequence[BenchJob]
) -> tuple[list[WorkerResult], list[Memory], list[Memory]]:
    """Run the stages, each in all processes at once."""
    for w in workers:
        _answer(w)
    before: list[Memory] = _all(workers, [MEMORY] * len(workers))
    _all(workers, jobs)
    ran: list[WorkerResult] = _all(workers, [RUN] * len(workers))
    return ran, before, _all(workers, [MEMORY] * len(workers))


@contextmanager
def _worker(limit: int) -> Iterator[Connection]:
    """Start a process and give the connection to it."""
    here, there = Pipe()
    command = [
        sys.executable,
        "-P",
        "-m",
        "rlds_cli.loader.bench.worker",
        str(there.fileno()),
    ]  # nothing of this directory
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(command, pass_fds=(there.fileno(), limit), env=environment) as process:
        there.close()
        try:
            yield here
            here.send(END)
        except BaseException:
            process.kill()
            raise
        finally:
            here.close()


def _all(workers: Sequence[Connection], messages: Sequence[Any]) -> list[Any]:
    for w, message in zip(workers, messages, strict=True):
        w.send(message)
    return [_answer(w) for w in workers]


def _answer(worker: Connection) -> Any:
    try:
        answer = worker.recv()
    except EOFError:
        raise RldsError("A measuring process ended early; its output is above.") from None
    if isinstance(answer, RldsError):
        raise answer
    return answer


@contextmanager
def _ones(size: int) -> Iterator[BinaryIO]:
    """Create an unnamed file of ones, which all processes map."""
    with tempfile.TemporaryFile() as file:
        block = b"\1" * (1 << 20)
        for _ in range(max(1, size // len(block))):
            file.write(block)
        file.flush()
        yield file


def _content_bytes(dataset: Dataset) -> int:
    return dataset.num_rows * sum(f.row_bytes for f in dataset.schema.values())


def _summary(job: BenchJob, ran: Sequence[WorkerResult], added: Sequence[Memory]) -> Measurement:
    size = max(r.batch_bytes for r in ran)
    rate, limit = sum(_rate(r.rounds) for r in ran), sum(_rate(r.limit) for r in ran)
    anonymous = [m.anonymous for m in added if m.anonymous is not None]
    mapped = [m.mapped for m in added if m.mapped is not None]
    proportional = [m.proportional for m in added if m.proportional is not None]
    return Measurement(
        id=job.dataset.id,
        version=job.dataset.version,
        window=repr(job.window),
        sampler=repr(job.sampler),
        batch_size=job.batch_size,
        processes=len(ran),
        cold=job.cold,
        seconds=job.seconds,
        batches_per_second=rate,
        best_batches_per_second=sum(max(n / s for n, s in r.rounds) for r in ran),
        samples_per_second=rate * job.batch_size,
        bytes_per_second=rate * size,
        batch_bytes=size,
        limit_bytes_per_second=limit * size,
        share_of_limit=rate / limit,
        anonymous=max(anonymous, default=None),
        mapped=max(mapped, default=None),
        proportional=sum(proportional) if proportional else None,
        major_faults=sum(r.major_faults for r in ran),
        minor_faults=sum(r.minor_faults for r in ran),
        first_batch=max(r.first_batch for r in ran),
        waiting=sum(r.stats.waited for r in ran) / max(1e-9, sum(r.first_batch + _seconds(r) for r in ran)),
        requests=sum(r.stats.requests for r in ran),
        fetched=sum(r.stats.fetched for r in ran),
        used=sum(r.stats.used for r in ran),
    )


def _seconds(r: WorkerResult) -> float:
    return sum(taken for _, taken in r.rounds)


def _rate(rounds: Sequence[Round]) -> float:
    return median(n / s for n, s in rounds)
