"""N-step transitions: the number of steps that each sums, and the sum of their rewards.

For large datasets both are computed once for every row and kept in packed files: a batch then reads one number per
sample instead of the flags and rewards of n rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.loader.index import EpisodeIndex, PrefixIndex
from rlds_cli.loader.storage import packed
from rlds_cli.loader.windows.samples import ColumnRows
from rlds_cli.ted import FLAGS, REWARD, Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

LEAST_ROWS = 1 << 18  # with fewer rows, flags and rewards stay in the processor's cache
MOST_ROWS = 1 << 26  # more would delay the start of a loader: 60 ms a million
_CHUNK = 1 << 16  # transitions computed at a time


@dataclass(frozen=True, slots=True)
class Reach:
    """Computes the steps that a transition sums: up to n, the first done or the episode's last transition.

    Attributes
    ----------
    n_step : int
    terminated, truncated : ColumnRows
    known : ColumnRows or None
        The steps from every row, where they are stored.
    kept : str
        The place of ``known``, or the reason why there is none; empty for small datasets.
    """

    n_step: int
    terminated: ColumnRows
    truncated: ColumnRows
    known: ColumnRows | None = None
    kept: str = ""

    def __call__(self, table: EpisodeIndex, episode: IntArray, step: IntArray) -> IntArray:
        """Return the steps summed from ``step`` [K] of ``episode`` [K] on."""
        row = table.start.take(episode) + step
        if self.known is not None:
            return self.known.take(row).astype(np.int64)
        left = table.transitions.take(episode) - step
        span: IntArray = np.minimum(left, self.n_step)
        for j in range(self.n_step - 1):
            at = row + np.minimum(j, left - 1)
            done = self.terminated.take(at) | self.truncated.take(at)
            span[done & (span > j)] = j + 1
        return span


def reward_sum(
    reward: ColumnRows, gamma: float, transform: Callable[[Array], Array] | None, row: IntArray, span: Any
) -> Array:
    """Sum ``gamma**j * transform(reward)`` over the ``span`` [K] rows from each ``row`` [K] on, in float64."""
    shape = reward.values.shape[1:]
    total = np.zeros((len(row), *shape))
    for j in range(int(np.max(span, initial=0))):
        value = reward.take(row + np.minimum(j, span - 1))
        value = (value if transform is None else transform(value)).astype(np.float64)
        total += np.where((j < span).reshape(-1, *(1,) * len(shape)), gamma**j * value, 0.0)
    return total


def sum_dtype(reward: np.dtype[Any], floats: str | None) -> np.dtype[Any]:
    """Return the dtype of sums and discounts for the working dtype ``floats``; None is the archive's own."""
    return np.result_type(reward, np.float32) if floats is None else np.dtype(floats)


WorkOut = Callable[[EpisodeIndex, IntArray, IntArray], Array]  # a value for each transition: table, episodes, steps


def keep_reach(dataset: Dataset, reach: Reach, budget: int) -> Reach:
    """Return ``reach`` with the steps of all rows of a large dataset, computed once."""
    if not LEAST_ROWS <= dataset.store.manifest.counts.rows <= MOST_ROWS:
        return reach
    key = {"steps summed up": reach.n_step}
    known, where = _kept(dataset, key, np.min_scalar_type(reach.n_step), reach, budget)
    return replace(reach, known=known, kept=where)


def keep_sums(
    dataset: Dataset, reach: Reach, reward: ColumnRows, gamma: float, kind: np.dtype[Any], budget: int
) -> ColumnRows | None:
    """Return the sums of rewards from every row of a large dataset, [rows, 1] of ``kind``; None if not stored."""
    if reach.known is None or reward.values.ndim > 1:
        return None
    key = {"rewards summed up in float64": reach.n_step, "gamma": gamma, "dtype": kind.name}
    kept, _ = _kept(dataset, key, kind, _sums(reach, reward, gamma), budget)
    return None if kept is None else ColumnRows(kept.values[:, None])


def reach_parts(dataset: Dataset, n_step: int) -> Iterator[Array]:
    """Compute the content of `keep_reach` again."""
    return _parts(dataset, np.min_scalar_type(n_step), _reach(dataset, n_step))


def sum_parts(dataset: Dataset, n_step: int, gamma: float, kind: np.dtype[Any]) -> Iterator[Array]:
    """Compute the content of `keep_sums` again."""
    return _parts(dataset, kind, _sums(_reach(dataset, n_step), ColumnRows(dataset.column(REWARD)), gamma))


def _reach(dataset: Dataset, n_step: int) -> Reach:
    terminated, truncated = (ColumnRows(dataset.column(name)) for name in FLAGS)
    return Reach(n_step, terminated, truncated)


def _sums(reach: Reach, reward: ColumnRows, gamma: float) -> WorkOut:
    def sums(table: EpisodeIndex, episode: IntArray, step: IntArray) -> Array:
        row = table.start.take(episode) + step
        return reward_sum(reward, gamma, None, row, reach(table, episode, step))

    return sums


def _kept(
    dataset: Dataset, key: dict[str, Any], kind: np.dtype[Any], work_out: WorkOut, budget: int
) -> tuple[ColumnRows | None, str]:
    """Open or build a column over all transitions of the store; return it and its place, or the reason for none."""
    size = dataset.store.manifest.counts.rows * kind.itemsize
    held = packed.open_or_build(
        dataset, key, size, lambda: _parts(dataset, kind, work_out), kind="steps", budget=budget
    )
    where = held.place if held.where else f"computed at each gather: {held.reason}"
    return None if held.array is None else ColumnRows(held.array.view(kind)), where


def _parts(dataset: Dataset, kind: np.dtype[Any], work_out: WorkOut) -> Iterator[Array]:
    """Yield the column from the first row on."""
    everything = type(dataset)(dataset.store)
    table = EpisodeIndex.of(everything)
    table = table.where(table.transitions > 0)
    prefix, done = PrefixIndex(table.transitions), 0
    for first in range(0, prefix.total, _CHUNK):
        episode, step = prefix.find(np.arange(first, min(first + _CHUNK, prefix.total)))
        row = table.start.take(episode) + step
        part = np.zeros(int(row[-1]) + 1 - done, kind)
        part[row - done] = work_out(table, episode, step)
        done += len(part)
        yield part
    yield np.zeros(everything.num_rows - done, kind)
