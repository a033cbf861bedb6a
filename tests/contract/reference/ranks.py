"""Which samples of a global batch each rank reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def places(samples: int, rank: int, world: int) -> list[int]:
    """Numbers within a batch of so many samples: every world-th; of a batch of fewer, one that others may have too."""
    return list(range(rank, samples, world)) if samples >= world else [rank % samples]


def part(batch: Sequence[Any], rank: int, world: int) -> list[Any]:
    """The samples of ``batch`` that are those of a rank."""
    return [batch[i] for i in places(len(batch), rank, world)]
