"""Tensors of any device as NumPy arrays, and arrays as tensors that a state may hold."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array


def portable(x: Array | None) -> Any:
    """Return a tensor, which ``torch.load(weights_only=True)`` reads; an array where torch is not imported."""
    return sys.modules["torch"].tensor(x) if "torch" in sys.modules else x


def host(x: Any) -> Any:
    """Return tensors of any device as NumPy arrays."""
    if not hasattr(x, "detach"):
        return np.asarray(x)
    if x.requires_grad or not x.is_cpu:
        x = x.detach().cpu()
    return (x.double() if x.itemsize < 4 and x.is_floating_point() else x).numpy()  # NumPy has no bfloat16
