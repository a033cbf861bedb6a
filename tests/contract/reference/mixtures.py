"""What a mixture of datasets draws: of each member an order of its own, taken by turns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from reference import samplers


def seed_of(seed: int, epoch: int, name: str) -> int:
    """The seed of a member."""
    return int.from_bytes(hashlib.sha256(f"{seed} {epoch} {name}".encode()).digest()[:8], "little")


def member_order(counts: Sequence[int], seed: int, name: str, samples: int) -> list[tuple[int, int]]:
    """Windows of a shuffled member, epoch after epoch."""
    drawn: list[tuple[int, int]] = []
    epoch = 0
    while len(drawn) < samples:
        drawn += samplers.shuffled(counts, seed_of(seed, 0, name), epoch)
        epoch += 1
    return drawn[:samples]


def shares(sizes: Mapping[str, float]) -> dict[str, float]:
    """By weight, or by number of windows."""
    return {name: size / sum(sizes.values()) for name, size in sizes.items()}
