"""All benchmarks, each in a process of its own.

python benchmarks               run them; figures are printed, and kept in bench-results/
python benchmarks --markdown    put the figures of the last run into benchmarks/RESULTS.md
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import performance
from loader.session import beside

HERE = Path(__file__).parent

if "--markdown" in sys.argv[1:]:
    performance.write()
    sys.exit()
for name in ("startup.py", "conversion.py", "download.py", "loader", "formats.py"):
    print(f"\n== {name.removesuffix('.py')}", flush=True)
    python = beside("torchrl") if name == "conversion.py" else sys.executable
    subprocess.run([python, HERE / name], check=True, env=os.environ | {"PYTHONPATH": str(HERE.parent)})
