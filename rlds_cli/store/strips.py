"""JPEG frames of one size, decoded one below the other into one tall image.

Opening an image and turning it into an array costs Pillow almost as much as decoding a small one, all of it under
Python's lock, so that two threads are hardly faster than one (10,000 and 12,000 frames of 64x64x3 a second). A strip
does both once for all of its frames: 14,000 and 21,000.

Nothing is trusted that decoding image by image would not trust: what is not decoded to the end is left to that.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from rlds_cli.ted import Array, BoolArray, Field

_MODES = {1: "L", 3: "RGB"}
_BLANK: dict[str, Any] = {"L": 77, "RGB": (1, 254, 77)}  # a last row of nothing else counts as not decoded
_START = b"\xff\xd8"
_SIZES = (0xC0, 0xC1, 0xC2)  # frame headers: baseline, extended and progressive
_BEFORE = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # what may stand before: tables, comments, applications' own


def fit(encoded: Sequence[bytes], f: Field) -> bool:
    """Whether all images are JPEG, of the dimensions and channels of the field."""
    channels = f.shape[2] if len(f.shape) == 3 else 1
    if channels not in _MODES or len(f.shape) not in (2, 3):
        return False
    wanted = (f.shape[0], f.shape[1], channels)
    return all(_dimensions(image) == wanted for image in encoded)


def _dimensions(image: bytes) -> tuple[int, int, int] | None:
    """Height, width and channels as the first frame header says; None for what has no such header."""
    if not image.startswith(_START):
        return None
    at = len(_START)
    while at + 10 <= len(image) and image[at] == 0xFF:
        kind, length = image[at + 1], int.from_bytes(image[at + 2 : at + 4])
        if kind in _SIZES:
            depth, height, width, channels = struct.unpack_from(">BHHB", image, at + 4)
            return (height, width, channels) if depth == 8 else None
        if kind not in _BEFORE:
            return None
        at += 2 + length
    return None


def decode(encoded: Sequence[bytes], f: Field) -> tuple[Array, BoolArray]:
    """Decode images that `fit`: uint8 [n, *shape], and which of them were decoded to the end [n]."""
    mode = _MODES[f.shape[2] if len(f.shape) == 3 else 1]
    try:
        strip = np.asarray(_Strip(encoded, mode, f.shape[0], f.shape[1]))
    except (OSError, SyntaxError, ValueError):  # one of them is broken: told by decoding each by itself
        return np.empty(0, np.uint8), np.zeros(len(encoded), bool)
    images = strip.reshape(len(encoded), f.shape[0], f.shape[1], -1)
    blank = (images[:, -1] == _BLANK[mode]).all((1, 2))
    return images.reshape(len(encoded), *f.shape), ~blank


class _Strip(ImageFile.ImageFile):
    """An image file of n tiles; tile i is a JPEG file of its own, and its offset the number i."""

    format, format_description = "STRIP", "JPEG frames one below the other"

    def __init__(self, encoded: Sequence[bytes], mode: str, height: int, width: int) -> None:
        self._encoded, self._unread = encoded, b""
        self._shown = mode, height, width
        super().__init__(io.BytesIO())

    def _open(self) -> None:
        mode, height, width = self._shown
        self._mode, self._size = mode, (width, height * len(self._encoded))
        self.tile = [
            ImageFile._Tile("jpeg", (0, i * height, width, (i + 1) * height), i, (mode, ""))
            for i in range(len(self._encoded))
        ]

    def load_prepare(self) -> None:
        """Begin with an image whose every row can be told from a decoded one."""
        self.im = Image.new(self.mode, self.size, _BLANK[self.mode]).im
        super().load_prepare()

    def load_seek(self, tile: int) -> None:
        """Go to the start of a tile."""
        self._unread = self._encoded[tile]

    def load_read(self, size: int) -> Any:
        """Give a tile's file, whole, and nothing after it: an image that ends early must not run into the next."""
        unread, self._unread = self._unread, b""
        return unread
