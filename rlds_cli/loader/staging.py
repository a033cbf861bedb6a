"""From host to device in one copy: the columns of a gather laid out one after the other in pinned memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.ted import Array

if TYPE_CHECKING:
    import torch

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


def _dtype(x: Array) -> torch.dtype:
    import torch

    return torch.from_numpy(np.empty(0, x.dtype)).dtype
