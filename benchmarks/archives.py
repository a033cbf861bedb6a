"""Archives as large as the published ones, made on the spot: the layouts are real, the numbers are noise."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

EPISODE = 1000


def d4rl_v2(path: Path, steps: int = 1_000_000, observation: int = 17, action: int = 6, episode: int = EPISODE) -> Path:
    """A MuJoCo v2 file: gzip, next_observations, infos, metadata; every episode ends by its timeout."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    episodes = steps // episode
    walk = rng.standard_normal((episodes, episode + 1, observation), np.float32)
    for t in range(1, episode + 1):  # an AR(1) process: neighbouring steps are alike, as in a trajectory
        walk[:, t] += 0.95 * walk[:, t - 1]
    columns = {
        "observations": walk[:, :-1].reshape(-1, observation),
        "next_observations": walk[:, 1:].reshape(-1, observation),
        "actions": np.tanh(rng.standard_normal((steps, action), np.float32)),
        "rewards": rng.standard_normal(steps).astype(np.float32),
        "terminals": np.zeros(steps, bool),
        "timeouts": np.arange(1, steps + 1) % episode == 0,
        "infos/qpos": np.repeat(walk[:, :-1, :1].reshape(-1, 1), 9, 1).astype(np.float64) + rng.random(9),
        "infos/qvel": np.repeat(walk[:, :-1, 1:2].reshape(-1, 1), 9, 1).astype(np.float64) + rng.random(9),
        "infos/action_log_probs": rng.standard_normal(steps).astype(np.float32),
        "metadata/policy/fc0/weight": rng.standard_normal((256, observation)).astype(np.float32),
    }
    unfinished = path.with_suffix(".part")
    with h5py.File(unfinished, "w") as f:
        for name, values in columns.items():
            f.create_dataset(name, data=values, compression="gzip")
    unfinished.rename(path)
    return path
