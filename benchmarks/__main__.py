"""All benchmarks, each in a process of its own.

python benchmarks
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

for name in ("startup", "conversion", "loader"):
    print(f"\n== {name}", flush=True)
    subprocess.run([sys.executable, HERE / f"{name}.py"], check=True)
