"""Directories as TensorDict writes them, and genuine ones of TorchRL, unpacked."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from archive_rows import Rows
from tensordict import TensorDict

from rlds_cli.look import choose_files

DATA = Path(__file__).parents[1] / "data" / "torchrl"


def unpack(directory: Path) -> Path:
    """What TorchRL dumped, each in a directory of its own."""
    with tarfile.open(DATA / "dumps.tar.xz") as tar:
        tar.extractall(directory, filter="data")
    return directory


def rows(directory: Path, **about: Any) -> Rows:
    """Everything that the reader gives for a directory."""
    return Rows("torchrl", *choose_files([directory]).files, root=directory, **about)


def walk(lengths: list[int], *, seed: int = 0, width: int = 3) -> dict[str, np.ndarray]:
    """TED's columns of some episodes, which end by turns terminated and truncated; every value is another."""
    rng = np.random.default_rng(seed)
    walks = [rng.normal(size=(n + 1, width)).astype(np.float32) for n in lengths]
    steps, last = sum(lengths), np.cumsum(lengths) - 1
    return {
        "observation": np.concatenate([w[:-1] for w in walks]),
        "action": rng.normal(size=(steps, 2)).astype(np.float32),
        "next/observation": np.concatenate([w[1:] for w in walks]),
        "next/reward": rng.normal(size=(steps, 1)).astype(np.float32),
        "next/terminated": np.isin(np.arange(steps), last[::2])[:, None],
        "next/truncated": np.isin(np.arange(steps), last[1::2])[:, None],
        "next/done": np.isin(np.arange(steps), last)[:, None],
        "done": np.zeros((steps, 1), bool),
    }


def tensordict(columns: dict[str, Any], batch: tuple[int, ...] | None = None) -> TensorDict:
    """A TensorDict of columns, nested by the ``/`` in their names."""
    td = TensorDict({}, batch or (len(next(iter(columns.values()))),))
    for name, values in columns.items():
        key = tuple(name.split("/")) if "/" in name else name
        td[key] = torch.from_numpy(values.copy()) if isinstance(values, np.ndarray) else values
    return td


def written(directory: Path, columns: dict[str, Any], batch: tuple[int, ...] | None = None) -> Path:
    """The directory of a memory-mapped TensorDict."""
    tensordict(columns, batch).memmap(directory)
    return directory


def write_desk(directory: Path) -> None:
    """The directories that the pages about TorchRL speak of: a dump of a buffer, rollouts, and an old cache."""
    with tarfile.open(DATA / "dumps.tar.xz") as tar:
        members = [m for m in tar if m.name.startswith("ted_wrapped/")]
        tar.extractall(directory, members, filter="data")
    (directory / "ted_wrapped").rename(directory / "my_buffer")
    lanes = [walk([8], seed=k) for k in range(3)]
    written(directory / "rollouts", {k: np.stack([lane[k] for lane in lanes]) for k in lanes[0]}, (3, 8))
    cached = walk([3, 2, 4])
    cached["next/observation"][[2, 4]] = 0
    (directory / ".cache/torchrl/d4rl").mkdir(parents=True)
    written(directory / ".cache/torchrl/d4rl/walker2d-expert-v2", cached)
