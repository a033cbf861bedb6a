"""Epochs, passes, batches and ranks: pure arithmetic on sample numbers.

A `Position` is (epoch, samples consumed in it); everything else follows from it. Batch n of an epoch is its samples
[n * B, (n + 1) * B); samplers with replacement have one endless epoch. A pass is one ``iter()``: an epoch, ``steps``
batches, or endless. Each rank takes its own part of every global batch.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import BatchSize, InvalidArgument
from rlds_cli.loader.kernel import SampleNumbers
from rlds_cli.loader.order import Order

ALONE = "a single process"


class Position(NamedTuple):
    """A position in the order: samples [0, sample) of ``epoch`` are consumed."""

    epoch: int
    sample: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The division of samples into batches, and of batches into passes.

    Parameters
    ----------
    batch_size : int
        B, of the global batch.
    total : int or None
        Samples in an epoch; None for samplers that never end.
    drop_last : bool
        Leave out the last batch of an epoch when it is not full.
    steps : int or None
        Batches in a pass, whatever the epochs.
    """

    batch_size: int
    total: int | None
    drop_last: bool = False
    steps: int | None = None

    @property
    def per_epoch(self) -> int | None:
        """Number of batches in an epoch; None for an endless one."""
        if self.total is None:
            return None
        return self.total // self.batch_size if self.drop_last else -(-self.total // self.batch_size)

    @property
    def per_pass(self) -> int | None:
        """Number of batches in a pass; None for an endless one."""
        return self.per_epoch if self.steps is None else self.steps

    def step(self, position: Position) -> int:
        """Return the number of batches up to ``position``: those of the epochs so far, less those left in this one.

        So every batch counts as one, even in an epoch that was begun with another batch size.
        """
        if self.total is None or self.per_epoch is None:
            return -(-position.sample // self.batch_size)
        return (position.epoch + 1) * self.per_epoch - self._left_in_epoch(self.total - position.sample)

    def _left_in_epoch(self, samples: int) -> int:
        """Return the batches that are left when so many samples are."""
        return max(0, samples // self.batch_size if self.drop_last else -(-samples // self.batch_size))

    def at(self, step: int, epoch: int) -> Position:
        """Return the position before batch number ``step``; ``epoch`` is for endless samplers."""
        if self.per_epoch is None:
            return Position(epoch, step * self.batch_size)
        epoch, batch = divmod(step, self.per_epoch)
        return Position(epoch, batch * self.batch_size)

    def skip(self, position: Position, batches: int) -> Position:
        """Return the position ``batches`` after ``position``."""
        if self.total is None or self.per_epoch is None:
            return Position(position.epoch, position.sample + batches * self.batch_size)
        beyond = batches - self._left_in_epoch(self.total - position.sample)
        if beyond < 0:
            return Position(position.epoch, position.sample + batches * self.batch_size)
        epochs, batch = divmod(beyond, self.per_epoch)
        return Position(position.epoch + 1 + epochs, batch * self.batch_size)

    def settle(self, position: Position) -> Position:
        """Return ``position``, or the start of the next epoch where its own has no batch left."""
        if self.total is None:
            return position
        left = self.total - position.sample
        return Position(position.epoch + 1, 0) if left <= 0 or (self.drop_last and left < self.batch_size) else position

    def fresh(self, position: Position) -> Position:
        """Return the start of a new pass: ``position``, or the end of the pass that was interrupted there."""
        step, length = self.step(position), self.per_pass
        return (
            position if length is None or step % length == 0 else self.at(-(-step // length) * length, position.epoch)
        )

    def later(self, position: Position, passes: int) -> Position:
        """Return the start of a later pass, ``passes`` after the one that starts at ``position``.

        Endless passes differ by their epochs.
        """
        for _ in range(passes):
            left = self.left(position)
            position = Position(position.epoch + 1, 0) if left is None else self.settle(self.skip(position, left))
        return position

    def left(self, position: Position) -> int | None:
        """Return the number of batches up to the end of the pass; None if it is endless."""
        return None if self.per_pass is None else self.per_pass - self.step(position) % self.per_pass

    def run(self, position: Position, most: int, every: int = 1) -> tuple[int, int]:
        """Return how many batches to read at once from ``position``, at most ``most``, and the size of each.

        They are of one epoch and of one size; a smaller last batch of an epoch comes alone. Only the first of every
        ``every`` batches is read.
        """
        if self.total is None:
            return most, self.batch_size
        left = self.total - position.sample
        if left < self.batch_size:
            return 1, left
        return min(most, -(-(left // self.batch_size) // every)), self.batch_size


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank ``rank`` of ``world`` takes samples rank, rank + world, ... of each global batch.

    If the last batch of an epoch has fewer samples than there are ranks, the remaining ranks repeat its samples from
    the first on, as ``DistributedSampler`` pads: the other ranks would wait for ever for one without a batch.

    ``origin`` names the source of the two numbers.
    """

    rank: int
    world: int
    origin: str

    @classmethod
    def of(cls, rank: int | None, world_size: int | None) -> Ranks:
        """Take the arguments, else ``torch.distributed`` when it is initialised, else 0 of 1.

        Raises
        ------
        InvalidArgument
            One is given and the other is unknown, or they do not fit.
        """
        initialised = distributed()
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
        """Refuse to load as a single process where several have been initialised since.

        Raises
        ------
        InvalidArgument
            ``torch.distributed`` was initialised after the loader was made.
        """
        now = distributed()
        if self.origin == ALONE and now is not None and now[1] > 1:
            raise InvalidArgument(
                f"This loader was made before torch.distributed was initialised: each of {now[1]} ranks would get every"
                " sample.",
                hint="make it afterwards (Lightning: in train_dataloader), or Loader(..., rank=..., world_size=...)",
            )

    def share(self, batch_size: int) -> int:
        """Return the number of this rank's samples in a full batch.

        Raises
        ------
        BatchSize
            The batch size is not a multiple of the world size.
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
        """Return this rank's part of ``samples``, whole batches; at least one sample."""
        if self.world == 1:
            return samples
        if len(samples) < self.world:
            again = self.rank % len(samples)
            return samples[again : again + 1]
        return samples[self.rank :: self.world]

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} ({self.origin})"


@dataclass(frozen=True, slots=True)
class SampleRun:
    """Samples that are read together: one gather.

    Attributes
    ----------
    order : Order
    first : int
        Number of the first sample in its epoch.
    size : int
        Samples of a batch, all ranks together.
    batches : int
        Every batch has ``size`` samples.
    every : int
        Stride in batches: 1 for consecutive batches, N for one worker of N, which leaves the others' batches out.
    """

    order: Order
    first: int
    size: int
    batches: int
    every: int = 1

    @property
    def everyone(self) -> range:
        """Numbers of the samples of all ranks; the batches must be consecutive."""
        assert self.every == 1 or self.batches == 1
        return range(self.first, self.first + self.batches * self.size)

    def of(self, ranks: Ranks) -> SampleNumbers:
        """Return the numbers of this rank's samples."""
        if self.every == 1 or self.batches == 1:
            return ranks.part(self.everyone)
        start = self.first + np.arange(self.batches) * (self.every * self.size)
        numbers: IntArray = (start[:, None] + np.asarray(ranks.part(range(self.size)))).reshape(-1)
        return numbers


def runs(
    schedule: Schedule,
    position: Position,
    order: Order,
    most: Callable[[Position], int],
    *,
    worker: int = 0,
    workers: int = 1,
) -> Iterator[SampleRun]:
    """Go through the pass that continues at ``position``, up to ``most(position)`` batches to a gather.

    ``order`` is that of any epoch. Of ``workers`` that share the pass, ``worker`` gets batches worker,
    worker + workers, ... of it.
    """
    left = schedule.left(position)
    left = None if left is None else left - worker
    position = schedule.settle(schedule.skip(position, worker))
    at_once = 1  # a pass may be broken off after a batch or two: the first gather is small, the next ones double
    while left is None or left > 0:
        at_once = min(at_once, most(position))
        mine = at_once if left is None else min(at_once, -(-left // workers))
        batches, size = schedule.run(position, mine, workers)
        if order.epoch != position.epoch:
            order = replace(order, epoch=position.epoch)
        yield SampleRun(order, position.sample, size, batches, workers)
        position = schedule.settle(schedule.skip(position, batches * workers))
        left = None if left is None else left - batches * workers
        at_once *= 2


def distributed() -> tuple[int, int] | None:
    """Return rank and world size of ``torch.distributed``; None where nobody has imported or initialised it."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _natural(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what}={value!r} must be an integer.") from None
