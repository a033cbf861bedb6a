"""Decode and encode images with Pillow. JPEG frames of one size are decoded together, as one tall image.

Opening an image and turning it into an array costs Pillow almost as much as decoding a small one, all of it under
Python's lock, so that two threads are hardly faster than one (10,000 and 12,000 frames of 64x64x3 a second). A strip
does both once for all its frames: 14,000 and 21,000 a second.

Images in which a strip fails are decoded again one by one, for an error that says what is wrong with them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS, Codec
from rlds_cli.base.repeated import distinct
from rlds_cli.errors import DamagedDataset, FrameError, InvalidArgument
from rlds_cli.ted import EncodedFrames, Field

CHANNELS = {"jpeg": {1: "L", 3: "RGB"}, "png": {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}}  # and how Pillow calls them
STRIP_PIXELS = 1 << 17  # decoded in one go: as fast as more, and out of a processor's cache no sooner than needed
MOST_REPEATED = 1 << 30  # bytes of images that rows share with the ones before, read at once
_MODES = {1: "L", 3: "RGB"}
_START = b"\xff\xd8"
_SCAN = 0xDA
# What may stand before it: frame headers (baseline, extended and progressive), tables, comments, applications' own.
_BEFORE = {0xC0, 0xC1, 0xC2, 0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}


# -- decoding


def decode_frames(
    data: Array,
    spans: tuple[IntArray, IntArray],
    rows: IntArray,
    f: Field,
    absent: Callable[[Field, IntArray], None] | None = None,
) -> Array:
    """Decode the frames of ``rows`` [n] to [n, *shape] of the field's dtype, with zeros for rows without a frame.

    Rows that share an image decode it once. Several threads may call this at the same time. ``absent`` is called with
    the rows that have no frame, and refuses those that need one.

    Parameters
    ----------
    data : uint8 array
        The encoded frames.
    spans : pair of int arrays [n]
        First byte of the frame of each of ``rows``, and the byte behind it.
    rows : int array [n]
    f : Field

    Raises
    ------
    FrameError
        A frame does not decode to the field's shape.
    DamagedDataset
        The offsets are not those of frames.
    """
    out = np.zeros((len(rows), *f.shape), f.dtype)
    starts, ends = spans
    there = np.flatnonzero(ends != starts)
    if absent is not None and len(there) < len(rows):
        absent(f, distinct(rows[ends == starts]))
    _, place, which = np.unique(starts[there], return_index=True, return_inverse=True)
    place = there[place]
    source = place[which.reshape(-1)]  # the row that each one shares its image with
    if (ends[there] != ends[source]).any():
        raise _misplaced(f.name)
    starts, ends = starts[place], ends[place]
    check_frames(starts, ends, len(data), f.name)
    at_once = max(1, STRIP_PIXELS // max(1, f.shape[0] * f.shape[1]))
    for first in range(0, len(place), at_once):
        part = slice(first, first + at_once)
        encoded = [data[a:b].tobytes() for a, b in zip(starts[part].tolist(), ends[part].tolist(), strict=True)]
        _decode(encoded, f, rows[place[part]], out, place[part])
    again = source != there
    out[there[again]] = out[source[again]]
    return out


def check_frames(starts: IntArray, ends: IntArray, size: int, name: str) -> None:
    """Refuse encoded frames of ascending rows [n] that overlap, go back, or leave the ``size`` bytes of the file.

    A frame may be that of the row before. All others take no more memory than the file has bytes, and these no more
    than a gigabyte.

    Raises
    ------
    DamagedDataset
    """
    shared = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
    backwards = (starts > ends).any() or ((ends[:-1] > starts[1:]) & ~shared).any()
    repeated = int((ends - starts)[1:][shared].sum())
    if len(starts) and (starts[0] < 0 or ends[-1] > size or backwards or repeated > MOST_REPEATED):
        raise _misplaced(name)


def _misplaced(name: str) -> DamagedDataset:
    return DamagedDataset(f"{name} has offsets of frames that are not within its bytes.", hint="rlds verify ID")


def _decode(encoded: list[bytes], f: Field, rows: IntArray, out: Array, place: IntArray) -> None:
    """Decode distinct rows into their places."""
    done = np.zeros(len(encoded), bool)
    if f.shape[0] * f.shape[1] <= MAX_PIXELS and fit(encoded, f):
        decoded, done = decode(encoded, f)
        if done.all() and (np.diff(place) == 1).all():  # rows in order: one copy, not one for each row
            out[place[0] : place[-1] + 1] = decoded
        elif done.any():
            out[place[done]] = decoded if done.all() else decoded[done]
    for i in np.flatnonzero(~done).tolist():
        out[place[i]] = decode_frame(encoded[i], f, int(rows[i]))


def decode_frame(data: bytes, f: Field, row: int, *, any_size: bool = False) -> Array:
    """Decode one image to the field's dtype and shape, with Pillow.

    With ``any_size``, of a field whose images vary in size, to [H, W, C] of its own, in the field's channels.

    Raises
    ------
    FrameError
        It does not decode, its dimensions are not the field's (checked before decoding), or it is too large.
    """
    if any_size:
        values = _decoded(data, f, row, mode=CHANNELS["png"].get(f.shape[2]) if f.dtype == "uint8" else None)
        return values.reshape(*values.shape[:2], f.shape[2])
    if not f.shape[0]:
        raise FrameError(
            f"{f.name} holds images of different sizes, which do not fit into one array.",
            hint="--frames HxW, at download or import, makes them one size",
        )
    values = _decoded(data, f, row)
    if values.size != math.prod(f.shape):
        raise FrameError(f"{f.name}, row {row}: decodes to {list(values.shape)}; {list(f.shape)} expected.")
    return values.reshape(f.shape)


def _decoded(data: bytes, f: Field, row: int, *, mode: str | None = None) -> Array:
    from PIL import Image, UnidentifiedImageError

    header = image_header.read(data)  # before Pillow, which has a warning of its own for large images
    if header is not None and header.height * header.width > MAX_PIXELS:
        raise FrameError(f"{f.name}, row {row}: an image of {header.height}x{header.width} is not decoded.")
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            width, height = image.size
            if f.shape[0] and (height, width) != f.shape[:2]:
                raise FrameError(
                    f"{f.name}, row {row}: an image of {height}x{width}; {f.shape[0]}x{f.shape[1]} expected."
                )
            if width * height > MAX_PIXELS:
                raise FrameError(f"{f.name}, row {row}: an image of {height}x{width} is not decoded.")
            mode = mode or _mode(image.mode, f)
            values = np.asarray(image.convert(mode) if mode else image)
    except UnidentifiedImageError as e:
        raise FrameError(f"{f.name}, row {row}: {len(data):,} bytes that are neither PNG nor JPEG.") from e
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
        raise FrameError(f"{f.name}, row {row}: {len(data):,} bytes do not decode as {f.codec}: {e}") from e
    if header is not None and f.dtype == header.dtype == "uint16":
        return values.astype(np.uint16, copy=False)  # some versions of Pillow have int32
    if values.dtype != f.dtype:  # wider values would wrap around in 8 bits
        bits = "at most" if values.dtype.itemsize == 1 else "more than"
        raise FrameError(f"{f.name}, row {row}: an image of {bits} 8 bits; {f.dtype} expected.")
    return values


def _mode(mode: str, f: Field) -> str | None:
    """Return the mode in which an image of a field is read; None for its own."""
    if mode == "P" and f.shape[2:] == (3,):
        return "RGB"  # the colours, not their numbers in the palette
    return "L" if mode == "1" else None


# -- encoding


def laid_out(frames: EncodedFrames, at: int, first: BoolArray) -> tuple[Array, Array]:
    """Return the bytes to store from byte ``at`` on, and the first byte of each image and the one behind it [n, 2].

    An image that equals that of the row before in its episode is stored once, as those of a camera that is slower than
    the steps. ``first`` [n] is True for rows that begin an episode.
    """
    ends = np.cumsum(frames.lengths)
    starts, data = ends - frames.lengths, frames.data
    alike = (frames.lengths[1:] == frames.lengths[:-1]) & (frames.lengths[1:] > 0) & ~first[1:]
    shared = np.zeros(len(frames), bool)
    for k in np.flatnonzero(alike).tolist():
        (a, b), (c, d) = (starts[k], ends[k]), (starts[k + 1], ends[k + 1])
        shared[k + 1] = data[a:b].tobytes() == data[c:d].tobytes()
    stops = at + np.cumsum(np.where(shared, 0, frames.lengths))
    spans = np.stack([stops - frames.lengths, stops], 1).astype(np.int64)
    if not shared.any():
        return data, spans
    kept = np.flatnonzero(~shared)
    edges = np.append(np.flatnonzero(np.diff(kept, prepend=-2) > 1), len(kept))  # of runs of rows that are stored
    runs = [data[starts[kept[i]] : ends[kept[j - 1]]] for i, j in pairwise(edges.tolist())]
    return np.concatenate([np.zeros(0, np.uint8), *runs]), spans


def encode_frames(frames: Array, codec: Codec, *, quality: int = 95, name: str = "frames") -> EncodedFrames:
    """Encode images, for a preprocess function that returns encoded frames instead of an array.

    Parameters
    ----------
    frames : uint8 array [n, H, W] or [n, H, W, C]; of depth, uint16 [n, H, W] or [n, H, W, 1]
    codec : {"jpeg", "png"}
        PNG takes 1 to 4 channels, and depth, and loses nothing; JPEG 1 or 3.
    quality : int
        Of JPEG, 1 to 100.
    name : str
        Name of the field in errors.

    Raises
    ------
    InvalidArgument
        They are not such images, or there is no such codec or quality.

    Examples
    --------
    >>> frames = encode_frames(np.zeros((5, 64, 64, 3), np.uint8), "png")
    >>> len(frames), frames.shape, frames.codec
    (5, (64, 64, 3), 'png')
    """
    from PIL import Image

    if codec not in CHANNELS:
        raise InvalidArgument(f'{name}: there is no codec {codec!r} for frames; "jpeg" and "png" are.')
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise InvalidArgument(f"{name}: quality={quality!r} is not from 1 to 100.")
    mode = CHANNELS[codec].get(frames.shape[3] if frames.ndim == 4 else 1)
    deep = frames.dtype == np.uint16 and (codec, mode) == ("png", "L")
    if (frames.dtype != np.uint8 and not deep) or frames.ndim not in (3, 4) or mode is None:
        raise InvalidArgument(f"{name}: {frames.dtype} {list(frames.shape)} cannot be encoded as {codec}.")
    options = {"quality": quality} if codec == "jpeg" else {}
    encoded = []
    for frame in frames:
        file = io.BytesIO()
        plain = frame[..., 0] if mode == "L" and frame.ndim == 3 else frame
        Image.fromarray(np.ascontiguousarray(plain)).save(file, codec, **options)
        encoded.append(file.getvalue())
    data = np.frombuffer(b"".join(encoded), np.uint8)
    lengths = np.array([len(e) for e in encoded], np.int64)
    return EncodedFrames(data, lengths, frames.shape[1:], codec, frames.dtype.name)


# -- JPEG images of one kind, many at a time


def fit(encoded: Sequence[bytes], f: Field) -> bool:
    """Return whether all images are JPEG in the field's size and channels, with headers that Pillow accepts."""
    channels = f.shape[2] if len(f.shape) == 3 else 1
    if channels not in _MODES or len(f.shape) not in (2, 3) or f.dtype != "uint8":
        return False
    size, mode = (f.shape[1], f.shape[0]), _MODES[channels]
    return all((end := _header_end(image)) and _opens(image[:end], size, mode) for image in encoded)


def _header_end(image: bytes) -> int | None:
    """Return the position of the compressed values; None for images with unusual markers before them."""
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
    """Return whether Pillow opens an image with this header in this mode. Images of one writer mostly share a header.

    The decoder alone accepts some headers that Pillow refuses on opening an image.
    """
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile

    try:
        with Image.open(io.BytesIO(header), formats=("JPEG",)) as image:
            return type(image) is JpegImageFile and image.size == size and image.mode == mode
    except Exception:  # decoding one by one raises it again, with the row
        return False


def decode(encoded: Sequence[bytes], f: Field) -> tuple[Array, BoolArray]:
    """Decode images that `fit` to uint8 [n, *shape]; the second result [n] says which decoded without an error."""
    from PIL import Image  # commands that decode nothing start without it

    height, width, mode = f.shape[0], f.shape[1], _MODES[f.shape[2] if len(f.shape) == 3 else 1]
    strip = Image.new(mode, (width, height * len(encoded)))
    whole = np.zeros(len(encoded), bool)
    for i, image in enumerate(encoded):
        # The same calls as in ImageFile.load for an image's tile, without reading its header.
        decoder = Image._getdecoder(mode, "jpeg", (mode, ""))
        try:
            decoder.setimage(strip.im, (0, i * height, width, (i + 1) * height))
            used, error = decoder.decode(image)
        finally:
            decoder.cleanup()
        whole[i] = used < 0 <= error  # otherwise the image is cut short, or broken
    return np.asarray(strip).reshape(len(encoded), *f.shape), whole
