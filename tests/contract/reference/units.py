"""What functions of each unit make of an episode, by NumPy and loops over its steps.

Each takes an episode, a dict of arrays, and gives the fields that are other than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reference import returns

Episode = Mapping[str, Any]


def returns_in_words(episode: Episode, gamma: float) -> dict[str, np.ndarray]:
    """Unit ``episode``: the discounted sum of what is to come at each step, and its mood."""
    reward = episode["next"]["reward"].tolist()
    sums = returns.to_go(reward, [False] * len(reward), gamma)
    return {"to_go": np.array(sums), "mood": np.array(["good" if x > 0 else "bad" for x in sums], object)}


def normalised(episode: Episode, mean: np.ndarray, std: np.ndarray) -> dict[str, np.ndarray]:
    """Units ``batch`` and ``step``: every row of observations, final ones as well, and what they were."""
    rows = [(row - mean) / std for row in episode["observation"]]
    return {"observation": np.stack(rows), "observation_raw": episode["observation"]}


def smoothed(episode: Episode, history: int, future: int) -> dict[str, np.ndarray]:
    """Unit ``window``: the mean of the actions around each step, as far as there are any."""
    action = episode["action"]
    means = []
    for t in range(len(action)):
        around = [action[i] for i in range(t - history, t + future + 1) if 0 <= i < len(action)]
        means.append(np.mean(around, axis=0))
    return {"smooth": np.stack(means)}


def doubled(episode: Episode) -> dict[str, np.ndarray]:
    """Of any unit: actions times two."""
    return {"action": np.stack([row * 2 for row in episode["action"]])}


def standardised(episode: Episode, everything: Sequence[Episode]) -> dict[str, np.ndarray]:
    """Two passes: observations by the mean and deviation over the steps of all episodes."""
    rows = [row for e in everything for row in e["observation"][: len(e["action"])]]
    steps = np.array(rows, np.float64)
    return {"observation": (episode["observation"] - steps.mean(0)) / steps.std(0)}


def halves(fields: Mapping[str, np.ndarray], steps: int) -> Iterator[dict[str, np.ndarray]]:
    """An episode as two: the observation in the middle ends the first and begins the second."""
    for first, end in ((0, steps // 2), (steps // 2, steps)):
        yield {name: rows[first : end + (len(rows) > steps)] for name, rows in fields.items()}
