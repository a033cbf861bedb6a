"""What is applied to NumPy arrays and row by row. Workers import this module: nothing here may be slow to import."""

from __future__ import annotations

from typing import Any

import numpy as np

MEAN = {"position": np.linspace(-1, 1, 9, dtype=np.float32), "velocity": np.linspace(-1, 1, 8, dtype=np.float32)}
STD = {"position": np.linspace(1, 2, 9, dtype=np.float32), "velocity": np.linspace(1, 2, 8, dtype=np.float32)}


def joined(o: Any) -> np.ndarray:
    """Positions and velocities, normalised, side by side."""
    return np.concatenate([(o[n] - MEAN[n]) / STD[n] for n in MEAN], -1)


def normalise(episode: Any) -> Any:
    """Of whole episodes: every observation is there once."""
    episode["observation"] = joined(episode["observation"])
    return episode


def normalise_batch(batch: Any) -> Any:
    """Of transitions: observations and next observations."""
    for part in (batch, batch["next"]):
        part["observation"] = joined(part["observation"])
    return batch


def penalise(step: Any) -> Any:
    """Of one step: the reward less what the action costs."""
    step["next"]["reward"] = step["next"]["reward"] - 0.1 * np.square(step["action"]).sum()
    return step


def relabel(step: Any) -> Any:
    """Of one step: a reward for nearing the origin, less what the action costs."""
    o, after = step["observation"], step["next"]["observation"]
    nearer = np.linalg.norm(o["position"]) - np.linalg.norm(after["position"])
    cost = np.abs(step["action"]).max() + np.square(step["action"]).sum()
    slow = np.clip(np.abs(after["velocity"]), 0, 1).mean()
    step["next"]["reward"] = np.float32(nearer - 0.1 * cost - 0.01 * slow)[None]
    return step


def add_norm(episode: Any) -> Any:
    """One field more."""
    episode["info"] = {"norm": np.linalg.norm(episode["action"], axis=1)}
    return episode


def compute(episode: Any) -> Any:
    """Some 20 ms of Python for an episode of 1,000 steps, and next to nothing to read or write."""
    total = 0.0
    for reward in episode["next"]["reward"].tolist():
        for k in range(400):
            total += reward * k
    episode["next"]["reward"] += np.float32(total * 1e-9)
    return episode
