"""Values of frames as pictures for a browser."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.ted import Field

if TYPE_CHECKING:
    from PIL import Image

TYPES = {"jpeg": "image/jpeg", "png": "image/png"}
_SMALL = 64  # images with sides up to this are pixel art, which JPEG would blur
_MEDIUM = 256  # up to this they may be: what takes fewer bytes as PNG has few colours
_QUALITY = 88


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Values of depth that are shown as black and as white; None stands for the least, and for the greatest."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Showing:
    """How frames of a field are shown.

    Attributes
    ----------
    field : Field
    height : int or None
        Pixels that the picture is high at most.
    depth : Range
        Of values of more than 8 bits.
    """

    field: Field
    height: int | None = None
    depth: Range = Range()


def draw(values: Array, how: Showing) -> tuple[bytes, str]:
    """Return a frame [*field.shape] as a picture, and its codec."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels(values, how)))
    side = max(image.size)
    if how.height is not None and image.height > how.height:
        width = max(1, round(image.width * how.height / image.height))
        image = image.resize((width, how.height), Image.Resampling.BOX)
    codecs = ["png"] if side <= _SMALL else ["png", "jpeg"] if side <= _MEDIUM else ["jpeg"]
    made = [(_encoded(image, codec), codec) for codec in codecs]
    return min(made, key=lambda m: len(m[0]))


def _encoded(image: Image.Image, codec: str) -> bytes:
    file = io.BytesIO()
    image.save(file, codec, **({"quality": _QUALITY} if codec == "jpeg" else {"compress_level": 3}))
    return file.getvalue()


def pixels(values: Array, how: Showing) -> Array:
    """Return the pixels of a frame, uint8 [H, W] or [H, W, 3]; of a stack of grey frames those of the newest one."""
    f = how.field
    if values.dtype != np.uint8:
        return _grey(values.reshape(values.shape[:2]), how.depth)
    if values.ndim == 2:
        return values
    if f.kind == "array" and not f.has_channels_last:
        values = np.moveaxis(values, 0, -1)
        is_stack = values.shape[2] == 4
    else:  # opaque pixels rather than a frame that is white
        is_stack = f.kind == "array" and values.shape[2] == 4 and bool((values[..., 3] != 255).any())
    found: Array = values[..., :3]
    if is_stack or values.shape[2] < 3:
        found = values[..., -1 if is_stack else 0]
    return found


def _grey(values: Array, depth: Range) -> Array:
    low = float(values.min(initial=0)) if depth.low is None else depth.low
    high = float(values.max(initial=0)) if depth.high is None else depth.high
    scaled = (values.astype(np.float32) - low) * (255 / max(high - low, 1e-9))
    found: Array = np.clip(scaled, 0, 255).astype(np.uint8)
    return found


def spread(values: Array) -> Range:
    """Return the 1st and the 99th percentile of values of depth, without 0: it stands for none."""
    there = values[values > 0]
    if not len(there):
        return Range()
    low, high = np.percentile(there, [1, 99]).tolist()
    return Range(low=low, high=high)
