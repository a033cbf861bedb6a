"""Images as data URIs of a few kilobytes. Of four planes the last is shown: mostly they are a stack of grey frames."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image as Pillow

from rlds_cli.report.pictured import as_bytes, channels_last
from rlds_cli.ted import Array, Field

HEIGHT = 112  # pixels of a frame in a strip; larger ones are made smaller
_SMALL = 64  # sides up to which pixels are art: nothing that blurs them


@dataclass(frozen=True, slots=True)
class Picture:
    """A frame as a data URI, and its size in pixels."""

    uri: str
    width: int
    height: int


def picture(f: Field, frame: Array, *, height: int = HEIGHT) -> Picture:
    """A frame [*f.shape] at most ``height`` pixels high, as PNG or JPEG, whichever is smaller."""
    image = Pillow.fromarray(np.ascontiguousarray(_plane(f, as_bytes(frame))))
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
    last = f.kind == "frames" or channels_last(f.shape)
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
