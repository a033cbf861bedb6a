"""From host to device in one copy: the columns of a gather laid out one after the other in pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.ted import Array

if TYPE_CHECKING:
    import torch

OnStream = Callable[[], AbstractContextManager[object]]

_ALIGNED = 16  # bytes: every dtype can be viewed from here


def ship(values: Mapping[str, Array], device: torch.device) -> dict[str, torch.Tensor]:
    """Copy arrays to ``device``: one transfer, and views of its result.

    Parameters
    ----------
    values : mapping of str to array
        Numbers and flags of any dtype and shape.
    device : torch.device
        Memory is pinned for CUDA, so that the copy goes on while the script does.
    """
    import torch

    starts, end = {}, 0
    for name, x in values.items():
        starts[name] = end
        end += -(-x.nbytes // _ALIGNED) * _ALIGNED
    host = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = host.numpy()
    for name, x in values.items():
        flat[starts[name] : starts[name] + x.nbytes].view(x.dtype).reshape(x.shape)[...] = x
    moved = host.to(device, non_blocking=True)
    return {
        name: moved[starts[name] : starts[name] + x.nbytes].view(_dtype(x)).view(x.shape) for name, x in values.items()
    }


def on_stream(device: torch.device | None) -> OnStream:
    """What makes another thread work on the CUDA stream of this one.

    Every thread has a current stream of its own. What one puts on its stream the others' do not wait for, and memory
    goes back to the stream that it was taken from: the stream of the training loop is the right one for both.
    """
    if device is None or device.type != "cuda":
        return nullcontext
    import torch

    return partial(torch.cuda.stream, torch.cuda.current_stream(device))


def _dtype(x: Array) -> torch.dtype:
    import torch

    return torch.from_numpy(np.empty(0, x.dtype)).dtype
