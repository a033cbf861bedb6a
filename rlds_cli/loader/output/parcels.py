"""Batches on their way from one process to another: one block of bytes each.

A tensor crosses in a file of its own, which costs 100 µs and more to make, hand over and map. A batch of transitions
has seven of them and takes 40 KiB: as one block it goes through the pipe, at the price of a copy. A large one takes
one file for all of its tensors.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.batch import Batch
from rlds_cli.ted import Array

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
