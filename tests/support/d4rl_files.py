"""Small files in D4RL's layout, and all that the reader gives for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives import Archive, Plan, Replan
from rlds_cli.archives.d4rl import read as d4rl
from rlds_cli.ted import EpisodeTable


class Rows:
    """Everything that a reader gives for some files, parts and chunks joined."""

    def __init__(self, *files: Path, episodes_by: str | None = None, fields: Mapping[str, str] | None = None) -> None:
        plan = d4rl.READER.plan(Archive(files[0].parent, files, episodes_by, fields or {}))
        try:
            chunks = [[*d4rl.READER.read(plan, part)] for part in plan.parts]
        except Replan as better:
            plan = better.plan
            chunks = [[*d4rl.READER.read(plan, part)] for part in plan.parts]
        self.plan: Plan = plan
        for part, of_part in zip(plan.parts, chunks, strict=True):
            assert part.rows in (None, sum(len(c) for c in of_part))
        self.chunks = [c for of_part in chunks for c in of_part]
        self.schema = {f.name: f for f in plan.schema}
        self.episodes = EpisodeTable.concat([c.episodes for c in self.chunks])
        self.notes = [n for c in self.chunks for n in c.notes] + list(plan.notes)
        for c in self.chunks:
            assert set(c.columns) == set(self.schema)
            assert {len(v) for v in c.columns.values()} == {len(c.last)}
        self.last = np.concatenate([c.last for c in self.chunks]) if self.chunks else np.zeros(0, bool)
        assert np.array_equal(
            np.flatnonzero(self.last), np.cumsum(self.episodes.length + 1) - 1 if len(self.episodes) else []
        )

    def __getitem__(self, name: str) -> Any:
        columns = [c.columns[name] for c in self.chunks]
        if self.schema[name].kind == "text":
            return [v for c in columns for v in c]
        joined = np.concatenate(columns)
        assert joined.dtype == self.schema[name].dtype and joined.shape[1:] == self.schema[name].shape
        return joined

    def codes(self) -> dict[str, int]:
        return {code: sum(n.count for n in self.notes if n.code == code) for code in {n.code for n in self.notes}}


def write(path: Path, **columns: Any) -> Path:
    with h5py.File(path, "w") as f:
        for key, value in columns.items():
            f.create_dataset(key.replace("__", "/"), data=value)
    return path


def ramp(n: int, width: int = 2, dtype: str = "float32") -> np.ndarray:
    return (np.arange(n)[:, None] + np.arange(width) / 10).astype(dtype)


def flags(n: int, *rows: int, dtype: Any = bool) -> np.ndarray:
    out = np.zeros(n, dtype)
    out[list(rows)] = 1
    return out
