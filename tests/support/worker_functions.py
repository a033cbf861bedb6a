"""What test_store_workers has other processes do: they import this module, and neither pytest nor a test."""

import os
import sys
import time
from pathlib import Path

from rlds_cli.base.progress import silent
from rlds_cli.base.workers import Processes, Threads, run_items


def run(call, items, workers, shared=None, progress=silent):
    executor = Processes(workers) if workers else None
    return run_items(call, shared, items, executor, id="local/x", name="item {}".format, progress=progress)


def run_in_threads(call, items, threads, shared=None):
    return run_items(call, shared, items, Threads(threads), id="local/x", name="item {}".format, progress=silent)


def counted(shared, n):
    """Counts the calls that had this ``shared``."""
    shared.append(n)
    return id(shared), list(shared)


def power(exponent, n):
    return n**exponent


def fails(shared, n):
    if n == 3:
        raise ValueError("three")
    return n


def dies(shared, n, at, how, mark):
    """Ends its process at item ``at``, until the file ``mark`` has as many bytes as it may die times."""
    if n == at:
        with Path(mark).open("a") as f:
            f.write("x")
        if Path(mark).stat().st_size <= 1 or how[0] == "always":
            os._exit(how[1]) if how[1] >= 0 else os.kill(os.getpid(), -how[1])
    return n


def own_process(shared):
    return os.getpid()


def meets(shared, n, mark):
    """Item 0 fails when item 1 is worked at; item 1 ends some time after that."""
    if n == 1:
        Path(mark).touch()
        time.sleep(0.5)
        return n
    while not Path(mark).exists():
        time.sleep(0.01)
    raise ValueError("nought")


def waits(shared, directory):
    (Path(directory) / str(os.getpid())).touch()
    time.sleep(600)


def imported_from(shared, directory):
    return [name for name, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(directory)]


def pid(shared, n):
    return os.getpid()


def modules():
    return [*sys.modules]
