"""Fields of a dataset, names that have a meaning, and how an episode ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import BoolArray

Placement = Literal["root", "next", "both"]
Kind = Literal["array", "frames", "text"]

TERMINATED, TRUNCATED, CUT = 0, 1, 2
END_NAMES = ("terminated", "truncated", "cut")
VIDEO = "mp4"  # the codec of frames that are kept in videos


REWARD, FLAGS = "next/reward", ("next/terminated", "next/truncated")
# What an episode is about, in words: an episode column. Where that changes within an episode, the column has the first
# text, and the field that of each step.
TASK, TASK_AT = "task", "task_at"
# Characters that the name of a user's own episode column does not have: ``where=`` quotes names by backquotes.
UNFIT = re.compile(r"[@`\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


_CHANNELS = (1, 3, 4)
_LEAST, _LEAST_FLAT = 8, 17  # pixels of the shorter side of an image with channels, and without


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataset.

    Parameters
    ----------
    name : str
        Components joined by ``/``. Exactly the fields placed ``next`` have names that start with ``next/``.
    dtype : str
        NumPy name of the values: ``float32``, ``bool``, ... ``uint8`` for frames, ``uint16`` for
        those of depth, ``str`` for text.
    shape : tuple of int
        Of one row; ``()`` for scalars and text, ``(H, W, C)`` for frames.
    placement : {"root", "next", "both"}
    kind : {"array", "frames", "text"}
        ``frames`` are kept as published, encoded (``codec``); ``text`` is a string or None per row.
    codec : str or None
        ``jpeg`` or ``png`` for frames; ``mp4`` where they are in videos.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    placement: Placement = "root"
    kind: Kind = "array"
    codec: str | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded row; text counts its code."""
        return 4 if self.kind == "text" else prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def is_video(self) -> bool:
        """True for frames in videos."""
        return self.kind == "frames" and self.codec == VIDEO

    @property
    def is_image(self) -> bool:
        """True if rows look like images: of 8 bits, [H, W], [H, W, C] or [C, H, W]."""
        if self.kind == "frames":
            return True
        if self.kind != "array" or self.dtype != "uint8":
            return False
        if len(self.shape) == 2:
            return min(self.shape) > _LEAST_FLAT
        first = len(self.shape) == 3 and self.shape[0] in _CHANNELS and min(self.shape[1:]) >= _LEAST
        return first or self.has_channels_last

    @property
    def has_channels_last(self) -> bool:
        """True if rows look like images [H, W, C]."""
        return len(self.shape) == 3 and self.shape[2] in _CHANNELS and min(self.shape[:2]) >= _LEAST

    @property
    def is_column(self) -> bool:
        """True if a scalar has an axis of one element in batches, [B, 1]: rewards, flags and floats.

        So the product of any two of them is [B, 1]; that of [B, 1] and [B] is [B, B]. Other scalars, which are ids,
        discrete actions and the like, stay [B].
        """
        if self.kind != "array" or self.shape != ():
            return False
        rewards = self.name == REWARD or self.name.startswith(f"{REWARD}/")
        return rewards or self.name in FLAGS or np.dtype(self.dtype).kind == "f"

    def of_batch(self, values: npt.NDArray[Any], lead: int = 1) -> npt.NDArray[Any]:
        """Return values of rows, [B, ...] with ``lead`` axes before those of the rows, in their shape in a batch."""
        return values[..., None] if self.is_column and values.ndim == lead else values

    def of_rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values of a batch [B, ...] in the shape of rows: the inverse of `of_batch`, which [B] passes, too."""
        return values[:, 0] if self.is_column and values.shape[1:] == (1,) else values


def flags(length: int, end: int) -> dict[str, BoolArray]:
    """Return ``next/terminated`` and ``next/truncated`` of an episode flagged at its end only; cuts are truncated."""
    terminated, truncated = np.zeros(length, bool), np.zeros(length, bool)
    if length:
        (terminated if end == TERMINATED else truncated)[-1] = True
    return {FLAGS[0]: terminated, FLAGS[1]: truncated}
