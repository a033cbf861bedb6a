"""Numbers that look random and are the same everywhere: those of NumPy's generators may change with its versions."""

from __future__ import annotations

import numpy as np

from rlds_cli.base.array_types import Array


def mixed(numbers: Array, seed: int = 0) -> Array:
    """Return for uint64 [n] other uint64 [n]: SplitMix64's finalizer, https://doi.org/10.1145/2660193.2660195."""
    x = numbers ^ np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)))
