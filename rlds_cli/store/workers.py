"""Worker processes: each works on one numbered item at a time, and an item whose process dies is tried again."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import current_process, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rlds_cli.errors import RldsError

R = TypeVar("R")
_ATTEMPTS = 2
_SAFE = "PYTHONSAFEPATH"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT = 64 << 20
_FROM_HEAP = 32 << 20  # the most that glibc allows


GUARD = 'put what it does into `def main():`, and end it with `if __name__ == "__main__":` and, below that, `main()`'


def program() -> str:
    """Return the name of the script that runs, for messages."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).name if file else "the program"


def check_started() -> None:
    """Refuse work in a worker process that has not begun: it runs the program again, which wants the same work done.

    Raises
    ------
    RldsError
    """
    if getattr(current_process(), "_inheriting", False):  # by which multiprocessing refuses to start processes then
        raise RldsError("A worker process that starts runs the program again, which wants this work again.", hint=GUARD)


class WorkerDied(Exception):
    """The process that worked on item ``number`` died at every attempt.

    ``how`` says in words how it died, and ``times`` how often.
    """

    def __init__(self, number: int, how: str, times: str = "twice") -> None:
        super().__init__(number, how, times)
        self.number = number
        self.how = how
        self.times = times


class Executor(Protocol):
    """Runs a function on many items, outside this process."""

    @property
    def in_place(self) -> bool:
        """True if its processes may write different rows of one file, which is not safe on network file systems."""

    def work_through(
        self, call: Callable[..., R], items: Mapping[int, tuple[Any, ...]], died: Callable[[int, str], None]
    ) -> Iterator[tuple[int, R]]:
        """Yield ``(number, call(*arguments))`` of each item as it is finished; see `work_through`."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Runs items in ``count`` processes on this machine."""

    count: int
    in_place: bool = True

    def work_through(
        self, call: Callable[..., R], items: Mapping[int, tuple[Any, ...]], died: Callable[[int, str], None]
    ) -> Iterator[tuple[int, R]]:
        """See `Executor`."""
        return work_through(call, items, self.count, died)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a moment; only the main thread may set signals."""
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
    """Keep new processes from importing from the current directory before they have the parent's search path."""
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
    """Prepare a worker process for its first item. It ignores Ctrl-C: the parent ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit if the parent is killed. Workers hold each other's pipes open, and would wait for ever otherwise."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Spawn(SpawnContext):
    """Starts the process of a pool, and keeps it: a pool forgets a process that dies."""

    process: SpawnProcess | None = None

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]
        self.process = SpawnProcess(*args, **kwargs)
        return self.process


class _Worker(Generic[R]):
    """One process in a pool of its own: a pool of several cannot say which task ended a process."""

    def __init__(self) -> None:
        self._context = _Spawn()
        with _without_this_directory():  # its queues start a process that tracks them
            self._pool = ProcessPoolExecutor(1, mp_context=self._context, initializer=_begin)
        self._began: Future[Any] | None = None

    def submit(self, call: Callable[..., R], arguments: tuple[Any, ...]) -> Future[R]:
        if self._began is not None:
            return self._pool.submit(call, *arguments)
        with _without_interrupts(), _without_this_directory():  # the new process inherits both
            self._began = self._pool.submit(_nothing)
            try:
                return self._pool.submit(call, *arguments)
            except BrokenProcessPool:  # it has died already
                return self._began

    def check_began(self) -> None:
        """Raise RldsError if the process, which has ended, left by itself before its first item."""
        code = self._exit_code()
        if code and code > 0 and self._began is not None and self._began.exception() is not None:
            raise RldsError(
                f"A worker process left with exit code {code} while it ran {program()} again, before any work.",
                hint=GUARD,
            )

    def how_it_died(self) -> str:
        """Describe the exit code, which is known once the pool has stopped."""
        code = self._exit_code()
        if code is None:
            return "died"
        if code == -signal.SIGKILL:
            return "was killed (signal 9; the system does this when memory runs out)"
        return f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"

    def stop(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """End the process in the middle of its item."""
        if self._context.process is not None:
            self._context.process.terminate()

    def _exit_code(self) -> int | None:
        return None if self._context.process is None else self._context.process.exitcode


def work_through(
    call: Callable[..., R],
    items: Mapping[int, tuple[Any, ...]],
    workers: int,
    died: Callable[[int, str], None],
) -> Iterator[tuple[int, R]]:
    """Yield ``(number, call(*arguments))`` of each item as one of ``workers`` processes finishes it.

    Parameters
    ----------
    call : callable
        Picklable, with picklable arguments and results.
    items : mapping
        Arguments by number; the items are started in this order.
    died : callable
        Called with the number of an item whose process died and how it died; the item is tried once more.

    Raises
    ------
    WorkerDied
        The process of the second attempt died as well.
    RldsError
        This process is itself a worker that starts; or a process left before it had begun, as it does where the
        program has no guard.
    Exception
        The first error that ``call`` raised, once the items in work have been finished and yielded.
    """
    check_started()
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
                    worker.check_began()
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
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for the items in work
        for worker in (w for _, w in busy.values()):
            worker.kill()
        raise
    finally:
        for worker in (*idle, *(w for _, w in busy.values())):
            worker.stop()


def _nothing() -> None:
    """Show that the process has begun."""


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory for the next arrays of this process.

    By default glibc hands arrays of some 100 kB back to the system as soon as they are freed, and the system zeroes
    the pages of the next ones: twice the time of a NumPy expression on blocks of 16,384 rows.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP)
        mallopt(_TRIM_THRESHOLD, _KEPT)
