"""Work done ahead of time by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def ahead(work: Callable[[A], B], items: Iterable[A], depth: int) -> Iterator[tuple[A, B]]:
    """``work`` on every item, in order, up to ``depth`` of them ahead of the one that is asked for.

    ``items`` are asked for by the thread that iterates. With depth 0 there are no threads. When the iterator is closed,
    or an item fails, nothing that has not begun is begun.
    """
    if depth == 0:
        yield from ((item, work(item)) for item in items)
        return
    threads = ThreadPoolExecutor(depth, "rlds-loader")
    waiting: deque[tuple[A, Future[B]]] = deque()
    try:
        for item in items:
            waiting.append((item, threads.submit(work, item)))
            if len(waiting) > depth:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _first(waiting: deque[tuple[A, Future[B]]]) -> tuple[A, B]:
    item, future = waiting.popleft()
    return item, future.result()
