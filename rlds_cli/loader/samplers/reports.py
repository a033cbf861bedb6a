"""Priorities that training reports of a batch, and their exchange among ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.index import SOURCE, WINDOW, FloatArray
from rlds_cli.loader.peers import Peers
from rlds_cli.loader.tensors import host
from rlds_cli.ted import IntArray


@dataclass(frozen=True, slots=True)
class Report:
    """New priorities of the windows of a batch, in the order in which they count: the last one of a window stays.

    Attributes
    ----------
    windows : int array [n]
        Numbers of the windows.
    priority : float array [n]
    source : int array [n] or None
        Numbers of the members of a mixture that the windows are of.
    """

    windows: IntArray
    priority: FloatArray
    source: IntArray | None = None

    @classmethod
    def of(cls, batch: Batch, priority: Any, *, mixed: bool = False) -> Report:
        """Read the windows of ``batch``, of a mixture if ``mixed``, and one priority for each.

        Raises
        ------
        InvalidArgument
            The batch does not name its windows, or ``priority`` is not one number per sample.
        """
        windows = _column(batch, WINDOW)
        values = host(priority)
        if values.dtype.kind not in "fiub":
            raise InvalidArgument(f"update_priorities: priorities of type {values.dtype} are not numbers.")
        if values.shape[:1] != windows.shape or values.size != len(windows):
            raise InvalidArgument(
                f"update_priorities: priorities {list(values.shape)} for a batch of {len(windows)} samples.",
                hint="one number a sample, [B] or [B, 1]: of a slice its mean or largest one",
            )
        return cls(windows, values.reshape(-1).astype(np.float64), _column(batch, SOURCE) if mixed else None)

    def of_member(self, member: int) -> Report:
        """Return the part of the report that is of one member of a mixture."""
        assert self.source is not None
        mine = self.source == member
        return Report(self.windows[mine], self.priority[mine])


def _column(batch: Batch, name: str) -> IntArray:
    """Return the first number of every sample [B]."""
    values = batch.get(name, None)  # a TensorDict raises without the None
    if values is None:
        fields = ", ".join(Batch(batch.items()).names())
        raise InvalidArgument(
            f"update_priorities: the batch has no {name!r}. Fields: {fields}.",
            hint="pass the batch as the loader gave it, or its tensordict()",
        )
    numbers = host(values)
    first: IntArray = numbers.reshape(len(numbers), -1)[:, 0].astype(np.int64, copy=False)
    return first


def exchange(peers: Peers, make: Callable[[], Report]) -> Report:
    """Return the reports of all ranks, one after the other in the order of the ranks; every rank gets the same.

    An error of one rank is raised on all of them, so that none waits for it.

    Parameters
    ----------
    peers : Peers
    make : callable
        Returns the report of this rank.

    Raises
    ------
    InvalidArgument
        The report of a rank cannot be made.
    """
    if peers.ranks.world == 1:
        return make()
    failed: Exception | None = None
    try:
        mine = make()
    except Exception as e:
        failed, mine = e, Report(np.zeros(0, np.int64), np.zeros(0))
    counts = [int(n) for n in np.concatenate(peers.gather(np.array([-1 if failed else len(mine.windows)])))]
    if failed is not None:
        raise failed
    if min(counts) < 0:
        bad = counts.index(-1)
        raise InvalidArgument(f"update_priorities: rank {bad} could not report its priorities. None was changed.")
    padded = np.zeros((3, max(counts)), np.int64)
    padded[0, : len(mine.windows)] = mine.windows
    padded[1, : len(mine.windows)] = mine.priority.view(np.int64)  # bit for bit
    padded[2, : len(mine.windows)] = 0 if mine.source is None else mine.source
    parts = [part[:, :n] for part, n in zip(peers.gather(padded), counts, strict=True)]
    windows, priority, source = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    return Report(windows, priority.view(np.float64), None if mine.source is None else source)
