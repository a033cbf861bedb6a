"""A function over the transitions of a dataset, its results in a memory-mapped TensorDict: TorchRL's ``preprocess``."""

from __future__ import annotations

import pickle
import random
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import ceil
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data.utils import CloudpickleWrapper

from rlds_cli.archives.torchrl.dropin.errors import BadArgument, BadResult, Unfinished
from rlds_cli.archives.torchrl.dropin.trajectories import Trajectories
from rlds_cli.archives.torchrl.dropin.transitions import Transitions
from rlds_cli.base.progress import silent
from rlds_cli.base.workers import Died, Processes, run_items

CHUNK_ROWS, CHUNK_BYTES = 65_536, 64 << 20
Chunk = tuple[int, int | None]
Chunks = Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class Job:
    """The transitions 0 to ``count`` of ``source``, the function, and the seed of what it draws."""

    source: Transitions | Trajectories
    function: Callable[[TensorDict], TensorDict]
    count: int
    seed: int

    def call(self, chunk: Chunk) -> TensorDict:
        """Return the results of transitions ``start`` to ``stop``; without ``stop``, of one without an axis."""
        start, stop = chunk
        with _drawing_from(self.seed + start):
            return self._call(start, stop)

    def _call(self, start: int, stop: int | None) -> TensorDict:
        rows = self.source.tensordict(np.arange(start, start + 1 if stop is None else stop))
        given = rows[0] if stop is None else rows
        size = given.batch_size
        made = self.function(given)
        if not isinstance(made, TensorDict) or made.batch_size[: len(size)] != size:
            what = f"batch size {list(made.batch_size)}" if isinstance(made, TensorDict) else type(made).__name__
            raise BadResult(f"the function made {what} of a TensorDict with batch size {list(size)}.")
        return made


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Seed torch, NumPy and ``random``; afterwards this process continues to draw what it would have drawn."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed_from(generator: torch.Generator | None) -> int:
    """Draw a seed, from torch's own generator where there is none."""
    device = None if generator is None else generator.device
    return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator))


@dataclass(frozen=True, slots=True)
class MappingWorkers:
    """The processes to use; below two of them, and without a pool, this one."""

    number: int = 0
    pool: Any = None
    tasks_each: int | None = None
    threads: int = 1


def write(
    job: Job,
    dest: Path,
    workers: MappingWorkers,
    *,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    pbar: bool = False,
) -> TensorDict:
    """Write the results of a job to ``dest``, which appears when all of them are finished.

    Raises
    ------
    BadArgument
        ``dest`` already exists, or the arguments are not possible.
    BadResult
        Results differ in their keys or their batch size.
    Unfinished
        Two processes that worked on the same transitions died.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise BadArgument(f"{dest} already exists. Nothing was changed.", hint="dest= of a new directory")
    if not 0 < job.count <= len(job.source):
        raise BadArgument(f"num_frames={job.count}: there are {len(job.source):,}.")
    example = job.call((0, None))
    text = [k for k, x in example.items(True, True) if not isinstance(x, torch.Tensor)]
    if text:
        raise BadResult(f"{text[0]!r} of the result is not a tensor.", hint=f"td.exclude({text[0]!r})")
    chunks = _chunks(job, chunksize, num_chunks, workers.number)
    dest.parent.mkdir(parents=True, exist_ok=True)
    staged = dest.with_name(f".{dest.name}.{uuid.uuid4().hex}")
    try:
        example.expand((job.count, *example.shape)).memmap_like(staged)
        done: Iterable[None] = _run(job, staged, workers, chunks)
        if pbar:
            from tqdm import tqdm

            done = tqdm(done, total=len(chunks))
        for _ in done:
            pass
        if dest.is_dir():
            dest.rmdir()
        staged.rename(dest)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return TensorDict.load_memmap(dest)


def _chunks(job: Job, chunksize: int | None, num_chunks: int | None, workers: int) -> list[Chunk]:
    if chunksize is not None and num_chunks is not None:
        raise BadArgument("chunksize= and num_chunks=: one of them.")
    if chunksize == 0:
        return [(i, None) for i in range(job.count)]
    if num_chunks is not None:
        chunksize = ceil(job.count / max(1, num_chunks))
    if chunksize is None:
        one = job.source.tensordict(np.zeros(1, np.int64))
        row = sum(x.numel() * x.element_size() for x in one.values(True, True) if isinstance(x, torch.Tensor))
        chunksize = max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, row), ceil(job.count / max(1, workers))))
    return [(i, min(i + chunksize, job.count)) for i in range(0, job.count, chunksize)]


def _run(job: Job, staged: Path, workers: MappingWorkers, chunks: Chunks) -> Iterator[None]:
    """Run the chunks in this process or in others; None for each that is finished."""
    fill = Filling(job, staged)
    if isinstance(workers.pool, ThreadPool):
        yield from workers.pool.imap_unordered(fill, chunks)
    elif workers.pool is None and workers.number < 2:
        yield from map(fill, chunks)
    else:
        sent = pickle.dumps(fill if workers.pool else Filling(job, staged, workers.threads))
        pickle.loads(sent)  # what no process could open is an error before any of them starts
        if workers.pool:  # unpickles in the call: an error before it ends a process, and the pool waits for ever
            yield from workers.pool.imap_unordered(partial(_called, sent), chunks)
        else:
            yield from _in_processes(sent, job, workers, chunks)


def _in_processes(sent: bytes, job: Job, workers: MappingWorkers, chunks: Chunks) -> Iterator[None]:
    executor = Processes(min(workers.number, len(chunks)), items_each=workers.tasks_each)
    items = {number: (chunk,) for number, chunk in enumerate(chunks)}
    id = job.source.dataset.id
    try:
        for _ in run_items(_called, sent, items, executor, id=id, name=partial(_named, chunks), progress=silent):
            yield None
    except Died as e:
        raise Unfinished(
            f"{id}: {e.what}. Nothing was written.", hint="fewer workers (num_workers=) need less memory"
        ) from e


def _named(chunks: Chunks, number: int) -> str:
    start, stop = chunks[number]
    return f"transition {start:,}" if stop is None else f"transitions {start:,} to {stop - 1:,}"


class Filling:
    """A job and the directory of its results; ``threads`` are those of torch in each process that gets it."""

    def __init__(self, job: Job, staged: Path, threads: int | None = None) -> None:
        self.job, self._staged, self._threads = job, staged, threads

    @cached_property
    def _out(self) -> TensorDict:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        return TensorDict.load_memmap(self._staged)

    def __call__(self, chunk: Chunk) -> None:
        """Write the results of a chunk."""
        (start, stop), out = chunk, self._out
        made = self.job.call(chunk)
        if set(made.keys(True, True)) != set(out.keys(True, True)):
            differ = sorted(map(str, set(made.keys(True, True)) ^ set(out.keys(True, True))))
            raise BadResult(f"transition {start:,} and those after it: results differ in {', '.join(differ)}.")
        out[start if stop is None else slice(start, stop)].update_(made)

    def __reduce__(self) -> tuple[object, ...]:
        job = replace(self.job, function=CloudpickleWrapper(self.job.function))
        return Filling, (job, self._staged, self._threads)


def _called(sent: bytes, chunk: Chunk) -> None:
    _opened(sent)(chunk)


@lru_cache(maxsize=1)
def _opened(sent: bytes) -> Filling:
    made: Filling = pickle.loads(sent)
    return made
