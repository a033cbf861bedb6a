"""Give items of work to threads, to none where all of it is done before they have started; and their priorities."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")
_ALONE = 0.005  # seconds: starting threads takes one or two
_TASKS = Path("/proc/self/task")


def each(work: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """Call ``work`` with each item.

    The calling thread begins alone, so large items do not come first. What it has not done within some milliseconds,
    ``threads`` threads do, each of which takes the next item when it is done with one. After an error of ``work``,
    which is raised, none takes another one.
    """
    left = deque(items)  # threads take from it without a lock; they may not share an iterator
    began = perf_counter()
    while left and perf_counter() - began <= _ALONE:
        work(left.popleft())
    if not left:
        return
    from concurrent.futures import ThreadPoolExecutor

    def take() -> None:
        try:
            while True:
                try:
                    item = left.popleft()
                except IndexError:
                    return
                work(item)
        finally:
            left.clear()  # after an error, which leaves items for nobody

    with ThreadPoolExecutor(max(1, threads)) as pool:
        try:
            for future in [pool.submit(take) for _ in range(max(1, threads))]:
                future.result()
        finally:
            left.clear()  # where the user interrupts


@contextmanager
def priorities_kept() -> Iterator[None]:
    """Take back the priorities that a library gives to this thread and to those that it starts inside.

    As root, libsvtav1 gives itself and the thread that calls it the highest one of real time (SCHED_FIFO, 99). All that
    this thread starts from then on has it, too: one process of them that waits in a loop stops a core for all others.
    """
    if not _TASKS.exists():  # not Linux
        yield
        return
    mine, before = threading.get_native_id(), _scheduled()
    try:
        yield
    finally:
        for thread, now in _scheduled().items():
            policy, priority = before.get(thread) or before.get(mine) or now
            if now != (policy, priority):
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _scheduled() -> dict[int, tuple[int, int]]:
    """Return policy and priority of each thread of this process."""
    found = {}
    for thread in (int(task.name) for task in _TASKS.iterdir()):
        with suppress(OSError):  # it has ended, or this is not to be known
            found[thread] = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
    return found
