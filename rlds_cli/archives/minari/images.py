"""What an encoded image says in its header."""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from rlds_cli.archives import image_header
from rlds_cli.errors import UnsafeArchive
from rlds_cli.store.frames import MAX_PIXELS


class Header(NamedTuple):
    """Codec ("jpeg", "png"), the shape that it decodes to, ``(H, W)`` or ``(H, W, C)``, and its size in bytes."""

    codec: str
    shape: tuple[int, ...]
    size: int


def header(data: bytes) -> Header | None:
    """The header of an encoded image, or None where it is not one that can be read.

    Raises
    ------
    UnsafeArchive
        It claims more pixels than are decoded.
    """
    known = image_header.read(data)
    if known is not None and known.height * known.width > MAX_PIXELS:
        raise UnsafeArchive(f"An image of {known.height}x{known.width} is not decoded.")
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            channels = len(image.getbands())
            shape = (image.height, image.width) if channels == 1 else (image.height, image.width, channels)
            return Header((image.format or "").lower(), shape, len(data))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
