"""Which fields are images, and images as data URIs of a few kilobytes.

::

    frames kept encoded     [H, W] [H, W, C]
    uint8 arrays            [H, W] with sides over 16, [H, W, 1 3 4], [1 3 4, H, W]; of four planes the last is shown,
                            since a stack of grey frames is what they mostly are
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image as Pillow

from rlds_cli.ted import Array, Field

HEIGHT = 112  # pixels of a frame in a strip; larger ones are made smaller
_SMALL = 64  # sides up to which pixels are art: nothing that blurs them
_LEAST = 8
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Picture:
    """A frame as a data URI, and its size in pixels."""

    uri: str
    width: int
    height: int


def is_image(f: Field) -> bool:
    """Whether the rows of a field are images."""
    if f.kind == "frames":
        return True
    if f.kind != "array" or f.dtype != "uint8":
        return False
    if len(f.shape) == 2:
        return min(f.shape) > 16
    return len(f.shape) == 3 and (_channels_last(f.shape) or _channels_first(f.shape))


def _channels_last(shape: tuple[int, ...]) -> bool:
    return shape[2] in _CHANNELS and min(shape[:2]) >= _LEAST


def _channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] in _CHANNELS and min(shape[1:]) >= _LEAST


def picture(f: Field, frame: Array, *, height: int = HEIGHT) -> Picture:
    """A frame [*f.shape] at most ``height`` pixels high, as PNG or JPEG, whichever is smaller."""
    image = Pillow.fromarray(np.ascontiguousarray(_plane(f, frame)))
    image = image.convert("L" if image.mode in ("L", "LA") else "RGB")
    if image.height > height:
        width = max(1, round(image.width * height / image.height))
        image = image.resize((min(width, 4 * height), height), Pillow.Resampling.BOX)
    kind, encoded = min(_encodings(image), key=lambda pair: len(pair[1]))
    uri = f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"
    return Picture(uri, image.width, image.height)


def _plane(f: Field, frame: Array) -> Array:
    if frame.ndim == 2:
        return frame
    last = f.kind == "frames" or _channels_last(f.shape)
    channels = f.shape[2] if last else f.shape[0]
    frame = frame if last else np.moveaxis(frame, 0, -1)
    if channels == 1:
        return frame[..., 0]
    return frame[..., -1] if channels == 4 and f.kind == "array" else frame


def _encodings(image: Pillow.Image) -> list[tuple[str, bytes]]:
    kinds: list[tuple[str, dict[str, int | bool]]] = [("png", {"optimize": True})]
    if max(image.size) > _SMALL:
        kinds.append(("jpeg", {"quality": 78}))
    encoded = []
    for kind, options in kinds:
        file = io.BytesIO()
        image.save(file, kind, **options)
        encoded.append((kind, file.getvalue()))
    return encoded
