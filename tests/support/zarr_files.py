"""Zarr stores that docs/reference/zarr.md speaks of, and the reader of its page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import zarr

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "zarr.md"


def documented(directory: Path, old: str = "", new: str = "") -> str:
    """Write the reader of the page to a file, with something in it replaced."""
    (code,) = re.findall(r"<!-- reader -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    assert old in code
    (reader := directory / "rig.py").write_text(code.replace(old, new))
    return str(reader)


def sessions(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Write two sessions, of two trials and of one, and return their arrays."""
    rng = np.random.default_rng(0)
    root, held = zarr.open_group(path, mode="w"), dict[str, dict[str, np.ndarray]]()
    for name, trials in (("a", [(0, 2, 1), (3, 3, 0)]), ("b", [(0, 4, 0)])):
        group = root.create_group(f"sessions/{name}", attributes={"operator": name * 2, "tasks": ["push", "pull"]})
        rows = trials[-1][1] + 1
        data = {"q": rng.normal(size=(rows, 2, 7)), "cam": rng.integers(0, 255, (rows, 4, 4, 3)).astype("u1")}
        data |= {"cmd": rng.normal(size=(rows, 7)), "trials": np.array(trials)}
        for key, values in data.items():
            group.create_array(key, data=values)
        held[name] = data
    return held


def write_desk(directory: Path) -> None:
    """Write the stores of the page into ``directory``, and its reader."""
    arrays = {"img": np.zeros((7, 8, 8, 3), np.uint8), "state": np.ones((7, 2)), "action": np.ones((7, 2))}
    held = {f"data/{name}": values for name, values in arrays.items()} | {"meta/episode_ends": np.array([4, 7])}
    _write(zarr.storage.LocalStore(directory / "pusht_cchi_v7_replay.zarr"), held)
    _write(zarr.storage.ZipStore(directory / "cup_in_the_wild.zarr.zip", mode="w"), held)
    rows = {"robot/q": np.ones((7, 2)), "cmd": np.ones((7, 1)), "trial": np.array([1, 1, 1, 1, 2, 2, 2])}
    _write(zarr.storage.LocalStore(directory / "mine.zarr"), rows)
    sessions(directory / "lab.zarr")
    documented(directory)


def _write(store: zarr.storage.LocalStore | zarr.storage.ZipStore, arrays: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(store, mode="w", zarr_format=2)
    for name, values in arrays.items():
        group.create_array(name, data=values)
    store.close()
