"""Batches for torch's DataLoader: each once and in order, with any number of workers.

DataLoader asks its workers in turn, so worker w of N gives batches w, w + N, ... of a pass. Whether workers start for
every pass or persist, each finds in shared memory the passes that it has begun since the loader was last moved.

A batch crosses from worker to parent as one block of bytes (`PackedBatch`). By default every tensor takes a file of its
own, which costs 100 µs and more to make, hand over and map. A batch of transitions has seven tensors and 40 KiB: as one
block it goes through the pipe, for the price of a copy. A large batch takes one file for all its tensors.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_convert, get_worker_info

from rlds_cli.base.array_types import Array
from rlds_cli.base.workers import end_with_parent
from rlds_cli.dataset import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.read import BatchReader
from rlds_cli.loader.schedule import Position, Ranks, Schedule

MOST_WORKERS = 1024


class SharedLoader(Protocol):
    """The parts of a `Loader` that its workers use."""

    ranks: Ranks
    schedule: Schedule

    @property
    def reader(self) -> BatchReader:
        """The reader of batches."""
        ...

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...

    def share(self, start: Position, worker: int, workers: int) -> Iterator[Batch]:
        """Go through batches worker, worker + workers, ... of the pass that begins at ``start``."""
        ...


class TorchBatches(IterableDataset[Batch]):
    """The ready batches of a loader, for a DataLoader that does not batch them again.

    ``DataLoader(loader.as_torch(), batch_size=None, num_workers=2)`` gives the batches of ``for batch in loader``, each
    once and in the same order, with any number of workers. One loop is one epoch, or ``steps``, and the next loop goes
    on with the next one; endless loops differ by their epochs. ``persistent_workers``, ``prefetch_factor`` and
    ``pin_memory`` are as ever. Batches cross from a worker as one block.

    The loader divides batches among ranks, and nothing else may divide them again. Lightning does not. Accelerate does,
    for a DataLoader in several processes: give it the loader itself, which ``accelerator.prepare(loader)`` leaves as it
    is, or keep the DataLoader out of ``prepare``.

    With any other ``batch_size``, DataLoader's default of 1 included, it stacks whole batches, and a warning says so.

    Most loaders are faster without workers and without a DataLoader: workers are for costly functions of a batch.

    **To resume.** Workers run ahead of the training loop and the parent's loader does not move, so count batches in the
    loop, and seek before the next loop begins::

        loader.seek(step)                        # the batches handed out before
        for batch in DataLoader(loader.as_torch(), batch_size=None, num_workers=2):
            step += 1

    Without workers, ``loader.step`` and ``loader.state_dict()`` are up to date here, too.

    Parameters
    ----------
    loader : Loader
    start : Position
        The position at which its next pass begins.

    Raises
    ------
    InvalidArgument
        Batches of ``backend="jax"``; from workers, also `Prioritized` and a loader with a device. Batches that
        Accelerate would share out a second time.
    """

    def __init__(self, loader: SharedLoader, start: Position) -> None:
        if loader.reader.arrays.backend == "jax":
            raise InvalidArgument(
                'as_torch() of batches with backend="jax".', hint='backend="torch", or iterate over the loader itself'
            )
        self._loader, self._warned = loader, False
        place = torch.tensor([0, *start])
        self._place = place.share_memory_()  # type: ignore[no-untyped-call]
        self._begun = torch.zeros(MOST_WORKERS, 2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def move(self, position: Position) -> None:
        """Begin the next pass at ``position``."""
        moves = int(self._place[0])
        self._place[1:] = torch.tensor(position)
        self._place[0] = moves + 1

    def __iter__(self) -> Iterator[Batch]:
        """Go through one pass, or through this worker's share of it."""
        if self._loader.ranks.world > 1:
            _refuse_second_sharing()
        worker, fetcher = get_worker_info(), sys._getframe(1).f_locals  # of DataLoader, which calls this
        stacked = bool(fetcher.get("auto_collation"))
        if worker is None:
            self._warn_once(stacked)
            reader, batches = self._loader.reader, iter(self._loader)
            ready = reader.arrays.backend == "torch" and not reader.transforms.functions
            return map(_Ready, batches) if ready and fetcher.get("collate_fn") is default_convert else batches
        end_with_parent()
        moves, epoch, sample = self._place.tolist()
        seen, passes = self._begun[worker.id].tolist()
        passes = passes if seen == moves else 0
        self._begun[worker.id] = torch.tensor([moves, passes + 1])
        self._warn_once(stacked and worker.id == 0 and passes == 0)
        start = self._loader.schedule.later(Position(epoch, sample), passes)
        return map(PackedBatch.of, self._loader.share(start, worker.id, worker.num_workers))

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


class _Ready(Batch):
    """An empty batch whose copy is a batch of tensors: DataLoader copies what it converts, and finds no field in it.

    To convert each field takes a third of the time that DataLoader adds to a batch.
    """

    __slots__ = ("_batch",)

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __copy__(self) -> Batch:
        return self._batch


def _refuse_second_sharing() -> None:
    """Refuse Accelerate's DataLoaders, which divide the batches of the first process among all processes."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            raise InvalidArgument(
                "Accelerate would share out batches that are shared already: samples of other ranks would be left out.",
                hint="accelerator.prepare(loader) without a DataLoader, or keep the DataLoader out of prepare()",
            )
        frame = frame.f_back


BY_PIPE = 1 << 20  # bytes of a batch up to which the pipe is the faster way
_ALIGNED = 16  # bytes: every dtype can be read from there


class _FieldPlace(NamedTuple):
    """The place of a field in the block; ``dtype`` is empty for a field outside it, ``tensor`` a tensor's dtype."""

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    start: int = 0
    tensor: str = ""


class PackedBatch(Batch):
    """A batch that pickles as one block, and unpickles as a `Batch` whose arrays are parts of one allocation.

    Text, and tensors on other devices than the CPU, are pickled beside the block.
    """

    __slots__ = ()

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """Return a batch of the same arrays."""
        made = cls(batch)
        made.told(flat=batch.flat)
        return made

    def __copy__(self) -> PackedBatch:
        return PackedBatch.of(self)

    def __reduce__(self) -> tuple[object, ...]:
        arrays, beside, places, end = list[Array](), dict[str, Any](), list[_FieldPlace](), 0
        for name, value in self.leaves():
            x, tensor = _plain(value)
            if x is None:
                beside[name] = value
                places.append(_FieldPlace(name))
                continue
            places.append(_FieldPlace(name, x.dtype.str, x.shape, end, tensor))
            arrays.append(x)
            end += -(-x.nbytes // _ALIGNED) * _ALIGNED
        return unpack, (_block(arrays, end), pickle.dumps(places), beside, self.flat)


def _plain(value: Any) -> tuple[Array | None, str]:
    """Return an array of a value's bytes and the dtype of a tensor; None for a value outside the block."""
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
    """Return all arrays as one block: bytes, or a tensor in shared memory."""
    if size <= BY_PIPE:
        return b"".join([part for x in arrays for part in (x.tobytes(), bytes(-x.nbytes % _ALIGNED))])
    import torch

    block = torch.empty(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    flat, at = block.numpy(), 0
    for x in arrays:
        flat[at : at + x.nbytes] = x.reshape(-1).view(np.uint8)
        at += -(-x.nbytes // _ALIGNED) * _ALIGNED
    return block


def unpack(block: Any, described: bytes, beside: dict[str, Any], flat: frozenset[str]) -> Batch:
    """Return the batch that `PackedBatch` packed."""
    content = np.asarray(bytearray(block)) if isinstance(block, bytes) else block.numpy()
    values = ((p.name, _value(p, content) if p.dtype else beside[p.name]) for p in _places(described))
    return Batch.nest(values).told(flat=flat)


@lru_cache(maxsize=64)
def _places(described: bytes) -> list[_FieldPlace]:
    places: list[_FieldPlace] = pickle.loads(described)
    return places


def _value(place: _FieldPlace, content: Array) -> Any:
    x: Array = np.ndarray(place.shape, place.dtype, content if content.size else None, place.start)
    if not place.tensor:
        return x
    import torch

    tensor = torch.from_numpy(x)
    return tensor.view(torch.bfloat16) if place.tensor == "bfloat16" else tensor
