"""Give items of work to threads: to none where all of it is done before threads have started."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")
_ALONE = 0.005  # seconds: starting threads takes one or two


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
