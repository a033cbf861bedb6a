"""Single values of V-D4RL's files, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.archives.vd4rl.rows import DISCOUNT, STATE
from rlds_cli.ted import FLAGS, REWARD

_FRAMES = ("image", "observation")
_NAMES = {"action": "action", "reward": REWARD, "discount": DISCOUNT, "is_terminal": FLAGS[0]}
_MARKS = ("is_first", "is_last", "step_type")


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step and in the one after, which may lie in the next shard."""
    for after in (False, True):
        name, row = _row(spot, spot.first + spot.step + after)
        path = spot.root / name if name else spot.file
        for key, value in _values(path, row):
            at = f"{name or spot.name}/{key}[{row}]"
            if key in _NAMES:
                if after:
                    yield Cell(_NAMES[key], at, bool(value) if key == "is_terminal" else value)
            elif key not in _MARKS:
                field = "observation" if key in _FRAMES else STATE + key
                yield Cell(f"next/{field}" if after else field, at, value)


def _row(spot: Spot, row: int) -> tuple[str, int]:
    """The shard that holds a row counted from the beginning of the episode's first one, and the row there."""
    shards: dict[str, int] = dict(spot.facts.get("shards", {}))
    names = list(shards)
    at = names.index(spot.name) if spot.name in shards else None
    while at is not None and row >= shards[names[at]]:
        row, at = row - shards[names[at]], at + 1
    return (names[at] if at is not None else ""), row


def _values(path: Path, row: int) -> Iterator[tuple[str, object]]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as f:
            yield from ((key, f[key][row]) for key in f)
    else:
        with open_file(path, check=False) as f:
            yield from ((key, d[row]) for key, d in f.items())
