"""JPEG frames of one size, decoded one below the other into one tall image.

Opening an image and turning it into an array costs Pillow almost as much as decoding a small one, all of it under
Python's lock, so that two threads are hardly faster than one (10,000 and 12,000 frames of 64x64x3 a second). A strip
does both once for all of its frames: 14,000 and 21,000.

Images that end in an error are left to be decoded one by one, which says what is wrong with them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from PIL import Image

from rlds_cli.ted import Array, BoolArray, Field

_MODES = {1: "L", 3: "RGB"}
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
    """Decode images that `fit`: uint8 [n, *shape], and which of them decoded without an error [n]."""
    height, width, mode = f.shape[0], f.shape[1], _MODES[f.shape[2] if len(f.shape) == 3 else 1]
    strip = Image.new(mode, (width, height * len(encoded)))
    whole = np.zeros(len(encoded), bool)
    for i, image in enumerate(encoded):
        # What ImageFile.load does for an image's tile, less the reading of its header.
        decoder = Image._getdecoder(mode, "jpeg", (mode, ""))
        try:
            decoder.setimage(strip.im, (0, i * height, width, (i + 1) * height))
            used, error = decoder.decode(image)
        finally:
            decoder.cleanup()
        whole[i] = used < 0 <= error  # otherwise it asks for more, or it is broken
    return np.asarray(strip).reshape(len(encoded), *f.shape), whole
