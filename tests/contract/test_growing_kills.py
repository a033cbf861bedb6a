"""A few kills of writers, readers and compaction; ``make soak`` has more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_nothing_committed_is_lost_and_no_episode_is_half() -> None:
    """The script forks: it runs in a process of its own, without the threads and the memory of this one."""
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "soak_growing.py", "--times", "3", "--seed", "5"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("killed 3 times") == 5
