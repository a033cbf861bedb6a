"""What worker processes have with them."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import current_process

import numpy as np
import pytest
from conftest import write_d4rl

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import RldsError
from rlds_cli.make.importing import import_files

_FUNCTION = """
import os, sys
import numpy as np

def told(episode):
    steps = len(episode["action"])
    heavy = "tor" "ch" in sys.modules  # a function whose source mentions it has it imported
    episode["info"] = {"heavy": np.full(steps, heavy), "process": np.full(steps, os.getpid())}
    return episode
"""


def test_workers_import_no_torch(tmp_path, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 64)
    episodes = ({"observation": np.zeros((51, 2)), "action": np.zeros((50, 1))} for _ in range(4))
    ds = rlds_cli.create("local/ds", episodes)
    (tmp_path / "telling.py").write_text(_FUNCTION)
    made = preprocess.run(ds, f"{tmp_path / 'telling.py'}:told", jobs=2)
    assert not made.column("info/heavy").any()
    assert os.getpid() not in made.column("info/process")


@pytest.mark.slow  # a machine that reclaims memory adds faults of its own
def test_memory_that_is_freed_is_kept_for_what_comes_next():
    # In processes of their own: the setting stays.
    code = """
import resource, sys
import numpy as np
from rlds_cli.base.workers import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    a = [np.ones(200_000) for _ in range(4)]
work()
before = faults()
for _ in range(50):
    work()
print(faults() - before)
"""
    kept, usual = (
        int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "usual")
    )
    # Four arrays of 1.6 MB are 1,563 pages; on systems without glibc the setting does nothing, and is none to test.
    assert kept < 1000 or kept <= usual


def test_a_function_that_no_other_process_can_run_works_in_this_one(monkeypatch):
    """Without cloudpickle a lambda stays where it is."""
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 64)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    episodes = ({"observation": np.zeros((51, 2)), "action": np.full((50, 1), k)} for k in range(4))
    ds = rlds_cli.create("local/ds", episodes)
    seen, said = [], []
    made = preprocess.run(
        ds,
        lambda e: seen.append(os.getpid()) or {**e, "action": -e["action"]},
        "minus",
        jobs=2,
        progress=lambda e: e.note and said.append(e.note),
    )
    assert np.array_equal(made.column("action"), -ds.column("action"))
    assert set(seen) == {os.getpid()}
    assert any(s.startswith("working in this process: ") and "pip install cloudpickle" in s for s in said)


_SCRIPT = """
import logging
import sys
import rlds_cli
from rlds_cli import preprocess

log = logging.getLogger(__name__)

def same(episode):
    return episode

def process():
    from rlds_cli.preprocess import job
    job.PART_ROWS = 64
    print(preprocess.run("local/ds", same, jobs=2, home=sys.argv[1]).num_episodes)

def convert():
    from rlds_cli.archives import flat
    from rlds_cli.make.importing import import_files
    flat.PART_ROWS = 1000
    import_files(sys.argv[2], "local/imported", jobs=2, home=sys.argv[1])

"""
_GUARDED = 'if __name__ == "__main__":\n    print("begins")\n\n'


def _run(script, *arguments):
    """Run a script; the time-out is there for one that never ends."""
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def _episodes(home):
    episodes = ({"observation": np.zeros((51, 2)), "action": np.zeros((50, 1))} for _ in range(4))
    return rlds_cli.create("local/ds", episodes, home=home)


def test_a_script_that_calls_outside_of_its_guard(tmp_path):
    """Each worker runs it again, where it would wait for the lock of the process that waits for the worker."""
    _episodes(tmp_path / "home")
    (tmp_path / "main.py").write_text(f"{_SCRIPT}{_GUARDED}process()\n")
    done = _run(tmp_path / "main.py", tmp_path / "home")
    assert done.returncode == 1
    last = done.stderr.rpartition("rlds_cli.errors.")[2]
    assert "main.py again" in last and 'if __name__ == "__main__":' in last
    assert not (tmp_path / "home" / "datasets" / "local" / "ds@same").exists()


def test_a_script_without_a_guard_that_converts(tmp_path):
    """The processes that read archives do not run the script again."""
    write_d4rl(tmp_path / "a.hdf5", [600] * 8)
    (tmp_path / "main.py").write_text(f"{_SCRIPT}convert()\n")
    done = _run(tmp_path / "main.py", tmp_path / "home", tmp_path / "a.hdf5")
    assert done.returncode == 0, done.stderr
    found = rlds_cli.open_dataset("local/imported", home=tmp_path / "home")
    assert found.episodes["length"].tolist() == [600] * 8


@pytest.mark.parametrize("name", ["main.py", pytest.param("console-script", marks=pytest.mark.thorough)])
def test_a_script_without_a_guard_works_alone(tmp_path, name):
    """Its text names ``__name__``, and that is no guard."""
    _episodes(tmp_path / "home")
    (tmp_path / name).write_text(f"{_SCRIPT}process()\n")
    done = _run(tmp_path / name, tmp_path / "home")
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


@pytest.mark.thorough
def test_a_script_that_calls_under_its_guard(tmp_path):
    _episodes(tmp_path / "home")
    (tmp_path / "main.py").write_text(f'{_SCRIPT}if __name__ == "__main__":\n    process()\n')
    done = _run(tmp_path / "main.py", tmp_path / "home")
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


def test_all_work_is_refused_in_a_worker_that_starts(tmp_path, monkeypatch):
    """As multiprocessing marks a process that runs the program again before it begins."""
    ds = _episodes(tmp_path / "home")
    write_d4rl(tmp_path / "a.hdf5", [20])
    monkeypatch.setattr(current_process(), "_inheriting", True, raising=False)
    for work in (
        lambda: preprocess.run(ds, lambda episode: episode, "same", jobs=2, home=tmp_path / "home"),
        lambda: rlds_cli.export(ds, "minari", tmp_path / "out", lossy=True),
        lambda: import_files(tmp_path / "a.hdf5", "local/a", home=tmp_path / "home"),
        lambda: _episodes(tmp_path / "home2"),
    ):
        with pytest.raises(RldsError, match=r"(?s)runs the program again.*__main__"):
            work()
    assert ds.num_episodes == rlds_cli.open_dataset("local/ds", home=tmp_path / "home").num_episodes
