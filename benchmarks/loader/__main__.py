"""The loader against its peers.

    python benchmarks/loader [GROUP ...] [--threads 1 2] [--seconds S] [--rounds N]

Groups: see ``loader/__init__.py``; all of them unless named. Results go to ``bench-results/loader.json``,
in which those of other groups stay.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

import loader  # noqa: E402
from loader import running  # noqa: E402

if __name__ == "__main__":
    running.main("loader", loader.GROUPS, str(__doc__))
