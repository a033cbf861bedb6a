"""The rewards that a dataset without ``next/reward`` has: named ones, and those of groups of agents."""

from __future__ import annotations

from collections.abc import Iterable

from rlds_cli.errors import NoReward
from rlds_cli.ted import REWARD


def other_rewards(id: str, fields: Iterable[str]) -> NoReward | None:
    """Return the error that names ``next/reward/speed`` or ``next/agents/reward``; None without such fields."""
    parts = ((n, n.split("/")) for n in sorted(fields) if n.startswith("next/") and n != REWARD)
    names = [n for n, (_, *rest) in parts if rest[0] != "info" and "reward" in rest]
    if not names:
        return None
    if all(n.startswith(f"{REWARD}/") for n in names):
        return NoReward(
            f"{id} has several rewards and no {REWARD}: {', '.join(names)}.",
            hint="ask for one of them by name; a preprocess function can sum them into next/reward",
        )
    return NoReward(
        f"{id} has no {REWARD}; groups of agents have their own: {', '.join(names)}.",
        hint=f"fields= gives them by name; rlds preprocess {id} --fn rename_fields --arg names={names[0]}={REWARD}"
        f" makes {'it' if len(names) == 1 else 'one of them'} the reward",
    )
