"""JPEG frames of one size, decoded one below the other into one tall image.

Opening an image and turning it into an array costs Pillow almost as much as decoding a small one, all of it under
Python's lock, so that two threads are hardly faster than one (10,000 and 12,000 frames of 64x64x3 a second). A strip
does both once for all of its frames: 14,000 and 21,000.

Images that end in an error are left to be decoded one by one, which says what is wrong with them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from rlds_cli.ted import Array, BoolArray, Field

_MODES = {1: "L", 3: "RGB"}
_START = b"\xff\xd8"
_SCAN = 0xDA
# What may stand before it: frame headers (baseline, extended and progressive), tables, comments, applications' own.
_BEFORE = {0xC0, 0xC1, 0xC2, 0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}


def fit(encoded: Sequence[bytes], f: Field) -> bool:
    """Whether all images are JPEG of the dimensions and channels of the field, with headers that Pillow accepts."""
    channels = f.shape[2] if len(f.shape) == 3 else 1
    if channels not in _MODES or len(f.shape) not in (2, 3):
        return False
    size, mode = (f.shape[1], f.shape[0]), _MODES[channels]
    return all((end := _header_end(image)) and _opens(image[:end], size, mode) for image in encoded)


def _header_end(image: bytes) -> int | None:
    """Where the compressed values begin; None for what has markers before that stand in no usual image."""
    if not image.startswith(_START):
        return None
    at = len(_START)
    while at + 4 <= len(image) and image[at] == 0xFF:
        kind, at = image[at + 1], at + 2 + int.from_bytes(image[at + 2 : at + 4])
        if kind == _SCAN:
            return at if at <= len(image) else None
        if kind not in _BEFORE:
            return None
    return None


@lru_cache(maxsize=1 << 10)
def _opens(header: bytes, size: tuple[int, int], mode: str) -> bool:
    """Whether Pillow opens an image with this header, and as what; images of one writer mostly share theirs.

    The decoder alone passes over some of what Pillow refuses as it opens an image.
    """
    try:
        with Image.open(io.BytesIO(header), formats=("JPEG",)) as image:
            return type(image) is JpegImageFile and image.size == size and image.mode == mode
    except Exception:  # whatever it is, decoding one by one says it
        return False


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
