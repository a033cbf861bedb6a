"""A function over the transitions of a dataset, its results in a memory-mapped TensorDict: TorchRL's ``preprocess``."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data.utils import CloudpickleWrapper

from rlds_cli.errors import InvalidArgument, PreprocessError
from rlds_cli.interop.torchrl.trajectories import Trajectories
from rlds_cli.interop.torchrl.transitions import Transitions
from rlds_cli.store.workers import check_started

CHUNK_ROWS, CHUNK_BYTES = 65_536, 64 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """The transitions 0 to ``count`` of ``source``, the function, and the seed of what it draws."""

    source: Transitions | Trajectories
    function: Callable[[TensorDict], TensorDict]
    count: int
    seed: int

    def call(self, chunk: tuple[int, int | None]) -> TensorDict:
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
            raise PreprocessError(f"the function made {what} of a TensorDict with batch size {list(size)}.")
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
    start_method: str | None = None
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
    InvalidArgument
        ``dest`` already exists, or the arguments are not possible.
    PreprocessError
        Results differ in their keys or their batch size.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise InvalidArgument(f"{dest} already exists. Nothing was changed.", hint="dest= of a new directory")
    if not 0 < job.count <= len(job.source):
        raise InvalidArgument(f"num_frames={job.count}: there are {len(job.source):,}.")
    example = job.call((0, None))
    text = [k for k, x in example.items(True, True) if not isinstance(x, torch.Tensor)]
    if text:
        raise PreprocessError(f"{text[0]!r} of the result is not a tensor.", hint=f"td.exclude({text[0]!r})")
    chunks = _chunks(job, chunksize, num_chunks, workers.number)
    dest.parent.mkdir(parents=True, exist_ok=True)
    staged = dest.with_name(f".{dest.name}.{uuid.uuid4().hex}")
    try:
        example.expand((job.count, *example.shape)).memmap_like(staged)
        with _runner(job, staged, workers) as run:
            done = run(chunks)
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


def _chunks(job: Job, chunksize: int | None, num_chunks: int | None, workers: int) -> list[tuple[int, int | None]]:
    if chunksize is not None and num_chunks is not None:
        raise InvalidArgument("chunksize= and num_chunks=: one of them.")
    if chunksize == 0:
        return [(i, None) for i in range(job.count)]
    if num_chunks is not None:
        chunksize = ceil(job.count / max(1, num_chunks))
    if chunksize is None:
        one = job.source.tensordict(np.zeros(1, np.int64))
        row = sum(x.numel() * x.element_size() for x in one.values(True, True) if isinstance(x, torch.Tensor))
        chunksize = max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, row), ceil(job.count / max(1, workers))))
    return [(i, min(i + chunksize, job.count)) for i in range(0, job.count, chunksize)]


Chunks = Iterable[tuple[int, int | None]]


@contextmanager
def _runner(job: Job, staged: Path, workers: MappingWorkers) -> Iterator[Callable[[Chunks], Iterable[None]]]:
    """Give a function that runs chunks, in this process or in others."""
    sent = job.source, CloudpickleWrapper(job.function), job.count, job.seed, staged
    if workers.pool is not None:
        yield lambda chunks: workers.pool.imap_unordered(_called, ((sent, chunk) for chunk in chunks))
    elif workers.number < 2:
        out = TensorDict.load_memmap(staged)
        yield lambda chunks: map(partial(_fill, job, out), chunks)
    else:
        check_started()
        context = torch.multiprocessing.get_context(workers.start_method)
        with context.Pool(workers.number, _begin, (sent, workers.threads), workers.tasks_each) as pool:
            yield lambda chunks: pool.imap_unordered(_next, chunks)


_mine: list[tuple[Job, TensorDict]] = []  # of a worker process


def _begin(sent: tuple[Any, ...], threads: int) -> None:
    source, function, count, seed, staged = sent
    torch.set_num_threads(threads)
    _mine[:] = [(Job(source, function, count, seed), TensorDict.load_memmap(staged))]


def _next(chunk: tuple[int, int | None]) -> None:
    _fill(*_mine[0], chunk)


def _called(given: tuple[tuple[Any, ...], tuple[int, int | None]]) -> None:
    (source, function, count, seed, staged), chunk = given
    _fill(Job(source, function, count, seed), TensorDict.load_memmap(staged), chunk)


def _fill(job: Job, out: TensorDict, chunk: tuple[int, int | None]) -> None:
    made, (start, stop) = job.call(chunk), chunk
    if set(made.keys(True, True)) != set(out.keys(True, True)):
        differ = sorted(map(str, set(made.keys(True, True)) ^ set(out.keys(True, True))))
        raise PreprocessError(f"transition {start:,} and those after it: results differ in {', '.join(differ)}.")
    out[start if stop is None else slice(start, stop)].update_(made)
