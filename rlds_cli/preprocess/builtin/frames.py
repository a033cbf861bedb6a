"""Built-in functions that resize, crop, convert and encode images. Frames are passed decoded, uint8 [T+1, H, W, C].

Arrays with channels first, [T+1, C, H, W], keep that order; encoded frames are always [H, W, C].
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.media.image_header import Codec
from rlds_cli.dataset import MOST_CHANNELS, Batch, Dataset, Resize, stands_for
from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess.builtin import Prepared, builtin
from rlds_cli.preprocess.builtin.fields import Names, listed, stored
from rlds_cli.preprocess.builtin.video_encoding import VIDEO_CODECS, VideoCodec
from rlds_cli.preprocess.builtin.video_encoding import encode_video as encode_video
from rlds_cli.store import encode_frames as encode_frames
from rlds_cli.ted import EncodedFrames, Field, VideoFrames

Size = str | Sequence[int]
Keep = Literal["raw"] | Codec | VideoCodec

_LUMA = np.array(
    [19595, 38470, 7471], np.uint32
)  # 0.299, 0.587 and 0.114 times 2**16: ITU-R BT.601, as in Pillow's "L"


def _images(dataset: Dataset, fields: Names | None) -> list[Field]:
    """Return the named image fields, or all of them."""
    names = stored(dataset, fields) if fields is not None else dataset.schema
    found = [f for n in names if _is_image(f := dataset.schema[n])]
    if found and (fields is None or len(found) == len(names)):
        return found
    odd = next((dataset.schema[n] for n in names if not _is_image(dataset.schema[n])), None)
    what = f"{odd.name} is not an image field" if fields is not None and odd else f"{dataset.id} has no image fields"
    raise InvalidArgument(f"{what}: images are uint8 [H, W], [H, W, C] or [C, H, W].", hint="fields=observation/camera")


def _is_image(f: Field) -> bool:
    return f.dtype == "uint8" and len(f.shape) in (2, 3) and min(f.shape) > 0


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether frames of this shape are [C, H, W]."""
    return len(shape) == 3 and shape[0] <= MOST_CHANNELS < shape[2]


def _sizes(f: Field) -> tuple[int, ...]:
    """Return height, width and, if there are any, channels of a field."""
    return (*f.shape[1:], f.shape[0]) if _channels_first(f.shape) else f.shape


def _prepared(
    dataset: Dataset,
    images: Sequence[Field],
    shapes: Sequence[tuple[int, ...]],
    codec: Keep,
    quality: int,
    **video: Any,
) -> Prepared:
    for f, shape in zip(images, shapes, strict=True):
        if codec != "raw":
            _encoded(np.zeros((1, *shape), np.uint8), codec, quality, f.name, **video)
    return Prepared(dataset, reads=tuple(f.name for f in images))


def _sides(function: str, name: str, value: Any, count: int) -> tuple[int, ...]:
    """Parse ``"84x84"`` or a sequence to integers."""
    parts = value.lower().split("x") if isinstance(value, str) else value
    try:
        sides = tuple(int(p) if isinstance(p, str) else operator.index(p) for p in parts)
    except (TypeError, ValueError):
        sides = ()
    if len(sides) != count or min(sides) < 0 or min(sides[-2:]) < 1:
        example = "84x84" if count == 2 else "[8, 8, 84, 84]"
        what = "height and width" if count == 2 else "top, left, height and width"
        raise InvalidArgument(f"{function}: {name}={value!r} is not {what}, in pixels.", hint=f"{name}={example}")
    return sides


def _changed(
    episode: Batch,
    fields: Names | None,
    change: Callable[[str, Array], Array],
    codec: Keep,
    quality: int,
    **video: Any,
) -> Any:
    """Return the episode with its image fields changed and encoded."""
    for name, values in list(episode.leaves()):
        if values.dtype != np.uint8 or values.ndim not in (3, 4):
            continue
        if fields is None or any(stands_for(f, name) for f in listed(fields)):
            first = _channels_first(values.shape[1:])
            frames = change(name, np.moveaxis(values, 1, -1) if first else values)
            frames = np.ascontiguousarray(np.moveaxis(frames, -1, 1)) if first and codec == "raw" else frames
            episode[name] = frames if codec == "raw" else _encoded(frames, codec, quality, name, **video)
    return episode


def _encoded(
    frames: Array, codec: Codec | VideoCodec, quality: int, name: str, **video: Any
) -> EncodedFrames | VideoFrames:
    """Encode frames as images or as a video, whose own arguments are ``video``."""
    if codec in VIDEO_CODECS:
        return encode_video(frames, codec, name=name, **video)  # type: ignore[arg-type]
    return encode_frames(frames, codec, quality=quality, name=name)  # type: ignore[arg-type]


def _same(name: str, frames: Array) -> Array:
    return frames


# -- another size


def _prepare_resize(dataset: Dataset, *, size: Size, fields: Names | None, codec: Keep, quality: int) -> Prepared:
    images = _images(dataset, fields)
    sides = _sides("resize", "size", size, 2)
    for f in images:
        Resize(f.name, (sides[0], sides[1])).apply(f.name, np.zeros((1, *_sizes(f)), np.uint8))
    return _prepared(dataset, images, [(*sides, *_sizes(f)[2:]) for f in images], codec, quality)


@builtin(version=2, prepare=_prepare_resize, loader="Loader(ds, transform=Resize(field, size))")
def resize(episode: Batch, *, size: Size, fields: Names | None = None, codec: Keep = "raw", quality: int = 95) -> Any:
    """Resize frames to a height and width, bilinear and antialiased.

    `rlds_cli.loader.Resize` computes the same values, but decodes the large frames again for each batch: a copy with
    small ones pays off for training.

    Parameters
    ----------
    episode : Batch
    size : str or (int, int)
        Height and width in pixels: ``"84x84"``.
    fields : str or sequence of str, optional
        Image fields; by default all.
    codec : {"raw", "jpeg", "png", "h264", "hevc", "av1"}
        How frames are stored: as images, or as a video of each episode, see `encode`.
    quality : int
        JPEG quality, 1 to 100.

    Returns
    -------
    Batch
        Frames uint8 [T+1, height, width, C].

    Raises
    ------
    InvalidArgument
        A field is not an image field, or ``size`` is invalid.
    """
    height, width = _sides("resize", "size", size, 2)
    return _changed(episode, fields, lambda name, x: Resize(name, (height, width)).apply(name, x), codec, quality)


# -- a part


def _prepare_crop(
    dataset: Dataset, *, size: Size | None, box: Sequence[int] | None, fields: Names | None, codec: Keep, quality: int
) -> Prepared:
    images = _images(dataset, fields)
    shapes = []
    for f in images:
        sizes = _sizes(f)
        top, left, height, width = _box(size, box, sizes)
        if top + height > sizes[0] or left + width > sizes[1] or min(top, left) < 0:
            raise InvalidArgument(
                f"crop: {height}x{width} pixels at ({top}, {left}) exceed the {sizes[0]}x{sizes[1]} pixels of {f.name}."
            )
        shapes.append((height, width, *sizes[2:]))
    return _prepared(dataset, images, shapes, codec, quality)


def _box(size: Size | None, box: Sequence[int] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return top, left, height and width."""
    if (size is None) == (box is None):
        raise InvalidArgument("crop takes either size, for the middle, or box: top, left, height and width.")
    if box is not None:
        return _sides("crop", "box", box, 4)
    height, width = _sides("crop", "size", size, 2)
    return ((shape[0] - height) // 2, (shape[1] - width) // 2, height, width)


@builtin(version=2, prepare=_prepare_crop)
def crop(
    episode: Batch,
    *,
    size: Size | None = None,
    box: Sequence[int] | None = None,
    fields: Names | None = None,
    codec: Keep = "raw",
    quality: int = 95,
) -> Any:
    """Crop frames to their middle, or to a box.

    For random crops of each batch, use a transform of the loader, which may be any function of a batch.

    Parameters
    ----------
    episode : Batch
    size : str or (int, int), optional
        Height and width of the middle part, in pixels: ``"84x84"``.
    box : sequence of 4 int, optional
        Top, left, height and width, instead of ``size``.
    fields : str or sequence of str, optional
        Image fields; by default all.
    codec : {"raw", "jpeg", "png", "h264", "hevc", "av1"}
        How frames are stored: as images, or as a video of each episode, see `encode`.
    quality : int
        JPEG quality, 1 to 100.

    Returns
    -------
    Batch
        Frames uint8 [T+1, height, width, C].

    Raises
    ------
    InvalidArgument
        A field is not an image field, or its frames are smaller.
    """

    def change(name: str, x: Array) -> Array:
        top, left, height, width = _box(size, box, x.shape[1:])
        return np.ascontiguousarray(x[:, top : top + height, left : left + width])

    return _changed(episode, fields, change, codec, quality)


# -- without colours


def _prepare_grayscale(dataset: Dataset, *, fields: Names | None, codec: Keep, quality: int) -> Prepared:
    images = _images(dataset, fields)
    for f in images:
        channels = _sizes(f)[2:]
        if channels and channels[0] not in (1, 3, 4):
            raise InvalidArgument(f"grayscale: {f.name} has {channels[0]} channels, not 3 (red, green, blue).")
    return _prepared(dataset, images, [(*_sizes(f)[:2], 1)[: len(f.shape)] for f in images], codec, quality)


@builtin(version=2, prepare=_prepare_grayscale)
def grayscale(episode: Batch, *, fields: Names | None = None, codec: Keep = "raw", quality: int = 95) -> Any:
    """Convert colours to grey: 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601), rounded.

    Parameters
    ----------
    episode : Batch
    fields : str or sequence of str, optional
        Image fields; by default all. Grey frames stay unchanged; a fourth channel is dropped.
    codec : {"raw", "jpeg", "png", "h264", "hevc", "av1"}
        How frames are stored: as images, or as a video of each episode, see `encode`.
    quality : int
        JPEG quality, 1 to 100.

    Returns
    -------
    Batch
        Frames uint8 [T+1, H, W, 1]; [T+1, H, W] if the source has no axis of channels.

    Raises
    ------
    InvalidArgument
        A field is not an image field, or has two channels.
    """

    def change(name: str, x: Array) -> Array:
        if x.ndim == 3 or x.shape[-1] == 1:
            return x
        grey = (x[..., :3] @ _LUMA + (1 << 15)) >> 16
        return grey.astype(np.uint8)[..., None]

    return _changed(episode, fields, change, codec, quality)


# -- encoded otherwise


def _prepare_encode(
    dataset: Dataset, *, codec: Keep, fields: Names | None, quality: int, gop: int, crf: int | None, fps: float
) -> Prepared:
    images = _images(dataset, fields)
    shapes = [_sizes(f) for f in images]
    prepared = _prepared(dataset, images, shapes, codec, quality, gop=gop, crf=crf, fps=fps)
    return prepared if codec != "raw" else replace(prepared, decoded=prepared.reads or ())


@builtin(version=2, prepare=_prepare_encode)
def encode(
    episode: Batch,
    *,
    codec: Keep,
    fields: Names | None = None,
    quality: int = 95,
    gop: int = 2,
    crf: int | None = None,
    fps: float = 30,
) -> Any:
    """Store frames as JPEG or PNG, as a video of each episode, or decoded.

    Encoded frames take less space on disk, and the loader decodes them. PNG is lossless. A video takes the least;
    its frames have even sides, and colour at half of them.

    Parameters
    ----------
    episode : Batch
    codec : {"jpeg", "png", "h264", "hevc", "av1", "raw"}
    fields : str or sequence of str, optional
        Image fields; by default all.
    quality : int
        JPEG quality, 1 to 100.
    gop : int
        Frames of a video's group of pictures: 2 suits random frames, 30 takes less space.
    crf : int, optional
        Constant rate factor of a video, from 0 (best); by default 23 for H.264, 28 for HEVC and 30 for AV1.
    fps : float
        Frames a second that a video is labelled with.

    Raises
    ------
    InvalidArgument
        A field is not an image field, or the codec does not support its sides or its number of channels.
    MissingPackage
        A video is asked for, and `av` is not installed.
    """
    return _changed(episode, fields, _same, codec, quality, gop=gop, crf=crf, fps=fps)
