"""Positions of values among equal bins, as histograms count them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray

Float = npt.NDArray[np.float64]


def in_bins(x: Array, low: Float | float, width: Float | float, bins: IntArray | int) -> Float:
    """Return positions of values, from 0 to ``bins``, among ``bins`` equal bins that span ``width`` from ``low`` on.

    Subnormal widths need a case of their own: the number of bins per unit is not a float there.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        per_unit = np.asarray(bins, np.float64) / width
        if np.isfinite(per_unit).all():
            return np.asarray((x - low) * per_unit)
        return np.asarray(np.where(np.isfinite(per_unit), (x - low) * per_unit, (x - low) / width * bins))
