"""Work is divided by what it costs: few long calls are as many chunks, and what was finished is not done again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.preprocess import job
from rlds_cli.preprocess.job import decided, rows_of_chunk
from rlds_cli.preprocess.steps import runs
from rlds_cli.preprocess.task import described

EPISODES, STEPS = 12, 25

SLOW = """
import os, time
from pathlib import Path

def slow(episode, seconds=0.25):
    with open("calls", "a") as f:
        f.write(f"{os.getpid()}\\n")
    time.sleep(seconds)
    if Path("stop").exists() and len(Path("calls").read_text().split()) > 8:
        raise KeyboardInterrupt
    episode["action"] += 1
    return episode
"""


@pytest.fixture
def ds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("prep.py").write_text(SLOW)
    rng = np.random.default_rng(0)
    return rlds_cli.create(
        "local/ds",
        ({"observation": rng.standard_normal((STEPS + 1, 2)), "action": np.zeros((STEPS, 1))} for _ in range(EPISODES)),
    )


def calls():
    return Path("calls").read_text().split()


@pytest.mark.thorough
def test_few_slow_episodes_use_all_workers(ds):
    preprocess.run(ds, "prep.py:slow", jobs=3)
    at_work = [pid for pid in calls() if pid != str(os.getpid())]
    assert len(at_work) == EPISODES and len(set(at_work)) == 3


@pytest.mark.parametrize("again", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_an_interrupted_run_goes_on_where_it_was(ds, again):
    undisturbed = preprocess.run(ds, "prep.py:slow", "whole", args={"seconds": 0}, jobs=0)
    Path("calls").unlink()
    Path("stop").touch()
    said = []
    with pytest.raises(KeyboardInterrupt):
        preprocess.run(ds, "prep.py:slow", jobs=0, progress=said.append)
    # Three were looked at; the ninth call stopped it: five episodes are finished.
    assert said[-1].note == "5 of 12 chunks are kept; the same command continues from there"
    Path("stop").unlink()
    Path("calls").unlink()
    made = preprocess.run(ds, "prep.py:slow", jobs=again, progress=said.append)
    assert any(e.note == "resumed: 5 of 12 parts were finished" and e.done == 5 * (STEPS + 1) for e in said)
    assert len(calls()) == 3 + EPISODES - 5
    assert made.fingerprint == undisturbed.fingerprint
    assert made.manifest.provenance[-1]["chunk"] == undisturbed.manifest.provenance[-1]["chunk"]


def test_chunks_cost_about_alike_and_cheap_ones_are_large():
    assert rows_of_chunk(1e-6, 1_000_000) == 1 << 16  # a second in all
    assert rows_of_chunk(0.3 / 250, 40 * 250) <= 250  # one episode of 0.3 s
    assert rows_of_chunk(10.0, 1_000) == 1
    assert rows_of_chunk(0.0, 1_000) == 1 << 16
    assert rows_of_chunk(1e-3, 1_000_000) == 2_000  # two seconds: no more is lost


def test_the_first_run_decides(tmp_path):
    first = decided(tmp_path, 1e-3, 1_000_000)
    assert decided(tmp_path, 1.0, 1_000_000) == first
    (tmp_path / "chunks.json").write_text("{")
    assert decided(tmp_path, 1.0, 1_000_000) == 2


@pytest.mark.thorough
def test_what_a_batch_holds_does_not_depend_on_the_chunks(ds, monkeypatch):
    """Functions of batches may see that they are batches: these are the same however work is divided."""
    monkeypatch.setattr("rlds_cli.preprocess.job.BLOCK_ROWS", 60)

    def centred(batch):
        batch["centred"] = batch["action"] + len(batch["action"]) + np.random.random()
        batch["next"]["centred"] = batch["centred"]
        return batch

    made = []
    for rows in (1 << 16, 200, 1):
        monkeypatch.setattr("rlds_cli.preprocess.job.rows_of_chunk", lambda seconds, steps, rows=rows: rows)
        made.append(preprocess.run(ds, centred, f"by{rows}", unit="batch", jobs=0))
    assert len({m.fingerprint for m in made}) == 1
    assert set(np.floor(made[0].column("centred")[:STEPS]).ravel()) == {50}  # two whole episodes, of at most 60 steps


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lengths", "steps", "expected"),
    [([3, 3, 3], 6, [0, 2]), ([7, 1, 1], 6, [0, 1]), ([1, 7, 1], 6, [0, 1, 2]), ([2] * 5, 1, [0, 1, 2, 3, 4])],
)
def test_runs_are_whole_episodes(lengths, steps, expected):
    assert runs(np.array(lengths), steps) == expected
    for first in expected:  # wherever a part begins with a run
        assert [first + r for r in runs(np.array(lengths[first:]), steps)] == [r for r in expected if r >= first]


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 10, 26, 60, 1000])
@pytest.mark.parametrize("unit", ["episode", "batch"])
def test_chunks_hold_every_episode_once(ds, rows, unit):
    how = {"unit": unit, "arrays": "numpy", "args": {}, "fields": None}
    with described(ds, "prep.py:slow", "x", **how) as t:
        parts = job.parts(t, kept=True, rows=rows)
    assert [k for p in parts for k in range(p.args["first"], p.args["last"])] == list(range(EPISODES))
    assert sum(p.rows for p in parts) == EPISODES * (STEPS + 1)


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(ds):
    command = ["preprocess", "local/ds", "--fn", "prep.py:slow", "--arg", "seconds=0.3", "-j", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlds_cli", *command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (Path("calls").exists() and len(calls()) > 7):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers have it too
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 12 chunks are kept" in error and "Traceback" not in error
    assert error.rstrip().endswith(f"stopped. Continue with:  rlds {' '.join(command)}")
