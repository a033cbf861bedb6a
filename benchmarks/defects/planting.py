"""The kinds of faults that are planted: those of the generator, and a join of two episodes.

A join is what a recorder leaves that forgets to begin a new episode: from some step on, the rows are those of another
take. The episode keeps its length, its stamps and its reward.
"""

from __future__ import annotations

import generator
import numpy as np
from generator import FAULTS, TASKS, TWINS, Episode

JOIN = "jump"
CODES = (*FAULTS, *TWINS, JOIN)


def planted(seed: int, strength: int, episodes: int) -> tuple[list[Episode], dict[str, int]]:
    """Return episodes, and the number of the one with each fault by code; strength -1 plants none."""
    made, places = generator.planted(seed, strength, episodes)
    if strength >= 0:
        kept = set(places.values()) | twins(made, places)
        places[JOIN] = next(k for k in reversed(range(episodes)) if k not in kept)
        rng = np.random.default_rng([seed, strength + 1, len(CODES)])
        made[places[JOIN]] = _joined(made[places[JOIN]], strength, rng)
    return made, places


def twins(made: list[Episode], places: dict[str, int]) -> set[int]:
    """Return the episodes that others were copied of, which findings may name in their place."""
    copies = [made[places[code]].action for code in TWINS if code in places]
    return {k for k, e in enumerate(made) if any(e.action is c for c in copies)}


def _joined(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    """Let another take begin in the middle: of its task from a quarter on, from its start, and of another task."""
    kind = (TASKS.index(e.task) + (0, 0, 1)[k]) % len(TASKS)
    half, more = len(e.action) // 2, len(e.action) - len(e.action) // 2
    other = generator.episode(rng, kind)
    while len(other.action) * 0.75 < more:
        other = generator.episode(rng, kind)
    first = (len(other.action) // 4, 0, 0)[k]
    a, b = e.at(np.arange(half)), other.at(np.arange(first, first + more))
    rows = {n: np.concatenate([getattr(a, n), getattr(b, n)]) for n in _OF_ROWS}
    cameras = {n: np.concatenate([f, b.cameras[n]]) for n, f in a.cameras.items()}
    return Episode(**rows, cameras=cameras, stamp=e.stamp, reward=e.reward, task=e.task, success=e.success)


_OF_ROWS = ("action", "joints", "velocities", "opening")
