"""The other ranks of a loader: numbers that all ranks have to know, exchanged by ``torch.distributed``."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.schedule import Ranks, distributed


class Peers:
    """All ranks of a loader. Every rank makes one, and calls its methods equally often and in the same order.

    They have a process group of their own, on CPUs: messages do not get between those of the training.

    Parameters
    ----------
    ranks : Ranks
    why : str
        The reason why the ranks need each other, for the error.

    Raises
    ------
    InvalidArgument
        There are several ranks, and ``torch.distributed`` is not initialised, or has other ranks.
    """

    def __init__(self, ranks: Ranks, why: str) -> None:
        self.ranks, self._group = ranks, None
        if ranks.world == 1:
            return
        there = distributed()
        if there != (ranks.rank, ranks.world):
            known = "is not initialised" if there is None else f"has rank {there[0]} of {there[1]}"
            raise InvalidArgument(
                f"{why} on {ranks}: ranks tell each other by torch.distributed, which {known}.",
                hint="torch.distributed.init_process_group(...) before the loader is made,"
                " or Loader(..., world_size=1) on every rank, with a seed of its own",
            )
        self._group = self._dist.new_group(backend="gloo")

    @property
    def _dist(self) -> Any:
        return sys.modules["torch.distributed"]

    def gather(self, values: IntArray) -> list[IntArray]:
        """Return the integers of all ranks, in the order of the ranks; their arrays have one shape."""
        if self._group is None:
            return [values]
        torch: Any = sys.modules["torch"]
        given = torch.from_numpy(np.array(values, np.int64))
        parts = [torch.empty_like(given) for _ in range(self.ranks.world)]
        self._dist.all_gather(parts, given, group=self._group)
        return [part.numpy() for part in parts]

    def of_first(self, values: IntArray) -> IntArray:
        """Return the integers of rank 0; those of the other ranks only have the same shape."""
        if self._group is None:
            return values
        torch: Any = sys.modules["torch"]
        given = torch.from_numpy(np.array(values, np.int64))
        self._dist.broadcast(given, self._dist.get_global_rank(self._group, 0), group=self._group)
        told: IntArray = given.numpy()
        return told
