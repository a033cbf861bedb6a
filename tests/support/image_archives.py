"""Small archives in the layouts of V-D4RL, the DQN replay logs and Procgen, written as their authors' tools do."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def vd4rl_episode(steps: int, seed: int, *, size: int = 20, states: bool = True) -> dict[str, np.ndarray]:
    """One file's columns, ``steps`` + 1 rows: a row holds what led to it, so the first has no action and no reward."""
    rng = np.random.default_rng(seed)
    rows = steps + 1
    made = {
        "image": rng.integers(0, 256, (rows, size, size, 3), dtype="u1"),
        "action": rng.uniform(-1, 1, (rows, 2)).astype("f4"),
        "reward": rng.random(rows).astype("f4"),
        "discount": np.ones(rows, "f4"),
        "is_first": np.arange(rows) == 0,
        "is_last": np.arange(rows) == steps,
        "is_terminal": np.zeros(rows, bool),
    }
    made["action"][0], made["reward"][0] = 0, 0
    return made | ({"height": rng.random(rows).astype("f4")} if states else {})


def write_vd4rl(directory: Path, lengths: Sequence[int], **changes: Any) -> list[dict[str, np.ndarray]]:
    """64 px: one npz per episode, named by time and rows."""
    directory.mkdir(parents=True, exist_ok=True)
    made = [vd4rl_episode(n, k, **changes) for k, n in enumerate(lengths)]
    for k, columns in enumerate(made):
        np.savez_compressed(directory / f"2022010{k + 1}T000000-{k:032x}-{lengths[k] + 1}.npz", **columns)
    return made


def write_vd4rl_shards(directory: Path, lengths: Sequence[int], cuts: Sequence[int]) -> dict[str, np.ndarray]:
    """84 px: episodes end to end, cut before the rows ``cuts``; returns the rows of all shards."""
    directory.mkdir(parents=True, exist_ok=True)
    made = [vd4rl_episode(n, k, states=False) for k, n in enumerate(lengths)]
    step_type = [np.r_[0.0, np.ones(n - 1), 2.0] for n in lengths]
    rows = {
        "observation": np.concatenate([e["image"] for e in made]).transpose(0, 3, 1, 2),
        "step_type": np.concatenate(step_type),
    } | {key: np.concatenate([e[key] for e in made]) for key in ("action", "reward", "discount")}
    for k, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(rows["action"])], strict=True)):
        with h5py.File(directory / f"{k}.hdf5", "w") as f:
            for key, values in rows.items():
                f.create_dataset(key, data=values[a:b], compression="gzip")
    return rows


@dataclass
class ReplayLog:
    """Dopamine's circular buffer and the logger of the DQN replay data, by their documented order of writing.

    Before each episode ``stack`` - 1 rows of zeros are added. The buffer is written to disk whenever its number of
    adds, modulo its capacity, is the capacity less one: its last slot then holds what was there before.
    """

    directory: Path
    capacity: int = 20
    size: int = 16
    stack: int = 4
    count: int = 0
    logs: int = 0
    store: dict[str, np.ndarray] = field(default_factory=dict)
    truth: list[tuple[np.ndarray, int, float, int]] = field(default_factory=list)
    adds: list[int] = field(default_factory=list)  # which step of the truth each row is; -1 for padding

    def __post_init__(self) -> None:
        garbage = np.random.default_rng(99)
        self.store = {
            "observation": garbage.integers(0, 256, (self.capacity, self.size, self.size), dtype="u1"),
            "action": garbage.integers(50, 99, self.capacity, dtype="i4"),
            "reward": garbage.random(self.capacity).astype("f4"),
            "terminal": np.full(self.capacity, 101, "u1"),
        }
        self.directory.mkdir(parents=True, exist_ok=True)

    def episodes(self, lengths: Sequence[int], *, finish: bool = True) -> None:
        """Play episodes; the last one is left unfinished unless ``finish``."""
        rng = np.random.default_rng(sum(lengths))
        for k, length in enumerate(lengths):
            for _ in range(self.stack - 1):
                self.adds.append(-1)
                self._add(np.zeros((self.size, self.size), "u1"), 0, 0.0, 0)
            for t in range(length):
                terminal = int(t == length - 1 and (finish or k < len(lengths) - 1))
                frame = rng.integers(0, 256, (self.size, self.size), dtype="u1")
                step = (frame, int(rng.integers(0, 4)), float(rng.integers(-1, 2)), terminal)
                self.adds.append(len(self.truth))
                self.truth.append(step)
                self._add(*step)

    def expected(self, missing: Sequence[int] = ()) -> list[list[int]]:
        """The episodes that the dumps hold, as steps of the truth, by a slow loop over all rows ever added."""
        last = self.logs - 1
        episodes: list[list[int]] = [[]]
        for add, step in enumerate(self.adds):
            # Row C - 1 of a round is found in the dump of the next one, all others in their own.
            dump = add // self.capacity + (add % self.capacity == self.capacity - 1)
            if dump > last or dump in missing:
                episodes.append([])
            elif step >= 0:
                episodes[-1].append(step)
                if self.truth[step][3]:
                    episodes.append([])
        return [e for e in episodes if e]

    def final(self) -> None:
        """What is written at the end of training: the number of adds is the position."""
        count, self.count = self.count, self.count % self.capacity
        self._log()
        self.count = count

    def _add(self, frame: np.ndarray, action: int, reward: float, terminal: int) -> None:
        at = self.count % self.capacity
        for name, value in zip(self.store, (frame, action, reward, terminal), strict=True):
            self.store[name][at] = value
        self.count += 1
        if self.count % self.capacity == self.capacity - 1:
            self._log()

    def _log(self) -> None:
        at = self.count % self.capacity
        others = {
            "add_count": np.array(self.count),
            "invalid_range": (np.arange(self.stack + 1) + at - 1) % self.capacity,
        }
        for name, values in {**{f"$store$_{k}": v for k, v in self.store.items()}, **others}.items():
            with gzip.open(self.directory / f"{name}_ckpt.{self.logs}.gz", "wb") as f:
                np.save(f, values, allow_pickle=False)
        self.logs += 1


def dgrl_episode(steps: int, seed: int, *, dtype: str = "f4", size: int = 16) -> dict[str, np.ndarray]:
    """One episode as the recorder writes it: whole numbers as float32, dones as float32."""
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.integers(0, 256, (steps + 1, 3, size, size)).astype(dtype),
        "actions": rng.integers(0, 15, (steps, 1)),
        "rewards": rng.integers(0, 2, (steps, 1)).astype("f4"),
        "dones": (np.arange(steps) == steps - 1).astype("f4"),
    }


def npz_bytes(columns: Mapping[str, np.ndarray]) -> bytes:
    """What ``np.savez_compressed`` writes."""
    f = io.BytesIO()
    np.savez_compressed(f, **columns)
    return f.getvalue()


def write_tar(path: Path, members: Sequence[tuple[str | tarfile.TarInfo, bytes]], mode: str = "w:xz") -> None:
    """Members by name, or with a header of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def write_dgrl(path: Path, lengths: Sequence[int], **changes: Any) -> list[dict[str, np.ndarray]]:
    """A tar.xz of one npz per episode, named by time, number, length, level and return."""
    made = [dgrl_episode(n, k, **changes) for k, n in enumerate(lengths)]
    names = [
        f"bigfish/20220101T000000_{k}_{n}_{k + 40}_{made[k]['rewards'].sum():.2f}.npz" for k, n in enumerate(lengths)
    ]
    write_tar(path, [(name, npz_bytes(e)) for name, e in zip(names, made, strict=True)])
    return made


def write_pickled_dgrl(path: Path, lengths: Sequence[int]) -> list[dict[str, np.ndarray]]:
    """The same, pickled: a dict as an array of one object."""
    made = [dgrl_episode(n, k) for k, n in enumerate(lengths)]
    contents = []
    for episode in made:
        f = io.BytesIO()
        np.save(f, np.array(episode, dtype=object), allow_pickle=True)
        contents.append(f.getvalue())
    write_tar(
        path, [(f"bigfish/t_{k}_{n}_0.00.npy", c) for k, (n, c) in enumerate(zip(lengths, contents, strict=True))]
    )
    return made


def write_desk(directory: Path) -> None:
    """What the pages of these families speak of."""
    write_vd4rl(directory / "walker_walk/random/64px", [6, 6])
    write_vd4rl_shards(directory / "walker_walk/random/84px", [6, 6], [4])
    ragged = directory / "humanoid_walk/medium_replay/64px"
    write_vd4rl(ragged, [6, 6])
    bad = vd4rl_episode(6, 3)
    np.savez_compressed(ragged / "20220109T000000-3-7.npz", **bad | {"image": bad["image"][:-1]})
    ReplayLog(directory / "Breakout/1/replay_logs").episodes([15, 8, 12, 30])
    write_dgrl(directory / "bigfish.tar.xz", [5, 9])
    write_dgrl(directory / "converted.tar", [5, 9])
