"""A home with datasets of format 1, kept to prove that they still open; `HAND` is what they hold.

``stores/home.tar.gz`` was written by ``write`` below. Once the format is released, it is not written again: a later
format gets a home of its own beside it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlds_cli
from rlds_cli import preprocess

HOME = Path(__file__).parent / "stores" / "home.tar.gz"
# By episode: the observations (T+1 rows, or T where the last is not recorded), and the text of its steps.
HAND: tuple[dict[str, Any], ...] = (
    {"observation": [[0, 1], [2, 3], [4, 5]], "text": ["left", None], "end": "terminated"},
    {"observation": [[6, 7], [8, 9], [10, 11]], "text": ["up", "größer", ""], "end": "truncated"},
    {"observation": [[12, 13], [14, 15]], "text": ["end"], "end": "truncated"},
)
HALF = "def half(episode):\n    episode['action'] = episode['action'] / 2\n    return episode\n"


def episodes() -> Iterator[dict[str, Any]]:
    """As `rlds_cli.create` takes them."""
    for k, e in enumerate(HAND):
        n = len(e["text"])
        yield {
            "observation": np.array(e["observation"], np.float32),
            "action": np.arange(n, dtype=np.float64)[:, None] + 10 * k,
            "text": e["text"],
            "next": {"reward": np.arange(1.0, n + 1), e["end"]: True},
        }


def write(home: Path) -> None:
    """Write the datasets into RLDS_HOME, and the home into the archive."""
    Path("own.py").write_text(HALF)  # in the current directory: the manifest holds the path as it is given
    plain = rlds_cli.create("local/plain", episodes())
    rlds_cli.create("local/packed", episodes(), storage="zarr")
    preprocess.run(plain, "own.py:half", "half", jobs=0)
    with tarfile.open(HOME, "w:gz") as tar:
        tar.add(home / "datasets", "datasets", filter=_of_nobody)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def unpacked(home: Path) -> None:
    """The home as it was kept."""
    with tarfile.open(HOME) as tar:
        tar.extractall(home, filter="data")
