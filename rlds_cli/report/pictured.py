"""Which fields are images.

::

    frames kept encoded     [H, W] [H, W, C]
    uint8 arrays            [H, W] with sides over 16, [H, W, 1 3 4], [1 3 4, H, W]
"""

from __future__ import annotations

import numpy as np

from rlds_cli.ted import Array, Field

_LEAST = 8
_CHANNELS = (1, 3, 4)


def is_image(f: Field) -> bool:
    """Whether the rows of a field are images."""
    if f.kind == "frames":
        return True
    if f.kind != "array" or f.dtype != "uint8":
        return False
    if len(f.shape) == 2:
        return min(f.shape) > 16
    return len(f.shape) == 3 and (channels_last(f.shape) or _channels_first(f.shape))


def as_bytes(values: Array) -> Array:
    """Pixels as uint8: values of depth, of 12 bits or of 16, lose their lowest bits."""
    if values.dtype == np.uint8:
        return values
    return (values >> (4 if values.max(initial=0) < 1 << 12 else 8)).astype(np.uint8)


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether rows of this shape are [H, W, C]."""
    return shape[2] in _CHANNELS and min(shape[:2]) >= _LEAST


def _channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] in _CHANNELS and min(shape[1:]) >= _LEAST
