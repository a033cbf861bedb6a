"""Decisions of three annotators on changing versions: every version is what a list of episodes by id says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from decisions_history import History

SEEDS = int(os.environ.get("RLDS_HISTORIES", "2"))


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 8), *(pytest.param(seed, 60, marks=pytest.mark.thorough) for seed in range(SEEDS))]
)
def test_every_version_is_what_the_list_says(seed: int, steps: int, grows: bool, tmp_path: Path) -> None:
    history = History(seed, tmp_path, grows=grows, kills=False)
    for _ in range(steps):
        history.step()
    history.end()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_decision_is_lost_and_nothing_is_half_done_where_processes_are_killed(seed: int, tmp_path: Path) -> None:
    """The program forks: it runs in a process of its own."""
    program = Path(__file__).with_name("decisions_history.py")
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, program, str(seed), "60", tmp_path],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
