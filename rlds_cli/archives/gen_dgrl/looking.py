"""Single values of episodes in a tar, for `rlds verify --trace`. The tar is read up to the episode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.gen_dgrl import content
from rlds_cli.archives.tar import members
from rlds_cli.archives.unpacking import open_unpacked
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import FLAGS


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands at a step; the frame after it, but for that of the next episode, behind a done."""
    episode = _episode(spot.file, spot.group)
    steps = len(episode["actions"])
    for key, values in episode.items():
        field, at = content.field_of(key), f"{spot.group}:{key}"
        value = values[spot.step].reshape(()) if key in ("rewards", "dones") else values[spot.step]
        yield Cell(field, f"{at}[{spot.step}]", bool(value) if field == FLAGS[0] else value)
        both = key == "observations" or len(values) == steps + 1
        if both and not (spot.is_last and episode["dones"].reshape(-1)[-1]):
            yield Cell(f"next/{field}", f"{at}[{spot.step + 1}]", values[spot.step + 1])


@lru_cache(maxsize=1)  # steps are asked for in their order, several of one episode
def _episode(file: Path, name: str) -> dict[str, Any]:
    with open_unpacked(file) as stream:
        for member in members(stream):
            if member.name == name:
                packed = b"".join(iter(member.read, b""))
                with np.load(BytesIO(packed), allow_pickle=False) as f:
                    return dict(f)
    raise CorruptArchive(f"{file.name} has no {name}.")
