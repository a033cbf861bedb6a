"""Decode, resize or encode frames of an archive as it is converted: ``--frames raw``, ``HxW``, ``jpeg`` or ``png``.

Decoders are imported when a frame is decoded: most archives have none, and the process that reads them starts with this
module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.base.ids import FRAME_CODECS, FRAME_SIZE
from rlds_cli.ted import Chunk, Column, EncodedFrames, EpisodeTable, Field, VideoFrames

if TYPE_CHECKING:
    from rlds_cli.store import Video

_CHANNELS = {"jpeg": (1, 3), "png": (1, 2, 3, 4)}
_LEAST_SIDE, _MOST_CHANNELS = 16, 16  # smallest side of a raw frame; largest number of channels
# Frames that are decoded, hashed and written together. Pieces of 16 MiB left the processor's caches in between, and
# writing them took three times as long.
_DECODED_BYTES = 4 << 20


def decoded_field(f: Field, frames: str) -> Field:
    """Return the field as it is stored with ``frames``."""
    if frames in FRAME_CODECS:
        channels = f.shape[2] if len(f.shape) == 3 else 1
        encodes = is_raw_frame(f) and not _channels_first(f) and channels in _CHANNELS[frames]
        return replace(f, kind="frames", codec=frames) if encodes else f
    size = FRAME_SIZE.fullmatch(frames)
    if f.kind != "frames" and not (size and is_raw_frame(f)):
        return f
    if frames == "encoded":
        return f
    return replace(f, kind="array", codec=None, shape=_resized(f, (int(size[1]), int(size[2]))) if size else f.shape)


def is_raw_frame(f: Field) -> bool:
    """Return whether rows are frames published as arrays: uint8 [H, W], [H, W, C] or [C, H, W]."""
    if f.kind != "array" or f.dtype != "uint8" or len(f.shape) not in (2, 3):
        return False
    sides = f.shape[1:] if _channels_first(f) else f.shape[:2]
    return min(sides) >= _LEAST_SIDE and (len(f.shape) == 2 or min(f.shape) <= _MOST_CHANNELS)


def _channels_first(f: Field) -> bool:
    return f.kind == "array" and len(f.shape) == 3 and f.shape[2] > _MOST_CHANNELS


def _resized(f: Field, size: tuple[int, int]) -> tuple[int, ...]:
    return (f.shape[0], *size) if _channels_first(f) else (*size, *f.shape[2:])


def decode_chunks(chunks: Iterator[Chunk], schema: Sequence[Field], frames: str, root: Path) -> Iterator[Chunk]:
    """Decode, resize or encode the frames of chunks, in pieces of about 4 MiB. Videos are below ``root``."""
    encoded = [f for f in schema if decoded_field(f, frames) != f]
    width = max(1, sum(max(f.row_bytes, decoded_field(f, frames).row_bytes) for f in encoded))
    step = max(1, _DECODED_BYTES // width)
    for chunk in chunks:
        ends = np.cumsum(chunk.last)
        offsets = {f.name: _offsets(chunk.columns[f.name]) for f in encoded}
        for a in range(0, len(chunk), step):
            b = min(a + step, len(chunk))
            columns: dict[str, Column] = {
                n: c[a:b]
                for n, c in chunk.columns.items()
                if n not in offsets and not isinstance(c, EncodedFrames | VideoFrames)
            }
            for f in encoded:
                column = chunk.columns[f.name]
                if isinstance(column, np.ndarray) and frames in FRAME_CODECS:
                    columns[f.name] = _encode_rows(f, column[a:b], frames, chunk.last[a:b])
                elif isinstance(column, VideoFrames):
                    columns[f.name] = _decode_videos(f, column, slice(a, b), frames, root)
                else:
                    columns[f.name] = _decode_rows(f, column, offsets[f.name], a, b, frames)
            episodes = np.arange(int(ends[a - 1]) if a else 0, int(ends[b - 1]))
            yield Chunk(
                columns, chunk.last[a:b], _some_episodes(chunk.episodes, episodes), chunk.notes if a == 0 else ()
            )


def _some_episodes(table: EpisodeTable, index: Array) -> EpisodeTable:
    return table.take(index) if len(index) else EpisodeTable.empty()


def _offsets(column: Column) -> Array:
    if not isinstance(column, EncodedFrames):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.cumsum(column.lengths)])


def _decode_rows(f: Field, column: Column, offsets: Array, a: int, b: int, frames: str) -> Array:
    target = decoded_field(f, frames)
    if isinstance(column, np.ndarray):
        return _resize_rows(f, column[a:b], target.shape)
    assert isinstance(column, EncodedFrames)
    from rlds_cli.store import decode_frame, decode_frames

    if f.shape[0] and target.shape == f.shape:
        return decode_frames(column.data, (offsets[a:b], offsets[a + 1 : b + 1]), np.arange(a, b), f)
    out = np.zeros((b - a, *target.shape), target.dtype)
    for row in range(a, b):
        if column.lengths[row]:
            data = column.data[offsets[row] : offsets[row + 1]].tobytes()
            any_size = not f.shape[0] and target.shape != f.shape
            out[row - a] = _resize(decode_frame(data, f, row, any_size=any_size), target.shape[:2])
    return out


def _encode_rows(f: Field, rows: Array, codec: str, last: BoolArray) -> EncodedFrames:
    """Encode raw frames; last rows of a field that is not placed ``both`` have none."""
    from rlds_cli.store import encode_frames

    shown = np.ones(len(rows), bool) if f.placement == "both" else ~last
    encoded = encode_frames(rows[shown], codec, name=f.name)  # type: ignore[arg-type]
    lengths = np.zeros(len(rows), np.int64)
    lengths[shown] = encoded.lengths
    return replace(encoded, lengths=lengths)


def _decode_videos(f: Field, column: VideoFrames, rows: slice, frames: str, root: Path) -> Array:
    from rlds_cli.store import decode_video

    target = decoded_field(f, frames)
    images = decode_video(column.index[rows], lambda n: _source_video(root / column.files[n]), f, str(root / f.name))
    if target.shape == f.shape:
        return images
    return np.stack([_resize(image, target.shape[:2]) for image in images])


@lru_cache(maxsize=16)
def _source_video(file: Path) -> Video:
    from rlds_cli.base.media import video_files
    from rlds_cli.store import Video

    return Video(str(file), np.memmap(file, np.uint8, "r"), video_files.read(file))


def _resize_rows(f: Field, rows: Array, shape: tuple[int, ...]) -> Array:
    first = _channels_first(f)
    out = np.empty((len(rows), *shape), np.uint8)
    for row, image in enumerate(rows):
        planes = image if first else image[None] if image.ndim == 2 else np.moveaxis(image, 2, 0)
        small = np.stack(
            [_resize(np.ascontiguousarray(p)[..., None], shape[first : first + 2])[..., 0] for p in planes]
        )
        out[row] = small if first else small[0] if image.ndim == 2 else np.moveaxis(small, 0, 2)
    return out


def _resize(image: Array, size: tuple[int, ...]) -> Array:
    """Resize with Pillow's area average; depth frames with the nearest value.

    The mean of two depths, or of their codes, is the depth of neither.
    """
    from PIL import Image

    flat = image[..., 0] if image.shape[-1] == 1 else image
    way = Image.Resampling.BOX if image.dtype == np.uint8 else Image.Resampling.NEAREST
    resized = Image.fromarray(flat).resize((size[1], size[0]), way)
    return np.asarray(resized).reshape(*size, *image.shape[2:])
