"""Run numbered items: in this process, in worker processes, or on other machines.

Each worker has one item at a time; an item whose process dies is tried once more. `Processes` starts workers on this
machine; another `Executor` sends the items elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import current_process, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlds_cli.base.progress import Event, Progress
from rlds_cli.errors import RldsError

R = TypeVar("R")
_shared: Any = None  # in a worker process: the argument that all its items have in common
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


class Lost(Exception):
    """An item has no result, since its process or its machine failed.

    ``how`` describes the failure; ``attempts`` is the number of times that an item may fail in this way.
    """

    def __init__(self, how: str, attempts: int = 2) -> None:
        super().__init__(how)
        self.how, self.attempts = how, attempts


class Died(RldsError):
    """The processes that worked on an item died; ``what`` says which item, how and how often."""

    what: str = ""

    def of(self, what: str) -> Died:
        """Return the error itself, with what died."""
        self.what = what
        return self


class Workers(Protocol):
    """The running workers of an `Executor`."""

    def capacity(self) -> int:
        """Return the number of items to submit at a time."""

    def submit(self, arguments: tuple[Any, ...]) -> Any:
        """Start an item, and return a hashable handle of it."""

    def wait(self, handles: Collection[Any]) -> Any:
        """Wait until an item has ended, and return its handle."""

    def result(self, handle: Any) -> Any:
        """Return the result of an item that has ended; raises its error, or Lost."""


class Executor(Protocol):
    """Runs a function on many items, outside this process."""

    @property
    def in_place(self) -> bool:
        """True if its processes may write different rows of one file, which is not safe on network file systems."""

    def start(self, call: Callable[..., Any], shared: Any) -> AbstractContextManager[Workers]:
        """Start workers that run ``call(shared, *arguments)``; they end with the context."""


def run_items(
    call: Callable[..., R],
    shared: Any,
    items: Mapping[int, tuple[Any, ...]],
    executor: Executor | None,
    *,
    id: str,
    name: Callable[[int], str],
    progress: Progress,
) -> Iterator[tuple[int, R]]:
    """Yield ``(number, call(shared, *arguments))`` of each item as it is finished.

    Parameters
    ----------
    call : callable
        Picklable if there is an executor, with picklable arguments and results.
    shared : object
        The first argument of all calls, which a worker receives once.
    items : mapping
        The other arguments by number; items are started in this order.
    executor : Executor, optional
        Runs the items; by default this process does.
    id : str
        Id of the dataset, for messages and events.
    name : callable
        Returns the name of an item in messages.
    progress : Progress
        Receives a note for each item that is tried again.

    Raises
    ------
    Died
        An item was lost too often.
    RldsError
        This process is itself a worker that starts; or a process left before it had
        begun, as it does where the program has no guard.
    Exception
        The first error that ``call`` raised, once the running items have been finished and yielded.
    """
    if executor is None:
        for number, arguments in items.items():
            yield number, call(shared, *arguments)
        return
    if not items:
        return
    waiting, losses = deque(items), {number: list[int]() for number in items}
    busy: dict[Any, int] = {}
    failed: Exception | None = None
    with executor.start(call, shared) as workers:
        while waiting or busy:
            while waiting and len(busy) < workers.capacity():
                number = waiting.popleft()
                busy[workers.submit(items[number])] = number
            handle = workers.wait(busy)
            number = busy.pop(handle)
            try:
                result = workers.result(handle)
            except Lost as e:
                losses[number].append(e.attempts)
                what = f"the process that worked on {name(number)} {e.how}"
                if failed is None and losses[number].count(e.attempts) < e.attempts:
                    progress(Event(id, "note", note=f"{what}; trying again"))
                    waiting.appendleft(number)
                    continue
                failed, waiting = failed or _given_up(id, what, len(losses[number])), deque()
            except Exception as e:
                failed, waiting = failed or e, deque()
            else:
                yield number, result
    if failed is not None:
        raise failed


def _given_up(id: str, what: str, times: int) -> Died:
    what = f"{what}, {'twice' if times == 2 else f'{times} times'}"
    return Died(
        f"{id}: {what}. Finished work is kept.",
        hint="run the same command again: it resumes there; fewer workers (-j) need less memory",
    ).of(what)


# -- processes of this machine


@dataclass(frozen=True, slots=True)
class Processes:
    """Runs items in ``count`` processes on this machine; each ends after ``items_each`` items, if that is given."""

    count: int
    in_place: bool = True
    items_each: int | None = None

    @contextmanager
    def start(self, call: Callable[..., Any], shared: Any) -> Iterator[Workers]:
        """See `Executor`."""
        check_started()
        pool = _Pool(self, call, pickle.dumps(shared))
        try:
            yield pool
        except (KeyboardInterrupt, GeneratorExit):  # nobody waits for the running items
            pool.kill()
            raise
        finally:
            pool.stop()


class _Pool:
    """The processes of an executor, as `Workers`."""

    def __init__(self, executor: Processes, call: Callable[..., Any], shared: bytes) -> None:
        self._count, self._items_each, self._call, self._shared = executor.count, executor.items_each, call, shared
        self._idle: list[_Worker] = []
        self._busy: dict[Future[Any], _Worker] = {}

    def capacity(self) -> int:
        return self._count

    def submit(self, arguments: tuple[Any, ...]) -> Future[Any]:
        worker = self._idle.pop() if self._idle else _Worker(self._call, self._shared)
        future = worker.submit(arguments)
        self._busy[future] = worker
        return future

    def wait(self, handles: Collection[Future[Any]]) -> Future[Any]:
        return next(iter(wait(handles, return_when=FIRST_COMPLETED).done))

    def result(self, handle: Future[Any]) -> Any:
        worker, error = self._busy.pop(handle), handle.exception()
        if isinstance(error, BrokenProcessPool):
            worker.stop()
            worker.check_began()
            raise Lost(worker.how_it_died())
        if worker.items == self._items_each:
            worker.stop()
        else:
            self._idle.append(worker)
        if isinstance(error, RldsError):
            error.recall()
        return handle.result()

    def kill(self) -> None:
        for worker in self._busy.values():
            worker.kill()

    def stop(self) -> None:
        for worker in (*self._idle, *self._busy.values()):
            worker.stop()


@dataclass(frozen=True, slots=True)
class Threads:
    """Runs items in ``count`` threads of this process, each with a copy of what its items have in common."""

    count: int
    in_place: bool = True

    @contextmanager
    def start(self, call: Callable[..., Any], shared: Any) -> Iterator[Workers]:
        """See `Executor`."""
        pickled, own = pickle.dumps(shared), threading.local()

        def run(*arguments: Any) -> Any:
            if not hasattr(own, "shared"):
                own.shared = pickle.loads(pickled)
            return call(own.shared, *arguments)

        with ThreadPoolExecutor(self.count) as pool:
            yield _Threads(pool, self.count, run)


@dataclass(frozen=True, slots=True)
class _Threads:
    """The threads of an executor, as `Workers`."""

    pool: ThreadPoolExecutor
    count: int
    run: Callable[..., Any]

    def capacity(self) -> int:
        return self.count

    def submit(self, arguments: tuple[Any, ...]) -> Future[Any]:
        return self.pool.submit(self.run, *arguments)

    def wait(self, handles: Collection[Future[Any]]) -> Future[Any]:
        return next(iter(wait(handles, return_when=FIRST_COMPLETED).done))

    def result(self, handle: Future[Any]) -> Any:
        return handle.result()


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
    end_with_parent()


@cache
def end_with_parent() -> None:
    """Have this process exit if its parent is killed.

    Workers hold each other's pipes open: without this, one that writes to a full pipe would wait for ever.
    """
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess | None) -> None:
    assert parent is not None
    parent.join()
    os._exit(1)


class _Spawn(SpawnContext):
    """Starts the process of a pool, and keeps it: a pool forgets a process that dies."""

    process: SpawnProcess | None = None

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]
        self.process = SpawnProcess(*args, **kwargs)
        return self.process


class _Worker:
    """One process in a pool of its own: a pool of several cannot tell which task ended a process."""

    def __init__(self, call: Callable[..., Any], shared: bytes) -> None:
        self._call, self.items = call, 0
        self._shared: bytes | None = shared  # until the process has it
        self._context = _Spawn()
        with _without_this_directory():  # its queues start a process that tracks them
            self._pool = ProcessPoolExecutor(1, mp_context=self._context, initializer=_begin)
        self._began: Future[Any] | None = None

    def submit(self, arguments: tuple[Any, ...]) -> Future[Any]:
        shared, self._shared = self._shared, None
        self.items += 1
        try:
            if self._began is not None:
                return self._pool.submit(_run, self._call, shared, arguments)
            with _without_interrupts(), _without_this_directory():  # the new process inherits both
                self._began = self._pool.submit(_nothing)
                return self._pool.submit(_run, self._call, shared, arguments)
        except BrokenProcessPool as e:  # the process has died already
            lost = Future[Any]()
            lost.set_exception(e)
            return lost

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


def _nothing() -> None:
    """Show that the process has begun."""


def _run(call: Callable[..., R], shared: bytes | None, arguments: tuple[Any, ...]) -> R:
    """Run one item in a worker process; ``shared`` comes with its first one."""
    global _shared
    if shared is not None:
        _shared = pickle.loads(shared)
    return call(_shared, *arguments)


def keep_freed_memory() -> None:
    """Keep up to 64 MiB of freed memory for the next arrays of this process.

    By default glibc hands arrays of some 100 kB back to the system as soon as they are freed, and the system zeroes
    the pages of the next ones: twice the time of a NumPy expression on blocks of 16,384 rows.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MMAP_THRESHOLD, _FROM_HEAP)
        mallopt(_TRIM_THRESHOLD, _KEPT)
