"""Measuring how fast a dataset loads: in processes of its own, against a plain copy of the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, BinaryIO

from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import BatchSize, InvalidArgument, RldsError
from rlds_cli.loader import Sampler, Window
from rlds_cli.loader.wholes import whole
from rlds_cli.measuring import notation
from rlds_cli.measuring.memory import Memory
from rlds_cli.measuring.stages import END, MEMORY, RUN, Job, Ran, Round
from rlds_cli.settings import StrPath

_LIMIT_BYTES = 256 << 20  # of the array that the limit reads: as large as the dataset, up to this
_MOST_PROCESSES = 256


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured. Rates are of all processes together, medians over rounds; sizes are in bytes.

    Parameters
    ----------
    id, window, sampler : str
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
        RssAnon that dataset, loader and batches add to the imports; of the process where that is most.
    mapped : int or None
        RssFile that they add, likewise: pages of files, which processes share.
    proportional : int or None
        Pss of what is not of a library, likewise, summed over all processes while all are there: a page that four
        processes share counts once.
    major_faults, minor_faults : int
        Page faults of all processes while loading; the major ones waited for the disk.
    """

    id: str
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


def measure(
    ref: StrPath | Dataset,
    *,
    window: Window | str = "Transition()",
    sampler: Sampler | str = "Uniform()",
    batch_size: int = 256,
    cold: bool = False,
    processes: int = 1,
    seconds: float = 3.0,
    cache_dir: StrPath | None = None,
) -> Measurement:
    """Load batches of a dataset for a while, and say how fast that was.

    Each process loads in an order of its own; with `Prioritized` every batch updates its priorities.

    Parameters
    ----------
    ref : str, path or Dataset
        A dataset that is here.
    window, sampler : window and sampler, or str
        As for `Loader`; as text, ``"Slice(32)"``, ``"Shuffled"``.
    batch_size : int
    cold : bool
        Drop the files of the dataset from the page cache before every round: what data larger than memory is like.
        One process alone.
    processes : int
        That load at the same time.
    seconds : float
        How long each of them loads.

    Raises
    ------
    DatasetNotFound
        It is not here.
    InvalidArgument
        A value that cannot be.
    EmptyWindow, BatchSize
        As `Loader` raises them.
    """
    dataset = ref if isinstance(ref, Dataset) else open_dataset(ref, cache_dir=cache_dir)
    chosen = notation.window(window) if isinstance(window, str) else window
    drawn = notation.sampler(sampler) if isinstance(sampler, str) else sampler
    count = whole("processes", processes, 1)
    if count > _MOST_PROCESSES:
        raise InvalidArgument(f"processes={count}: at most {_MOST_PROCESSES}.")
    if cold and count > 1:
        raise InvalidArgument("cold files are measured in one process: others would keep them in memory.")
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"seconds={seconds!r} must be a positive number.")
    size = whole("batch_size", batch_size, 1, BatchSize)
    with _ones(min(_LIMIT_BYTES, _content_bytes(dataset))) as ones, ExitStack() as stack:
        jobs = [Job(dataset, chosen, drawn, size, k, seconds, cold, ones.fileno()) for k in range(count)]
        ran, before, after = _load([stack.enter_context(_worker(ones.fileno())) for _ in jobs], jobs)
    return _summary(jobs[0], ran, [a.beyond(b) for b, a in zip(before, after, strict=True)])


def _load(workers: Sequence[Connection], jobs: Sequence[Job]) -> tuple[list[Ran], list[Memory], list[Memory]]:
    """Go through the stages, all processes together."""
    for w in workers:
        _answer(w)
    before: list[Memory] = _all(workers, [MEMORY] * len(workers))
    _all(workers, jobs)
    ran: list[Ran] = _all(workers, [RUN] * len(workers))
    return ran, before, _all(workers, [MEMORY] * len(workers))


@contextmanager
def _worker(limit: int) -> Iterator[Connection]:
    """A process, and the connection to it."""
    here, there = Pipe()
    command = [
        sys.executable,
        "-P",
        "-m",
        "rlds_cli.measuring.worker",
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
        raise RldsError("A measuring process ended early; what it said stands above.") from None
    if isinstance(answer, RldsError):
        raise answer
    return answer


@contextmanager
def _ones(size: int) -> Iterator[BinaryIO]:
    """A file without a name, which all processes map."""
    with tempfile.TemporaryFile() as file:
        block = b"\1" * (1 << 20)
        for _ in range(max(1, size // len(block))):
            file.write(block)
        file.flush()
        yield file


def _content_bytes(dataset: Dataset) -> int:
    return dataset.num_rows * sum(f.row_bytes for f in dataset.schema.values())


def _summary(job: Job, ran: Sequence[Ran], added: Sequence[Memory]) -> Measurement:
    size = max(r.batch_bytes for r in ran)
    rate, limit = sum(_rate(r.rounds) for r in ran), sum(_rate(r.limit) for r in ran)
    anonymous = [m.anonymous for m in added if m.anonymous is not None]
    mapped = [m.mapped for m in added if m.mapped is not None]
    proportional = [m.proportional for m in added if m.proportional is not None]
    return Measurement(
        id=job.dataset.id,
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
    )


def _rate(rounds: Sequence[Round]) -> float:
    return median(n / s for n, s in rounds)
