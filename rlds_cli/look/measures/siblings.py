"""Compare the motion of each episode with that of others: whose text it has, and how near the nearest one is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds_cli.base.array_types import Array, IntArray

NEAREST = 5  # episodes
_AT_ONCE = 256
_MOST = 10_000  # episodes that each is compared with: evenly spaced ones of more


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """The share of the nearest episodes that have the same task, and the distance to the nearest one [episodes]."""

    same_task: Array
    distance: Array


def near(signatures: Array, tasks: IntArray) -> Near:
    """Compare motions [episodes, n], NaN where they are not known; ``tasks`` are codes of texts, -1 for none."""
    count = len(signatures)
    nothing = np.full(count, np.nan)
    known = np.isfinite(signatures).any(axis=1) if signatures.ndim == 2 else np.zeros(count, bool)
    if known.sum() < 2:
        return Near(same_task=nothing, distance=nothing)
    scaled = np.nan_to_num(signatures - np.nanmean(signatures[known], axis=0))
    spread = scaled[known].std(axis=0)
    with np.errstate(divide="ignore"):
        scaled = (scaled * np.where(spread > 0, 1 / spread, 0) / np.sqrt(scaled.shape[1])).astype(np.float32)
    others = np.flatnonzero(known)
    others = others[np.linspace(0, len(others) - 1, min(len(others), _MOST)).astype(np.int64)]
    size = (scaled**2).sum(axis=1)
    of_task = np.bincount(tasks[tasks >= 0], minlength=1) if (tasks >= 0).any() else np.zeros(1, np.int64)
    same, distance = nothing.copy(), nothing.copy()
    for a in range(0, count, _AT_ONCE):
        some = np.arange(a, min(a + _AT_ONCE, count))
        squared = size[some][:, None] + size[others] - 2 * scaled[some] @ scaled[others].T
        squared[others[None] == some[:, None]] = np.inf
        order = np.argpartition(squared, min(NEAREST, len(others) - 1) - 1, axis=1)[:, :NEAREST]
        nearest = others[order[np.arange(len(some)), np.take_along_axis(squared, order, axis=1).argmin(axis=1)]]
        distance[some] = np.sqrt(
            ((scaled[some] - scaled[nearest]) ** 2).sum(axis=1)
        )  # 0 for equal ones, unlike `squared`
        possible = np.clip(of_task[np.maximum(tasks[some], 0)] - 1, 1, order.shape[1])
        equal = (tasks[others][order] == tasks[some][:, None]).sum(axis=1)
        same[some] = np.where(tasks[some] >= 0, np.minimum(1, equal / possible), np.nan)
    same[~known] = distance[~known] = np.nan
    return Near(same_task=same, distance=distance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The number of the nearest episode of another dataset, and the distance to it [episodes]."""

    number: IntArray
    distance: Array


def nearest(signatures: Array, others: Array) -> Nearest:
    """Compare motions [episodes, n] with all of those of another dataset [others, n], in spreads as `near` has them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.nanstd(signatures, axis=0)
        unit = np.where(spread > 0, 1 / spread, 0) / np.sqrt(max(1, signatures.shape[1]))
    centre = np.nanmean(signatures, axis=0)
    a, b = (np.nan_to_num((x - centre) * unit).astype(np.float32) for x in (signatures, others))
    number, size = np.zeros(len(a), np.int64), (b**2).sum(axis=1)
    for k in range(0, len(a), _AT_ONCE):
        some = slice(k, k + _AT_ONCE)
        number[some] = (size - 2 * a[some] @ b.T).argmin(axis=1)
    return Nearest(number=number, distance=np.sqrt(((a - b[number]) ** 2).sum(axis=1)))
