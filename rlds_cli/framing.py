"""``--frames raw|HxW``: encoded frames decoded, and resized, while an archive is converted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rlds_cli.ids import FRAME_SIZE
from rlds_cli.store.frames import decode_frame
from rlds_cli.ted import CHUNK_BYTES, Array, Chunk, Column, EncodedFrames, EpisodeTable, Field


def decoded(f: Field, frames: str) -> Field:
    """The field as it is stored with ``frames``."""
    if f.kind != "frames" or frames == "encoded":
        return f
    size = FRAME_SIZE.fullmatch(frames)
    shape = (int(size[1]), int(size[2]), *f.shape[2:]) if size else f.shape
    return replace(f, kind="array", codec=None, shape=shape)


def decode(chunks: Iterator[Chunk], schema: Sequence[Field], frames: str) -> Iterator[Chunk]:
    """The chunks with their frames decoded, cut to pieces of about 16 MiB."""
    encoded = [f for f in schema if f.kind == "frames"]
    width = max(1, sum(decoded(f, frames).row_bytes for f in encoded))
    step = max(1, CHUNK_BYTES // width)
    for chunk in chunks:
        ends = np.cumsum(chunk.last)
        offsets = {f.name: _offsets(chunk.columns[f.name]) for f in encoded}
        for a in range(0, len(chunk), step):
            b = min(a + step, len(chunk))
            columns: dict[str, Column] = {
                n: c[a:b] for n, c in chunk.columns.items() if not isinstance(c, EncodedFrames)
            }
            columns |= {f.name: _decode(f, chunk.columns[f.name], offsets[f.name], a, b, frames) for f in encoded}
            episodes = np.arange(int(ends[a - 1]) if a else 0, int(ends[b - 1]))
            yield Chunk(columns, chunk.last[a:b], _some(chunk.episodes, episodes), chunk.notes if a == 0 else ())


def _some(table: EpisodeTable, index: Array) -> EpisodeTable:
    return table.take(index) if len(index) else EpisodeTable.empty()


def _offsets(column: Column) -> Array:
    assert isinstance(column, EncodedFrames)
    return np.concatenate([[0], np.cumsum(column.lengths)])


def _decode(f: Field, column: Column, offsets: Array, a: int, b: int, frames: str) -> Array:
    assert isinstance(column, EncodedFrames)
    target = decoded(f, frames)
    out = np.zeros((b - a, *target.shape), np.uint8)
    for row in range(a, b):
        if column.lengths[row]:
            image = decode_frame(column.data[offsets[row] : offsets[row + 1]].tobytes(), f, row)
            out[row - a] = image if target.shape == f.shape else _resize(image, target.shape[:2])
    return out


def _resize(image: Array, size: tuple[int, ...]) -> Array:
    """Pillow's area-averaging resize, as it is usual for downscaled frames."""
    from PIL import Image

    flat = image[..., 0] if image.shape[-1] == 1 else image
    resized = Image.fromarray(flat).resize((size[1], size[0]), Image.Resampling.BOX)
    return np.asarray(resized).reshape(*size, *image.shape[2:])
