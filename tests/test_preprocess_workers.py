"""What worker processes have with them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess

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
from rlds_cli.store.workers import keep_freed_memory
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
