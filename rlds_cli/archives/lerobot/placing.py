"""Where episodes lie, checked against the files: ``meta/`` is wrong in datasets that known scripts have made.

The script that converts v2.1 to v3.0 named the wrong data file for an episode that no longer fitted one
(huggingface/lerobot#2401), and the one that merges datasets gave episodes the video files and times of others
(huggingface/lerobot#2550). The first can be put right, for rows say whose they are; the second is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlds_cli.archives.lerobot import tables
from rlds_cli.archives.lerobot.description import Info, Listed
from rlds_cli.ted import Note


def settle(info: Info, files: Sequence[Path], listed: Sequence[Listed]) -> tuple[list[Listed], list[Note]]:
    """The episodes with the data files that their rows are in. Rows are counted, and read only where that is off."""
    data = [f for f in files if f.suffix == ".parquet" and f.is_relative_to(info.root / "data")]
    if info.major == 2 or not data:
        return list(listed), []
    rows: Counter[str] = Counter()
    for e in listed:
        rows[e.data] += e.length
    names = {f.relative_to(info.root).as_posix(): f for f in data}
    if all(rows[name] in (0, tables.rows(path)) for name, path in names.items()):
        return list(listed), []
    found = {number: name for name, path in names.items() for number in _episodes(path)}
    settled = [replace(e, data=found.get(e.number, e.data)) for e in listed]
    moved = [e for e, before in zip(settled, listed, strict=True) if e.data != before.data]
    text = "episodes that lie in another data file than meta/ says"
    return settled, [Note("stale-files", text, len(moved), f"episode {moved[0].number}")] if moved else []


def _episodes(path: Path) -> list[int]:
    numbers: list[int] = np.unique(tables.table(path, ["episode_index"])["episode_index"].to_numpy()).tolist()
    return numbers


def shared_frames(info: Info, listed: Sequence[Listed], cameras: Sequence[str]) -> list[Note]:
    """Episodes that begin in a video before the one before them has ended."""
    overlapping: list[str] = []
    for key in cameras:
        spans = sorted((*e.videos[key], e.length / info.fps, e.number) for e in listed)
        for (file, start, length, _), (other, begin, _, number) in pairwise(spans):
            if file == other and begin < start + length - 0.5 / info.fps:
                overlapping.append(f"episode {number}: {file}")
    text = "episodes that meta/ gives frames of another one; a known fault of merged datasets"
    return [Note("shared-frames", text, len(overlapping), overlapping[0])] if overlapping else []
