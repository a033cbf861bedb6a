"""Which rows may be the goal of a step, how likely each is, and how far it lies ahead."""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[int, int]  # episode, row


def chances(
    recorded: Sequence[int],
    episode: int,
    step: int,
    shares: tuple[float, float, float],
    horizon: str | int,
    gamma: float,
) -> dict[Row, float]:
    """The chance of every row to be the goal of a step.

    ``recorded`` says how many rows of each episode hold an observation; ``shares`` are those of the step's own row, of
    its future, and of any row.
    """
    current, future, anywhere = shares
    found = {(k, row): anywhere / sum(recorded) for k, rows in enumerate(recorded) for row in range(rows)}
    found[episode, step] += current
    for row, chance in ahead(recorded[episode], step, horizon, gamma).items():
        found[episode, row] += future * chance
    return {row: chance for row, chance in found.items() if chance}


def ahead(rows: int, step: int, horizon: str | int, gamma: float) -> dict[int, float]:
    """Of the future of a step in an episode of so many rows; its own row where nothing lies ahead."""
    last = rows - 1
    if horizon == "episode":
        return dict.fromkeys(range(rows), 1 / rows)
    if step >= last:
        return {step: 1.0}
    if horizon == "final":
        return {last: 1.0}
    if horizon == "uniform":
        return dict.fromkeys(range(step + 1, rows), 1 / (last - step))
    if horizon == "geometric":
        near = {step + k: (1 - gamma) * gamma ** (k - 1) for k in range(1, last - step)}
        return near | {last: 1 - sum(near.values())}
    return {min(step + int(horizon), last): 1.0}


def distance(episode: int, step: int, goal: Row) -> int:
    """Steps to the goal; -1 where it lies behind or in another episode."""
    return goal[1] - step if goal[0] == episode and goal[1] >= step else -1
