"""Encoded frames, decoded with Pillow: one by one, or many JPEG images of one size in one go."""

from __future__ import annotations

import io

import numpy as np

from rlds_cli.errors import Frames
from rlds_cli.ted import Array, Field, IntArray

MAX_PIXELS = 1 << 26  # of one frame; what claims more is not decoded
STRIP_PIXELS = 1 << 17  # decoded in one go: as fast as more, and out of a processor's cache no sooner than needed


def decode_frames(data: Array, offsets: IntArray, rows: IntArray, f: Field) -> Array:
    """Frames of ``rows`` [n] -> uint8 [n, *shape]; zeros where a row has none.

    What appears twice is decoded once. May be called by several threads: they run side by side.

    Parameters
    ----------
    data : uint8 array
        The encoded frames of all rows, end to end.
    offsets : int array [all rows + 1]
        Where each starts.
    rows : int array [n]
    f : Field

    Raises
    ------
    Frames
        A frame does not decode to the field's shape.
    """
    out = np.zeros((len(rows), *f.shape), np.uint8)
    distinct, place, which = np.unique(rows, return_index=True, return_inverse=True)
    starts, ends = offsets[distinct], offsets[distinct + 1]
    there = np.flatnonzero(ends > starts)
    at_once = max(1, STRIP_PIXELS // max(1, f.shape[0] * f.shape[1]))
    for first in range(0, len(there), at_once):
        part = there[first : first + at_once]
        encoded = [data[a:b].tobytes() for a, b in zip(starts[part].tolist(), ends[part].tolist(), strict=True)]
        _decode(encoded, f, distinct[part], out, place[part])
    again = np.ones(len(rows), bool)
    again[place] = False
    out[again] = out[place[which[again]]]
    return out


def _decode(encoded: list[bytes], f: Field, rows: IntArray, out: Array, place: IntArray) -> None:
    """Decode distinct rows into their places."""
    from rlds_cli.store import strips

    done = np.zeros(len(encoded), bool)
    if f.shape[0] * f.shape[1] <= MAX_PIXELS and strips.fit(encoded, f):
        decoded, done = strips.decode(encoded, f)
        if done.any():
            out[place[done]] = decoded if done.all() else decoded[done]
    for i in np.flatnonzero(~done).tolist():
        out[place[i]] = decode_frame(encoded[i], f, int(rows[i]))


def decode_frame(data: bytes, f: Field, row: int) -> Array:
    """Decode one image to uint8 of the field's shape, with Pillow.

    Raises
    ------
    Frames
        It does not decode, or its dimensions are not the field's (checked before decoding).
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            width, height = image.size
            if (height, width) != f.shape[:2] or width * height > MAX_PIXELS:
                raise Frames(f"{f.name}, row {row}: an image of {height}x{width}; {f.shape[0]}x{f.shape[1]} expected.")
            values = np.asarray(image)
    except (OSError, SyntaxError, ValueError) as e:
        raise Frames(f"{f.name}, row {row}: {len(data):,} bytes do not decode as {f.codec}: {e}") from e
    if values.size != np.prod(f.shape):
        raise Frames(f"{f.name}, row {row}: decodes to {list(values.shape)}; {list(f.shape)} expected.")
    return values.reshape(f.shape)
