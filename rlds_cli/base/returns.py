"""Returns to go: sums of discounted rewards from each step to the end."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import BoolArray
from rlds_cli.errors import InvalidArgument

Floats = npt.NDArray[np.float64]
_PIECE = 1 << 16  # as Python numbers at a time
_FEW = 32  # stretches: so few are faster one by one than side by side


def check_returns(gamma: float, scale: float) -> None:
    """Refuse a discount or a scale that makes no return.

    Raises
    ------
    InvalidArgument
        The discount is outside [0, 1], or the scale is not finite.
    """
    if not 0 <= gamma <= 1:
        raise InvalidArgument(f"ReturnToGo(gamma={gamma!r}): a discount lies in [0, 1].")
    if not np.isfinite(scale):
        raise InvalidArgument(f"ReturnToGo(scale={scale!r}): a finite number is needed.")


@np.errstate(over="ignore", invalid="ignore")  # rows between episodes may hold anything
def sum_from_ends(values: Floats, stop: BoolArray, gamma: float) -> None:
    """Add ``gamma`` times the sum of the row after to each row, in place, from the end.

    Stretches are summed side by side, one row of each at a time; the longest few are finished one after the other. This
    takes 8 to 100 ns a row, for one stretch as for a million. The order of additions is that of a loop from the end.

    Parameters
    ----------
    values : float64 array [n + 1, ...]
        The last row is a sum already: row n - 1 adds to it, unless sums end there.
    stop : bool array [n]
        Rows at which a sum ends.
    gamma : float
    """
    end = np.flatnonzero(stop)
    if not len(end) or end[-1] != len(stop) - 1:
        end = np.append(end, len(stop))
    length = np.diff(end, prepend=-1) - 1
    end, length = end[length > 0], length[length > 0]
    if length.max(initial=0) < 1 << 16:
        length = length.astype(np.uint16)  # sorted by digits
    order = np.argsort(length, kind="stable")[::-1]
    end, length = end[order], length[order].astype(np.int64)
    together = int(length[_FEW]) if len(length) > _FEW else 0
    active = len(length) - np.searchsorted(length[::-1], np.arange(1, together + 1))
    row, sums = end.copy(), values[end]
    for count in active.tolist():
        row, sums = row[:count], sums[:count]
        row -= 1
        sums *= gamma
        sums += values.take(row, axis=0)
        values[row] = sums
    for i in range(min(_FEW, len(end))):
        sum_stretch(values[end[i] - length[i] : end[i] - together + 1], gamma)


@np.errstate(over="ignore", invalid="ignore")
def sum_stretch(values: Floats, gamma: float) -> None:
    """Sum one stretch [n, ...] in place, from the end; its last row is a sum already."""
    back = values.reshape(len(values), -1)[::-1]
    if gamma == 1:
        back[:] = np.add.accumulate(back, axis=0)
        return
    for column in back.T:
        total = float(column[0])
        for first in range(1, len(column), _PIECE):
            rewards = column[first : first + _PIECE].tolist()
            sums = list(accumulate(rewards, lambda g, r: r + gamma * g, initial=total))
            column[first : first + _PIECE] = sums[1:]
            total = sums[-1]
