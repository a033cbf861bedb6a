"""Single values of a LeRobot archive, for `rlds verify --trace`. Videos are asked by ``av``, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import trees
from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.lerobot import depth, description, tables
from rlds_cli.archives.lerobot.description import Info, Listed
from rlds_cli.archives.lerobot.features import TASK


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step; observations also of the row after, but at the end of an episode."""
    row = spot.first + spot.step
    info, episodes, tasks = _described(spot.root / spot.facts["root"])
    for name, key in spot.facts["columns"].items():
        for at in (row, row + 1) if name.split("/")[0] == "observation" and not spot.is_last else (row,):
            field = name if at == row else f"next/{name}"
            if info.features.get(key, {}).get("dtype") == "video":
                yield from _frame(spot, field, key, at, info, episodes)
            else:
                value = _table(spot.file)[key][at].as_py()
                yield Cell(field, f"{key}[{at}]", _value(spot, name, value, key, tasks))


def _value(spot: Spot, name: str, value: Any, key: str, tasks: dict[int, str]) -> Any:
    """A value as the store has it: images of depth decoded, others as they are encoded."""
    if name in spot.facts.get("nested", ()):
        return None if value is None else tables.json_text(value)
    if isinstance(value, dict):
        found = depth.image(value["bytes"])
        return value["bytes"] if found is None else depth.decode_one(value["bytes"], found, key)
    if key == TASK:
        return tasks[value]
    return value if isinstance(value, str | bytes) or value is None else np.asarray(value)


def _frame(spot: Spot, field: str, key: str, row: int, info: Info, episodes: dict[str, Listed]) -> Iterator[Cell]:
    """The packet of the frame that is shown at the time of a row."""
    try:
        import av
    except ImportError:
        return
    name, begin = episodes[spot.group].videos[key]
    time = begin + _table(spot.file)["timestamp"][row].as_py()
    with av.open(str(info.root / name)) as container:
        stream = container.streams.video[0]
        unit = float(stream.time_base or 0)
        container.seek(int(time / unit), stream=stream)
        packets = (p for p in container.demux(stream) if p.size and p.pts is not None)
        best = None
        for packet in packets:
            if best is None or abs(packet.pts * unit - time) < abs(best.pts * unit - time):
                best = packet
            if packet.dts is not None and packet.dts * unit > time + 1 / info.fps:
                break
        if best is not None:
            yield Cell(field, f"{name} at {time:.3f} s", bytes(best))


@lru_cache(maxsize=4)
def _table(file: Path) -> Any:
    return tables.table(file)


@lru_cache(maxsize=4)
def _described(root: Path) -> tuple[Info, dict[str, Listed], dict[int, str]]:
    info = description.read(root / "meta" / "info.json")
    files = list(trees.files(root))
    cameras = [key for key, f in info.features.items() if f["dtype"] == "video"]
    listed = description.episodes(info, files, cameras)
    return info, {f"episode_{e.number}": e for e in listed}, description.tasks(info, files)
