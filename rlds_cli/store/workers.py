"""Processes that work through numbered items, one item each at a time, and what happens when one of them dies.

How this process gets its memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from rlds_cli.errors import RldsError

R = TypeVar("R")
_ATTEMPTS = 2
_SAFE = "PYTHONSAFEPATH"


class WorkerDied(Exception):
    """The process that worked at item ``number`` ended without an answer every time; ``how`` says it in words.

    ``times`` says how often it was tried.
    """

    def __init__(self, number: int, how: str, times: str = "twice") -> None:
        super().__init__(number, how, times)
        self.number = number
        self.how = how
        self.times = times


class Executor(Protocol):
    """Whoever works through items when this process does not."""

    @property
    def in_place(self) -> bool:
        """Whether its processes may write to one file, each its own rows; over a network they had better not."""

    def work_through(
        self, call: Callable[..., R], items: Mapping[int, tuple[Any, ...]], died: Callable[[int, str], None]
    ) -> Iterator[tuple[int, R]]:
        """Yield ``(number, call(*arguments))`` of every item as it is done; see `work_through`."""


@dataclass(frozen=True, slots=True)
class Processes:
    """So many processes of this machine."""

    count: int
    in_place: bool = True

    def work_through(
        self, call: Callable[..., R], items: Mapping[int, tuple[Any, ...]], died: Callable[[int, str], None]
    ) -> Iterator[tuple[int, R]]:
        """See `Executor`."""
        return work_through(call, items, self.count, died)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a moment, where signals may be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _without_this_directory() -> Iterator[None]:
    """Start processes that import nothing of the current directory before they have the parent's search path."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE, None)
        else:
            os.environ[_SAFE] = before


def _begin() -> None:
    """What a process does before its first item. Ctrl-C is for the parent, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Leave when the parent was killed: each worker holds the pipes of the others open, and would wait for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Worker(Generic[R]):
    """One process. A pool of several cannot tell which of its tasks ended one of them."""

    def __init__(self) -> None:
        with _without_this_directory():  # its queues start a process that tracks them
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)
        self._process: BaseProcess | None = None

    def submit(self, call: Callable[..., R], arguments: tuple[Any, ...]) -> Future[R]:
        if self._process is not None:
            return self._pool.submit(call, *arguments)
        known = {p.pid for p in active_children()}
        with _without_interrupts(), _without_this_directory():  # which the new process takes over
            future = self._pool.submit(call, *arguments)
        self._process = next((p for p in active_children() if p.pid not in known), None)
        return future

    def how_it_died(self) -> str:
        """In words, from its exit code, which is known once the pool has stopped."""
        code = None if self._process is None else self._process.exitcode
        if code is None:
            return "died"
        if code == -signal.SIGKILL:
            return "was killed (signal 9: by somebody, or by the system when memory ran out)"
        return f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"

    def stop(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """End it in the middle of its item."""
        if self._process is not None:
            self._process.terminate()


def work_through(
    call: Callable[..., R],
    items: Mapping[int, tuple[Any, ...]],
    workers: int,
    died: Callable[[int, str], None],
) -> Iterator[tuple[int, R]]:
    """Yield ``(number, call(*arguments))`` of every item as it is done, worked at by ``workers`` processes.

    Parameters
    ----------
    call : callable
        Picklable, as its arguments and results are.
    items : mapping
        Arguments by number, begun in this order.
    died : callable
        Told the number of an item whose process died, and how; the item is tried again, once.

    Raises
    ------
    WorkerDied
        The process of the second attempt died as well.
    Exception
        Whatever ``call`` raised first; after the items that other processes are at, which are yielded.
    """
    waiting = deque(items)
    attempts = dict.fromkeys(items, 0)
    idle: list[_Worker[R]] = [_Worker() for _ in range(min(workers, len(items)))]
    busy: dict[Future[R], tuple[int, _Worker[R]]] = {}
    failed: Exception | None = None
    try:
        while waiting or busy:
            while waiting and idle:
                number, worker = waiting.popleft(), idle.pop()
                busy[worker.submit(call, items[number])] = (number, worker)
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                number, worker = busy.pop(future)
                idle.append(worker)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    idle.remove(worker)
                    worker.stop()
                    how = worker.how_it_died()
                    attempts[number] += 1
                    if attempts[number] == _ATTEMPTS or failed:
                        failed, waiting = failed or WorkerDied(number, how), deque[int]()
                        continue
                    died(number, how)
                    idle.append(_Worker())
                    waiting.appendleft(number)
                except Exception as e:
                    failed, waiting = failed or (e.recall() if isinstance(e, RldsError) else e), deque[int]()
                else:
                    yield number, result
        if failed is not None:
            raise failed
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for what the others are at
        for worker in (w for _, w in busy.values()):
            worker.kill()
        raise
    finally:
        for worker in (*idle, *(w for _, w in busy.values())):
            worker.stop()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT = 64 << 20
_FROM_HEAP = 32 << 20  # the most that glibc allows


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of what is freed for what is allocated next, in a process whose arrays come and go.

    By default glibc hands arrays of some 100 kB back to the system as soon as they are freed, and the system zeroes
    the pages of the next ones: twice the time of a NumPy expression on blocks of 16,384 rows.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP)
        mallopt(_TRIM_THRESHOLD, _KEPT)
