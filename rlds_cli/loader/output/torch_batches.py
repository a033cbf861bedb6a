"""Batches for torch's DataLoader: each once and in order, whatever the number of workers.

DataLoader asks its workers in turn, so worker w of N gives batches w, w + N, ... of a pass. Workers are started anew
for every pass, or stay; either way each finds in shared memory how many passes it has begun since the loader was last
told where to go.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch.utils.data import IterableDataset, get_worker_info

from rlds_cli.batch import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.output.parcels import Parcel
from rlds_cli.loader.sampling.prioritized import Prioritized
from rlds_cli.loader.schedule import Spot

if TYPE_CHECKING:
    from rlds_cli.loader.loading import Loader

MOST_WORKERS = 1024


class TorchBatches(IterableDataset[Batch]):
    """The batches of a loader, ready, for a DataLoader that makes none of its own.

    ``DataLoader(loader.as_torch(), batch_size=None, num_workers=2)`` gives the batches of ``for batch in loader``, each
    once and in the same order, with any number of workers. An epoch, or ``steps``, is one loop over it, and the next
    loop is the next one; loops without an end differ by their epochs. ``persistent_workers``, ``prefetch_factor`` and
    ``pin_memory`` are as ever. Batches cross from a worker as one block.

    Ranks are the loader's, and nothing else must share the batches out again. Lightning does not. Accelerate does with
    a DataLoader, in several processes: give it the loader itself, which ``accelerator.prepare(loader)`` leaves as it
    is, or keep the DataLoader out of ``prepare``.

    With any other ``batch_size``, also DataLoader's own of 1, it stacks whole batches, and a warning says so.

    Most loaders are faster without workers, and without a DataLoader: these are for costly functions of a batch.

    **To resume.** Workers run ahead of the training loop and the loader stays where it was, so count batches in the
    loop, and go there before the next loop begins::

        loader.seek(step)                        # the batches handed out before
        for batch in DataLoader(loader.as_torch(), batch_size=None, num_workers=2):
            step += 1

    Without workers ``loader.step`` and ``loader.state_dict()`` are true here, too.

    Parameters
    ----------
    loader : Loader
    start : Spot
        Where its next pass begins.

    Raises
    ------
    InvalidArgument
        Batches of ``backend="jax"``; from workers, also `Prioritized` and a loader with a device. Batches that
        Accelerate would share out a second time.
    """

    def __init__(self, loader: Loader, start: Spot) -> None:
        if loader.reader.arrays.backend == "jax":
            raise InvalidArgument(
                'as_torch() of batches with backend="jax".', hint='backend="torch", or iterate over the loader itself'
            )
        self._loader, self._warned = loader, False
        place = torch.tensor([0, *start, loader.order_version])
        self._place = place.share_memory_()  # type: ignore[no-untyped-call]
        self._begun = torch.zeros(MOST_WORKERS, 2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def move(self, spot: Spot, order_version: int) -> None:
        """Begin the next pass at ``spot`` of an order of this version."""
        moves = int(self._place[0])
        self._place[1:] = torch.tensor([*spot, order_version])
        self._place[0] = moves + 1

    def __iter__(self) -> Iterator[Batch]:
        """Go through one pass, or through this worker's share of it."""
        if self._loader.ranks.world > 1:
            _refuse_second_sharing()
        worker = get_worker_info()
        stacked = bool(sys._getframe(1).f_locals.get("auto_collation"))  # what asks is DataLoader's fetcher
        if worker is None:
            self._warn_once(stacked)
            return iter(self._loader)
        moves, epoch, sample, self._loader.order_version = self._place.tolist()
        seen, passes = self._begun[worker.id].tolist()
        passes = passes if seen == moves else 0
        self._begun[worker.id] = torch.tensor([moves, passes + 1])
        self._warn_once(stacked and worker.id == 0 and passes == 0)
        start = self._loader.schedule.later(Spot(epoch, sample), passes)
        return map(Parcel, _share(self._loader, start, worker.id, worker.num_workers))

    def _warn_once(self, stacked: bool) -> None:
        if stacked and not self._warned:
            self._warned = True
            warnings.warn(
                "DataLoader stacks batches of this loader into batches of batches: write"
                " DataLoader(loader.as_torch(), batch_size=None).",
                UserWarning,
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Batches of one pass, see `Loader`."""
        return len(self._loader)


def _refuse_second_sharing() -> None:
    """Accelerate's DataLoaders ask the first process alone for batches, and give each of the others a part of them."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            raise InvalidArgument(
                "Accelerate would share out batches that are shared already: samples of other ranks would be left out.",
                hint="accelerator.prepare(loader) without a DataLoader, or keep the DataLoader out of prepare()",
            )
        frame = frame.f_back


def _share(loader: Loader, start: Spot, worker: int, workers: int) -> Iterator[Batch]:
    """Batches worker, worker + workers, ... of the pass that begins at ``start``."""
    if isinstance(loader.sampler, Prioritized):
        raise InvalidArgument(
            f"{loader.sampler} in a DataLoader worker: it would not learn of priorities.", hint="num_workers=0"
        )
    if loader.reader.arrays.ships:
        raise InvalidArgument(
            "A loader with a device in a DataLoader worker: batches come from another process.",
            hint="num_workers=0; or no device=, and batch.to(device) in the loop",
        )
    return loader.share(start, worker, workers)
