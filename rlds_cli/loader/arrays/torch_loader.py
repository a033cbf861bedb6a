"""Batches for torch's DataLoader: each once and in order, whatever the number of workers.

DataLoader asks its workers in turn, so worker w of N gives batches w, w + N, ... of a pass. Workers are started anew
for every pass, or stay; either way each finds in shared memory how many passes it has begun since the loader was last
told where to go.

Batches on their way from one process to another: one block of bytes each.

A tensor crosses in a file of its own, which costs 100 µs and more to make, hand over and map. A batch of transitions
has seven of them and takes 40 KiB: as one block it goes through the pipe, at the price of a copy. A large one takes
one file for all of its tensors.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.samplers.prioritized import Prioritized
from rlds_cli.loader.schedule import Spot
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.loader.loader import Loader

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


BY_PIPE = 1 << 20  # bytes of a batch up to which the pipe is the faster way
_ALIGNED = 16  # bytes: every dtype can be read from there


class _Place(NamedTuple):
    """Where a field lies in the block; ``dtype`` is empty for one that does not, ``tensor`` that of a tensor."""

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    start: int = 0
    tensor: str = ""


class Parcel(Batch):
    """A batch that is pickled as one block; where it is unpickled it is a `Batch`, its arrays parts of one allocation.

    Text, and tensors of other devices than the CPU, go beside the block.
    """

    __slots__ = ()

    def __copy__(self) -> Parcel:
        return Parcel(self)

    def __reduce__(self) -> tuple[object, ...]:
        arrays, beside, places, end = list[Array](), dict[str, Any](), list[_Place](), 0
        for name, value in self.leaves():
            x, tensor = _plain(value)
            if x is None:
                beside[name] = value
                places.append(_Place(name))
                continue
            places.append(_Place(name, x.dtype.str, x.shape, end, tensor))
            arrays.append(x)
            end += -(-x.nbytes // _ALIGNED) * _ALIGNED
        return unpack, (_block(arrays, end), pickle.dumps(places), beside)


def _plain(value: Any) -> tuple[Array | None, str]:
    """An array of a value's bytes, and the dtype of a tensor; None for what has none."""
    if isinstance(value, np.ndarray):
        return (None, "") if value.dtype == object else (np.ascontiguousarray(value), "")
    device = getattr(value, "device", None)
    if getattr(device, "type", None) != "cpu" or not hasattr(value, "detach"):
        return None, ""
    import torch

    tensor = value.detach().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(torch.int16) if name == "bfloat16" else tensor).numpy(), name


def _block(arrays: Sequence[Array], size: int) -> Any:
    """The bytes of all arrays: bytes, or a tensor in shared memory."""
    if size <= BY_PIPE:
        return b"".join([part for x in arrays for part in (x.tobytes(), bytes(-x.nbytes % _ALIGNED))])
    import torch

    block = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    flat, at = block.numpy(), 0
    for x in arrays:
        flat[at : at + x.nbytes] = x.reshape(-1).view(np.uint8)
        at += -(-x.nbytes // _ALIGNED) * _ALIGNED
    return block


def unpack(block: Any, described: bytes, beside: dict[str, Any]) -> Batch:
    """The batch, as `Parcel` packed it."""
    content = np.asarray(bytearray(block)) if isinstance(block, bytes) else block.numpy()
    return Batch.nest((p.name, _value(p, content) if p.dtype else beside[p.name]) for p in _places(described))


@lru_cache(maxsize=64)
def _places(described: bytes) -> list[_Place]:
    places: list[_Place] = pickle.loads(described)
    return places


def _value(place: _Place, content: Array) -> Any:
    x: Array = np.ndarray(place.shape, place.dtype, content if content.size else None, place.start)
    if not place.tensor:
        return x
    import torch

    tensor = torch.from_numpy(x)
    return tensor.view(torch.bfloat16) if place.tensor == "bfloat16" else tensor
