"""Preprocess jobs that are killed: nothing half is seen, and the next run ends where an undisturbed one does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import preprocess_functions as functions
import pytest

import rlds_cli
from rlds_cli import preprocess

_RUN = """
import sys
from rlds_cli import preprocess
from rlds_cli.preprocess import job
import preprocess_functions as f

if __name__ == "__main__":
    job.PART_ROWS = 512
    preprocess.run("local/ds", f.slow, sys.argv[1], jobs=int(sys.argv[2]))
"""


@pytest.fixture
def ds():
    rng = np.random.default_rng(0)
    episodes = (
        {
            "observation": rng.standard_normal((101, 3)).astype(np.float32),
            "action": rng.standard_normal((100, 2)),
            "next": {"reward": rng.standard_normal(100), "terminated": True},
        }
        for _ in range(150)
    )
    return rlds_cli.create("local/ds", episodes)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job_of_the_test.py"
    path.write_text(_RUN)
    return path


def start(script, name, jobs):
    return subprocess.Popen(
        [sys.executable, str(script), name, str(jobs)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def journal(home, name):
    lines = [p.read_text().splitlines() for p in home.glob(f"partial/local+ds@{name}.*/journal.jsonl")]
    return max(map(len, lines), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [0, 2])
def test_a_killed_job_leaves_nothing_and_is_gone_on_with(ds, home, script, jobs, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 512)
    undisturbed = preprocess.run(ds, functions.slow, "undisturbed", jobs=0)
    for parts in (3, 6, 9):
        process = start(script, "killed", jobs)
        deadline = time.monotonic() + 60
        while journal(home, "killed") <= parts and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()
        kill(process)
        assert not (home / "datasets/local/ds@killed").exists()
        assert journal(home, "killed") > parts
    said = []
    ds = preprocess.run(ds, functions.slow, "killed", jobs=jobs, progress=said.append)
    assert any("resumed" in e.note for e in said)
    assert ds.fingerprint == undisturbed.fingerprint
    assert np.array_equal(ds.column("observation"), 2 * rlds_cli.open_dataset("local/ds").column("observation"))
    assert list((home / "partial").iterdir()) == []


_DROPS = """
from pathlib import Path

def drops(e):
    calls = Path("calls")
    n = int(calls.read_text()) + 1
    calls.write_text(str(n))
    if n == int(Path("stop").read_text()):
        raise KeyboardInterrupt
    return None if round(float(e["action"][0, 0]), 6) == {marked} else e
"""


def test_a_killed_job_remembers_what_it_learned(ds, tmp_path, monkeypatch):
    """That the function drops an episode is learned once, not again by the run that goes on."""
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 512)
    monkeypatch.chdir(tmp_path)
    Path("prep.py").write_text(_DROPS.format(marked=round(float(ds.episode(40)["action"][0, 0]), 6)))
    Path("stop").write_text("0")
    Path("calls").write_text("0")
    undisturbed = preprocess.run(ds, "prep.py:drops", "whole", jobs=0)
    # Three episodes are looked at, 41 done until one is dropped, three looked at again, and 100 done.
    Path("stop").write_text(str(3 + 41 + 3 + 100))
    Path("calls").write_text("0")
    with pytest.raises(KeyboardInterrupt):
        preprocess.run(ds, "prep.py:drops", "stopped", jobs=0)
    Path("calls").write_text("0")
    made = preprocess.run(ds, "prep.py:drops", "stopped", jobs=0)
    assert int(Path("calls").read_text()) < 3 + 60
    assert made.fingerprint == undisturbed.fingerprint and made.num_episodes == 149


@pytest.mark.slow
def test_two_at_once_make_it_once(ds, script):
    processes = [start(script, "both", 0) for _ in range(2)]
    for p in processes:
        _, error = p.communicate(timeout=120)
        assert p.returncode == 0, error
    assert rlds_cli.open_dataset("local/ds@both").num_episodes == 150


def test_unfinished_work_of_another_function_is_forgotten(ds, home):
    def fails(e):
        if float(e["action"][0, 0]) == marked:
            raise ValueError
        return e

    marked = float(ds.episode(40)["action"][0, 0])
    with pytest.raises(rlds_cli.errors.PreprocessError):
        preprocess.run(ds, fails, "made")
    assert len(list((home / "partial").iterdir())) == 1
    preprocess.run(ds, functions.same, "made")
    assert list((home / "partial").iterdir()) == []
