"""The encoded images of a field, wherever their bytes are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.store.blocks import Hold
from rlds_cli.store.columns import Column
from rlds_cli.store.frames import check_frames, decode_frames
from rlds_cli.store.local import Files
from rlds_cli.ted import EncodedFrames, Field

if TYPE_CHECKING:
    from rlds_cli.base.media.mp4 import Extent


@dataclass(frozen=True, slots=True)
class EncodedBytes:
    """The images or videos of a field end to end: where they are, which column, and its entries by `Files.array`."""

    files: Files
    column: Column
    data: Array

    def extent(self, start: int, stop: int, keep: list[Hold]) -> Extent:
        """Return the files with a range of the bytes; ``keep`` gets what holds them."""
        return self.files.extent(self.column, start + self.column.first, stop + self.column.first, keep)


class Frames:
    """The images of one field, each of which is encoded on its own.

    Parameters
    ----------
    f : Field
    offsets : array [rows, 2]
        First byte of the image of each row, and the byte behind it, as the files count bytes.
    of : EncodedBytes
        Their bytes, from the first that the version has on.

    Attributes
    ----------
    column : Column
        That of the bytes.
    data : uint8 array
        The encoded images, end to end.
    first : int
        The first byte that the version has, of those that the offsets count.
    """

    def __init__(self, f: Field, offsets: Array, of: EncodedBytes) -> None:
        self._field, self._offsets, self._of = f, offsets, of
        self.column, self.data, self.first = of.column, of.data, of.column.first

    def mapped(self, lease: object) -> Frames:
        """Return the same images, of which only those are decoded whose `ranges` the caller holds."""
        data = self._of.files.mapped(self.column, lease)
        return Frames(self._field, self._offsets, replace(self._of, data=data))

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first byte of the images at ``rows`` [n], and the byte behind each, in `data`."""
        spans = np.asarray(self._offsets[rows]) - self.first
        return spans[:, 0], spans[:, 1]

    def spans_between(self, start: int, stop: int) -> IntArray:
        """Return the same of rows [start, stop), as [rows, 2]. Those of a row of no episode mean nothing."""
        found: IntArray = self._offsets[start:stop] - self.first
        return found

    def ranges(self, entries: Array) -> tuple[IntArray, IntArray]:
        """Return the ranges of bytes in `data` that decoding the images of entries [n, 2] of rows takes."""
        starts, stops = (entries - self.first).T
        there = (starts >= 0) & (starts < stops) & (stops <= len(self.data))  # decoding refuses others
        return starts[there], stops[there]

    def encoded(self, rows: IntArray) -> EncodedFrames:
        """Return a copy of the encoded images at ascending ``rows`` [n].

        Raises
        ------
        DamagedDataset
            The offsets are not those of frames.
        """
        starts, ends = self.spans(rows)
        check_frames(starts, ends, len(self.data), self._field.name)
        frames = [self.data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        data = np.concatenate([np.zeros(0, np.uint8), *frames])
        return EncodedFrames(data, ends - starts, self._field.shape, self._field.codec, self._field.dtype)

    def packet(self, row: int) -> bytes:
        """Return the encoded image of a row; empty for a row without one."""
        return self.encoded(np.array([row])).data.tobytes()

    def decoded(self, f: Field, entries: Array, rows: IntArray, absent: Callable[[Field, IntArray], None]) -> Array:
        """Decode the images of ``rows`` [n] with these entries [n, 2] to [n, *shape]; see `decode_frames`."""
        starts, stops = (entries - self.first).T
        with self._of.files.hold(self.data, starts, stops) as data:
            return decode_frames(data, (starts, stops), rows, f, absent)
