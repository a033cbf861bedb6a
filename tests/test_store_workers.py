"""Items worked through by processes, some of which die."""

import os
import signal
import subprocess
import sys
import time
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


def waits(directory):
    (Path(directory) / str(os.getpid())).touch()
    time.sleep(600)


MAIN = """
import sys
sys.path.insert(0, sys.argv[2])
from test_store_workers import waits
from rlds_cli.store.workers import work_through
if __name__ == "__main__":
    list(work_through(waits, {n: (sys.argv[1],) for n in range(2)}, 2, print))
"""


def test_workers_end_when_their_program_is_killed(tmp_path):
    (tmp_path / "main.py").write_text(MAIN)
    (at := tmp_path / "pids").mkdir()
    command = [sys.executable, tmp_path / "main.py", at, Path(__file__).parent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as program:
        until = time.monotonic() + 60
        while len(list(at.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(list(at.iterdir())) == 2
        program.kill()
        program.communicate(timeout=60)  # the workers have its output open for as long as they are there


def imported_from(directory):
    return [name for name, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(directory)]


def test_processes_import_nothing_of_the_current_directory(tmp_path, monkeypatch):
    for name in ("random", "socket", "tempfile", "selectors", "typing"):  # which the start of a process needs
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported of the current directory')\n")
    monkeypatch.chdir(tmp_path)
    assert dict(work_through(imported_from, {0: (str(tmp_path),)}, 1, print)) == {0: []}
    assert "PYTHONSAFEPATH" not in os.environ


def test_the_module_itself_imports_nothing_of_the_current_directory(tmp_path):
    for name in ("random", "typing", "json", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported of the current directory')\n")
    done = subprocess.run(
        [sys.executable, "-m", "rlds_cli", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.startswith("rlds "), done.stderr
