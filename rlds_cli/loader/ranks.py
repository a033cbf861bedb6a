"""Which part of every global batch is this process's."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any

from rlds_cli.errors import BatchSize, InvalidArgument

ALONE = "a single process"


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank ``rank`` of ``world`` takes samples rank, rank + world, ... of each global batch.

    Where the last batch of an epoch has fewer samples than there are ranks, those left over take its samples once more,
    from the first on, as ``DistributedSampler`` pads: a rank without any would leave the others waiting for it.

    ``origin`` says where the two come from.
    """

    rank: int
    world: int
    origin: str

    @classmethod
    def of(cls, rank: int | None, world_size: int | None) -> Ranks:
        """From the arguments, else from ``torch.distributed`` when it is initialised, else 0 of 1.

        Raises
        ------
        InvalidArgument
            One is given and the other cannot be told, or they do not fit.
        """
        initialised = _distributed()
        if rank is None and world_size is None:
            return cls(*initialised, "torch.distributed") if initialised else cls(0, 1, ALONE)
        if world_size is None:
            if initialised is None:
                raise InvalidArgument(f"rank={rank} of how many?", hint=f"Loader(..., rank={rank}, world_size=...)")
            world_size = initialised[1]
        if rank is None:
            rank = 0 if world_size == 1 else initialised[0] if initialised else None
        if rank is None:
            raise InvalidArgument(
                f"world_size={world_size}: which of these ranks is this process?",
                hint=f"Loader(..., rank=..., world_size={world_size})",
            )
        return cls(_natural("rank", rank), _natural("world_size", world_size), "the arguments")._checked()

    def _checked(self) -> Ranks:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise InvalidArgument(f"rank {self.rank} of {self.world}: ranks go from 0 to world_size - 1.")
        return self

    def check(self) -> None:
        """Refuse to go on by itself in a process that has become one of several.

        Raises
        ------
        InvalidArgument
            ``torch.distributed`` was initialised after the loader was made.
        """
        now = _distributed()
        if self.origin == ALONE and now is not None and now[1] > 1:
            raise InvalidArgument(
                f"This loader was made before torch.distributed was initialised: each of {now[1]} ranks would get every"
                " sample.",
                hint="make it afterwards (Lightning: in train_dataloader), or Loader(..., rank=..., world_size=...)",
            )

    def share(self, batch_size: int) -> int:
        """Samples of a full batch that are this rank's.

        Raises
        ------
        BatchSize
            The ranks cannot share it equally.
        """
        if batch_size % self.world:
            less = batch_size // self.world * self.world
            sizes = f"{less} or {less + self.world}" if less else f"{self.world}"
            raise BatchSize(
                f"{batch_size} cannot be shared by {self.world} ranks (rank and world size from {self.origin}).",
                hint=f"{sizes}, or pass world_size=1",
            )
        return batch_size // self.world

    def part(self, samples: range) -> range:
        """Those of ``samples``, whole batches, that are this rank's; never none."""
        if len(samples) < self.world:
            again = self.rank % len(samples)
            return samples[again : again + 1]
        return samples[self.rank :: self.world]

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} ({self.origin})"


def _distributed() -> tuple[int, int] | None:
    """Rank and world size of ``torch.distributed``; not imported for this: who uses it has done so."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _natural(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what}={value!r} must be an integer.") from None
