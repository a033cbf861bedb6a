"""Divide episodes into parts: at random by shares, or by the values of an episode column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray


def groups(column: Array) -> dict[Any, IntArray]:
    """Return the episodes [n] of each value of an episode column, values in sorted order; None and NaN as None, last.

    Parameters
    ----------
    column : array [num_episodes]
        Bools, numbers or texts.
    """
    values = [None if value is None or value != value else value for value in column.tolist()]
    numbers: dict[Any, list[int]] = {}
    for k, value in enumerate(values):
        numbers.setdefault(value, []).append(k)
    return {value: np.array(numbers[value]) for value in sorted(numbers, key=lambda v: (v is None, v))}


def divide(shares: Sequence[float], count: int, seed: int, groups: Sequence[IntArray] | None = None) -> list[IntArray]:
    """Return the episodes of each part, in ascending order; the shuffle depends on the seed alone.

    Parameters
    ----------
    shares : sequence of float
        Of ``count`` episodes, not negative, together at most 1.
    groups : sequence of int arrays, optional
        Episodes that stay together. A part ends at the group whose end is nearest to where its share ends. A part
        whose share is not zero has a group, if there are enough of them.
    """
    rng = np.random.default_rng(seed)
    ends = np.cumsum(shares) * count
    if groups is None:
        order, cuts = rng.permutation(count), np.round(ends).astype(np.int64)
    else:
        shuffled = [groups[i] for i in rng.permutation(len(groups))]
        order = np.concatenate([*shuffled, np.empty(0, np.int64)])
        cuts = _cuts(np.cumsum([0, *(len(g) for g in shuffled)]), ends)
    return [np.sort(part) for part in np.split(order, cuts)[: len(shares)]]


def _cuts(borders: IntArray, ends: Array) -> IntArray:
    """Return the border nearest to each of ``ends``; parts that are not empty by their share get a group each."""
    nearest = np.abs(borders[:, None] - ends).argmin(axis=0)
    filled = np.diff(ends, prepend=0) > 0
    last, before = len(borders) - 1, 0
    for i, some in enumerate(filled):
        later = int(filled[i + 1 :].sum())
        nearest[i] = before = max(before, min(max(nearest[i], before + some), last - later))
    cuts: IntArray = borders[nearest]
    return cuts
