from __future__ import annotations

import threading
import time

import pytest

from rlds_cli.base import threads


def test_short_work_is_done_by_the_calling_thread() -> None:
    seen: list[tuple[int, str]] = []
    threads.each(lambda k: seen.append((k, threading.current_thread().name)), range(5), 4)
    assert seen == [(k, threading.current_thread().name) for k in range(5)]


def test_work_that_takes_time_is_done_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_ALONE", 0)
    together, seen = threading.Barrier(3, timeout=60), list[int]()

    def work(k: int) -> None:
        if k:
            together.wait()
        seen.append(k)

    threads.each(work, range(7), 3)
    assert sorted(seen) == list(range(7))


def test_after_an_error_no_item_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_ALONE", 0)
    seen: list[int] = []

    def work(k: int) -> None:
        if k == 3:
            raise OSError("full")
        time.sleep(0.01)
        seen.append(k)

    with pytest.raises(OSError, match="full"):
        threads.each(work, range(1000), 2)
    assert len(seen) < 20
