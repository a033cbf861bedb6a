"""Work done ahead of time by threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

LARGE = 16 << 10  # bytes of a sample from which a thread pays: below, handing work over costs more than it saves
DECODERS = 8  # threads that decode frames, at most
HELD = 256 << 20  # bytes of gathers read ahead at most, unless there is only one

THREADS = "rlds-loader"

A = TypeVar("A")
B = TypeVar("B")


def ahead(work: Callable[[A], B], items: Iterable[A], depth: int) -> Iterator[tuple[A, B]]:
    """``work`` on every item, in order, up to ``depth`` of them ahead of the one that is asked for.

    ``items`` are asked for by the thread that iterates, early; what fails, an item or the work on it, is raised in its
    turn, after what comes before it. With depth 0 there are no threads. When the iterator is closed, forgotten or
    interrupted, nothing that has not begun is begun, and its threads end.
    """
    if depth == 0:
        yield from ((item, work(item)) for item in items)
        return
    threads = ThreadPoolExecutor(depth, THREADS)
    waiting: deque[tuple[A, Future[B]]] = deque()
    failure: Exception | None = None
    source = iter(items)
    try:
        while True:
            while failure is None and len(waiting) <= depth:
                try:
                    item = next(source)
                except StopIteration:
                    break
                except Exception as e:
                    failure = e
                else:
                    waiting.append((item, threads.submit(work, item)))
            if not waiting:
                break
            item, future = waiting.popleft()
            yield item, future.result()
        if failure is not None:
            raise failure
    finally:
        # An iterator that was forgotten may be collected in one of its own threads, which cannot wait for itself.
        mine = threading.current_thread().name.startswith(THREADS)
        threads.shutdown(wait=not mine, cancel_futures=True)


def depth(*, sample_bytes: int, gather_bytes: int, decodes: bool, ships: bool) -> int:
    """How many gathers to read ahead when nobody says.

    Parameters
    ----------
    sample_bytes, gather_bytes : int
        Of one sample, and of all that are read together.
    decodes : bool
        Whether encoded frames are among them: as many threads as there are cores decode at once.
    ships : bool
        Whether they go to another device: copying them into pinned memory goes on beside the training.
    """
    if decodes:
        wanted = min(DECODERS, max(2, cores()))
    else:
        wanted = 2 if ships or sample_bytes >= LARGE else 0
    return min(wanted, max(1, HELD // max(1, gather_bytes)))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
