"""What a loader draws with, reads from and goes through.

What to read, gather by gather: a whole pass, or one worker's share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rlds_cli.dataset import Dataset
from rlds_cli.errors import BatchSize, InvalidArgument
from rlds_cli.loader import build
from rlds_cli.loader.arrays.frameworks import Arrays
from rlds_cli.loader.build import Request
from rlds_cli.loader.index import Drawn, Pool
from rlds_cli.loader.mixture.merging import MixtureSource
from rlds_cli.loader.mixture.mixture import Mixture
from rlds_cli.loader.order import Order, Positions, whole
from rlds_cli.loader.read import DatasetSource, Run, Transforms
from rlds_cli.loader.samplers.prioritized import PrioritizedDraw
from rlds_cli.loader.samplers.uniform import Sampler
from rlds_cli.loader.schedule import Ranks, Schedule, Spot

Draw = Callable[[Order, Positions], Drawn]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who reads, for which part of every batch.

    Attributes
    ----------
    request : Request
    ranks : Ranks
    batch_size : int
    seed : int
    """

    request: Request
    ranks: Ranks
    batch_size: int
    seed: int

    def of_dataset(self, dataset: Dataset, transforms: Transforms, made: Arrays) -> tuple[Draw, DatasetSource]:
        """What draws from a dataset, and what reads it."""
        request = self.request.in_steps(dataset)
        pool = build.pool(dataset, request.window, request.anchors)
        draw = self._drawing(pool)
        source = build.source(pool, draw, request, transforms, made.working)
        if request.resident:
            from rlds_cli.loader.storage.device_memory import reside

            source = reside(source, made)
        return draw, source

    def of_mixture(self, mixture: Mixture, transforms: Transforms, on_cpu: Arrays) -> MixtureSource:
        """What draws from the members of a mixture and reads them."""
        if self.request.resident:
            raise InvalidArgument('memory="device" is for one dataset, not for a Mixture.', hint="memory=None")
        return MixtureSource(mixture, self.request, transforms, on_cpu, batch_size=self.batch_size, seed=self.seed)

    def _drawing(self, pool: Pool) -> Draw:
        draw = self.request.sampler.over(pool)
        if isinstance(draw, PrioritizedDraw) and self.ranks.world > 1:
            raise InvalidArgument(
                f"Prioritized on {self.ranks}: ranks do not know each other's updates.",
                hint="Loader(..., world_size=1) on every rank, with a seed of its own",
            )
        return draw


def read_ahead(prefetch: int | None, usual: int, sampler: Sampler, draw: Draw | None) -> int:
    """How many gathers are read ahead: ``prefetch``, or ``usual`` where nobody says."""
    depth = usual if prefetch is None else whole("prefetch", prefetch, 0)
    if isinstance(draw, PrioritizedDraw):
        if prefetch is not None and depth > draw.ahead:
            raise InvalidArgument(
                f"prefetch={depth} with {sampler}: batches would be drawn before updates that count.",
                hint=f"Prioritized(lag={depth}), or prefetch={draw.ahead}",
            )
        depth = min(depth, draw.ahead)
        draw.ahead -= depth
    return depth


def schedule(source: DatasetSource | MixtureSource, sampler: Sampler, batch_size: int, steps: int | None) -> Schedule:
    """How samples make batches, and batches passes.

    Raises
    ------
    BatchSize
        An epoch has no full batch, and others are dropped.
    """
    if sampler.endless or isinstance(source, MixtureSource):
        return Schedule(batch_size, None, steps=steps)
    total = source.draw.pool.guide.total
    made = Schedule(batch_size, total, sampler.drop_last, steps)
    if made.per_epoch == 0:
        raise BatchSize(
            f"{batch_size} is more than the {total:,} samples of an epoch, and its last batch is dropped.",
            hint=f"a batch of at most {total:,}, or {type(sampler).__name__}(drop_last=False)",
        )
    return made


def runs(
    schedule: Schedule, spot: Spot, order: Order, most: int, *, worker: int = 0, workers: int = 1
) -> Iterator[Run]:
    """The pass that goes on from ``spot``, up to ``most`` batches at a time; ``order`` is that of any epoch.

    Of ``workers`` that share it, ``worker`` takes batches worker, worker + workers, ... of it.
    """
    left = schedule.left(spot)
    left = None if left is None else left - worker
    spot = schedule.settle(schedule.skip(spot, worker))
    at_once = 1  # a pass may be broken off after a batch or two: read more with each gather
    while left is None or left > 0:
        mine = at_once if left is None else min(at_once, -(-left // workers))
        batches, size = schedule.run(spot, mine, workers)
        yield Run(replace(order, epoch=spot.epoch), spot.sample, size, batches, workers)
        spot = schedule.settle(schedule.skip(spot, batches * workers))
        left = None if left is None else left - batches * workers
        at_once = min(2 * at_once, most)
