"""Items that processes run, some of which die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_functions import (
    counted,
    dies,
    fails,
    imported_from,
    meets,
    own_process,
    pid,
    power,
    run,
    run_in_threads,
)

from rlds_cli.base.progress import silent
from rlds_cli.base.workers import Processes, run_items
from rlds_cli.errors import RldsError


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [0, 1, 2, 9])
def test_every_item_once_with_its_result(workers):
    assert dict(run(power, {n: (n,) for n in range(7)}, workers, shared=3)) == {n: n**3 for n in range(7)}
    assert list(run(power, {}, workers)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_what_an_item_raises_is_raised(workers):
    with pytest.raises(ValueError, match="three"):
        list(run(fails, {n: (n,) for n in range(9)}, workers))


def test_each_thread_has_what_items_share_for_itself():
    given = []
    items = {n: (n,) for n in range(20)}
    by_thread = {}
    for n, (thread, seen) in run_in_threads(counted, items, 3, shared=given):
        assert seen[-1] == n
        by_thread[thread] = max(by_thread.get(thread, []), seen, key=len)
    assert sorted(n for seen in by_thread.values() for n in seen) == list(items)
    assert given == [] and 1 <= len(by_thread) <= 3


def test_what_an_item_raises_in_a_thread_is_raised():
    with pytest.raises(ValueError, match="three"):
        list(run_in_threads(fails, {n: (n,) for n in range(9)}, 2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("code", "how"),
    [
        (3, "left with exit code 3"),
        (-signal.SIGKILL, "was killed (signal 9; the system does this when memory runs out)"),
        (-signal.SIGTERM, "was ended by signal 15"),
    ],
)
def test_an_item_whose_process_dies_is_tried_once_more(tmp_path, code, how):
    notes = []
    items = {n: (n, 2, ("once", code), str(tmp_path / "mark")) for n in range(5)}
    assert dict(run(dies, items, 2, progress=lambda e: notes.append(e.note))) == {n: n for n in range(5)}
    assert notes == [f"the process that worked on item 2 {how}; trying again"]


def test_an_item_whose_process_dies_twice_is_named(tmp_path):
    items = {n: (n, 1, ("always", 7), str(tmp_path / "mark")) for n in range(4)}
    with pytest.raises(RldsError, match=r"^local/x: the process that worked on item 1 left with exit code 7, twice"):
        list(run(dies, items, 2))
    assert (tmp_path / "mark").read_text() == "xx"


def test_a_process_that_dies_between_two_items_is_replaced():
    results, notes = run(own_process, {0: (), 1: ()}, 1, progress=lambda e: notes.append(e.note)), []
    _, first = next(results)
    os.kill(first, signal.SIGKILL)
    time.sleep(0.5)
    assert next(results)[1] != first
    assert len(notes) == 1 and "item 1 was killed" in notes[0]


def test_what_others_are_at_is_done_before_a_failure_is_raised(tmp_path):
    done = []

    def take():
        for number, _ in run(meets, {n: (n, str(tmp_path / "mark")) for n in range(5)}, 2):
            done.append(number)

    with pytest.raises(ValueError, match="nought"):
        take()
    assert done == [1]


MAIN = """
import sys
sys.path[:0] = sys.argv[2:]
from worker_functions import run, waits
if __name__ == "__main__":
    list(run(waits, {n: (sys.argv[1],) for n in range(2)}, 2))
"""


def test_workers_end_when_their_program_is_killed(tmp_path):
    (tmp_path / "main.py").write_text(MAIN)
    (at := tmp_path / "pids").mkdir()
    command = [sys.executable, tmp_path / "main.py", at, *filter(None, sys.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as program:
        until = time.monotonic() + 60
        while len(list(at.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(list(at.iterdir())) == 2
        program.kill()
        program.communicate(timeout=60)  # the workers have its output open for as long as they are there


def test_processes_import_nothing_of_the_current_directory(tmp_path, monkeypatch):
    for name in ("random", "socket", "tempfile", "selectors", "typing"):  # which the start of a process needs
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported of the current directory')\n")
    monkeypatch.chdir(tmp_path)
    assert dict(run(imported_from, {0: (str(tmp_path),)}, 1)) == {0: []}
    assert "PYTHONSAFEPATH" not in os.environ


def test_the_module_itself_imports_nothing_of_the_current_directory(tmp_path):
    for name in ("random", "typing", "json", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported of the current directory')\n")
    done = subprocess.run(
        [sys.executable, "-m", "rlds_cli", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.startswith("rlds "), done.stderr


def test_a_process_ends_after_its_items():
    items = {n: (n,) for n in range(5)}
    executor = Processes(1, items_each=2)
    found = run_items(pid, None, items, executor, id="local/x", name=str, progress=silent)
    by = [p for _, p in found]
    assert by[0] == by[1] and by[2] == by[3] and len(set(by)) == 3
