"""What to read, gather by gather: a whole pass, or one worker's share of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlds_cli.loader.reading import Run
from rlds_cli.loader.sampling.order import Order
from rlds_cli.loader.schedule import Schedule, Spot


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
