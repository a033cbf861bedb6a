"""Items worked through by processes, some of which die."""

import os
import signal
from pathlib import Path

import pytest

from rlds_cli.store.workers import WorkerDied, work_through


def square(n):
    return n * n


def fails(n):
    if n == 3:
        raise ValueError("three")
    return n


def dies(n, at, how, mark):
    """Ends its process at item ``at``, until the file ``mark`` has as many bytes as it may die times."""
    if n == at:
        with Path(mark).open("a") as f:
            f.write("x")
        if Path(mark).stat().st_size <= 1 or how[0] == "always":
            os._exit(how[1]) if how[1] >= 0 else os.kill(os.getpid(), -how[1])
    return n


def never(number, how):
    raise AssertionError(number, how)


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_every_item_once_with_its_result(workers):
    assert dict(work_through(square, {n: (n,) for n in range(7)}, workers, never)) == {n: n * n for n in range(7)}
    assert list(work_through(square, {}, workers, never)) == []


def test_what_an_item_raises_is_raised():
    with pytest.raises(ValueError, match="three"):
        list(work_through(fails, {n: (n,) for n in range(9)}, 2, never))


@pytest.mark.parametrize(
    ("code", "how"), [(3, "left with exit code 3"), (-signal.SIGKILL, "was killed"), (-signal.SIGTERM, "by signal 15")]
)
def test_an_item_whose_process_dies_is_tried_once_more(tmp_path, code, how):
    told = []
    items = {n: (n, 2, ("once", code), str(tmp_path / "mark")) for n in range(5)}
    done = dict(work_through(dies, items, 2, lambda n, how: told.append((n, how))))
    assert done == {n: n for n in range(5)}
    assert len(told) == 1 and told[0][0] == 2 and how in told[0][1]


def test_an_item_whose_process_dies_twice_is_named(tmp_path):
    told = []
    items = {n: (n, 1, ("always", 7), str(tmp_path / "mark")) for n in range(4)}
    with pytest.raises(WorkerDied) as e:
        list(work_through(dies, items, 2, lambda n, how: told.append(n)))
    assert (e.value.number, e.value.how, told) == (1, "left with exit code 7", [1])
    assert (tmp_path / "mark").read_text() == "xx"


def meets(n, mark):
    """Item 0 fails when item 1 is worked at; item 1 ends some time after that."""
    import time

    if n == 1:
        Path(mark).touch()
        time.sleep(0.5)
        return n
    while not Path(mark).exists():
        time.sleep(0.01)
    raise ValueError("nought")


def test_what_others_are_at_is_done_before_a_failure_is_raised(tmp_path):
    done = []

    def take():
        for number, _ in work_through(meets, {n: (n, str(tmp_path / "mark")) for n in range(5)}, 2, never):
            done.append(number)

    with pytest.raises(ValueError, match="nought"):
        take()
    assert done == [1]
