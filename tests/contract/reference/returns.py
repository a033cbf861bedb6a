"""Returns to go, from the end of an episode."""

from __future__ import annotations

from collections.abc import Sequence


def to_go(
    rewards: Sequence[float], terminated: Sequence[bool], gamma: float, *, through_terminals: bool = False
) -> list[float]:
    """The sum of rewards from each step to the first terminated one, or to the end, in float64."""
    sums: list[float] = []
    after = 0.0
    for reward, stop in zip(reversed(rewards), reversed(terminated), strict=True):
        after = float(reward) if stop and not through_terminals else float(reward) + gamma * after
        sums.append(after)
    return sums[::-1]
