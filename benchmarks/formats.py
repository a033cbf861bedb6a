"""Formats of datasets and their loaders beside ours: litdata, Lance, TensorDict, torchcodec, LeRobot.

    python benchmarks/formats.py [GROUP ...] [--seconds S] [--rounds N]

Groups: see ``loader/formats/__init__.py``; all of them unless named. An object server on this machine, each of whose
answers begins 30 ms late, is the bucket. Results go to ``bench-results/formats.json``, in which those of other groups
stay.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent)

import loader.formats  # noqa: E402
from loader import running  # noqa: E402
from loader.formats import sources  # noqa: E402
from object_server import served  # noqa: E402
from video import with_libraries  # noqa: E402

LATENCY = 30  # milliseconds


def main() -> None:
    """Measure the groups that are named, or all, beside a server."""
    with_libraries()
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
    with served(sources.SERVED, LATENCY) as url:
        os.environ |= {sources.URL: url, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
        try:
            running.main("formats", loader.formats.GROUPS, str(__doc__))
        finally:
            shutil.rmtree(sources.PLACE / "cache", ignore_errors=True)


if __name__ == "__main__":
    main()
