"""The arrays of one episode, from columns of a file."""

from __future__ import annotations

import numpy as np

from rlds_cli.archives.d4rl.ends import differs
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED, Array, BoolArray, Field, Text


def shaped(values: Array, f: Field) -> Array | Text:
    """Values [rows, ...] in the dtype and the shape of a field; texts as a list."""
    found = values.reshape(len(values), *f.shape)
    return found.tolist() if f.kind == "text" else found.astype(f.dtype, copy=False)


def ended(terminated: BoolArray, truncated: BoolArray) -> tuple[BoolArray, int]:
    """The flag ``truncated`` [T] as it is stored, set at the last step alone, and how the episode ends.

    An episode that no flag ends is a cut, which is stored as truncated.
    """
    end = TERMINATED if terminated[-1] else TRUNCATED if truncated[-1] else CUT
    stored = np.zeros(len(terminated), bool)
    stored[-1] = truncated[-1] or end == CUT
    return stored, end


def with_final(now: Array, after: Array, length: int, message: str, hint: str | None = None) -> Array:
    """Observations [T or T+1, ...] with the final one, from the column of next observations [T, ...].

    Raises
    ------
    UnknownLayout
        A next observation is not the observation of the row after; with ``message`` and ``hint``.
    """
    known = min(len(now) - 1, len(after))
    if differs(after[:known], now[1 : known + 1]).any():
        raise UnknownLayout(message, hint=hint)
    return np.concatenate([now, after[-1:].astype(now.dtype)]) if len(now) == length else now
