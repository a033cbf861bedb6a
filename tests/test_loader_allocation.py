from __future__ import annotations

import subprocess
import sys

import pytest

GATHERS = """
import resource, sys
import numpy as np
from rlds_cli.loader.read import keep_freed

if sys.argv[1] == "keep":
    keep_freed()
def gather():
    kept = [np.ones(size, np.uint8) for size in (1_720_320, 700_000, 245_000, 41_000, 10_000, 700_000)]
for _ in range(5):
    gather()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    gather()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow  # a machine that reclaims memory adds faults of its own
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's thresholds")
def test_memory_is_reused() -> None:
    def faults(how: str) -> int:
        run = subprocess.run([sys.executable, "-c", GATHERS, how], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert faults("keep") < 20
    if faults("not") < 1000:
        pytest.skip("this heap keeps by itself what is freed")
