"""Datasets of several sizes, made once under ``.bench-data/preprocess``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from results import DATA

import rlds_cli
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import RldsError

HOME = DATA / "preprocess"
EPISODE = 1000
FEW, MANY, MOST = 200_000, 1_000_000, 20_000_000


def steps(count: int) -> Dataset:
    """Episodes of 1,000 steps: positions [9], velocities [8], actions [6], rewards (float32), flags."""
    id = f"local/steps-{count}"
    try:
        return open_dataset(id, home=HOME)
    except RldsError:
        return rlds_cli.create(id, _episodes(count), home=HOME)


def _episodes(count: int) -> Iterator[dict[str, Any]]:
    for k in range(count // EPISODE):
        rng = np.random.default_rng(k)
        yield {
            "observation": {
                "position": rng.standard_normal((EPISODE + 1, 9), np.float32),
                "velocity": rng.standard_normal((EPISODE + 1, 8), np.float32),
            },
            "action": rng.standard_normal((EPISODE, 6), np.float32),
            "next": {"reward": rng.standard_normal(EPISODE, np.float32), "truncated": True},
        }


def torchrl(count: int) -> Path:
    """The same steps as a memory-mapped TensorDict, as TorchRL keeps its datasets."""
    place = HOME / f"torchrl-{count}"
    if place.exists():
        return place
    import torch
    from tensordict import TensorDict

    def tensor(name: str) -> torch.Tensor:
        values = ds.column(name)  # [rows, ...], with the final row of every episode
        return torch.from_numpy(np.ascontiguousarray(values))

    ds = steps(count)
    last = np.cumsum(ds.episodes["length"] + 1) - 1
    first = np.delete(np.arange(last[-1] + 1), last)
    td = TensorDict({"next": TensorDict({}, [count])}, [count])
    for name in ("position", "velocity"):
        values = tensor(f"observation/{name}")
        td["observation", name], td["next", "observation", name] = values[first], values[first + 1]
    td["action"] = tensor("action")[first]
    for name in ("reward", "terminated", "truncated"):
        td["next", name] = tensor(f"next/{name}")[first][:, None]
    td["next", "done"] = td["next", "terminated"] | td["next", "truncated"]
    unfinished = place.with_suffix(".part")
    td.memmap(unfinished, num_threads=2)
    unfinished.rename(place)
    return place
