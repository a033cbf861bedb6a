"""Rows of a dataset of either encoding, a few at a time: memory does not grow with the dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.store.frames import decode_frame
from rlds_cli.store.ranges import read_range
from rlds_cli.ted import VIDEO, Array, Field, IntArray

SAMPLE_STEPS = 1 << 16  # of which histograms are made
SAMPLE_BYTES = 64 << 20  # of one field, where rows are wide
_TILE_BYTES = 1 << 20
_DECODED_BYTES = 1 << 24  # what is decoded at a time of a compressed dataset
_BLOCKS = 256


@dataclass(frozen=True)
class Rows:
    """The rows of a whole dataset."""

    ds: Dataset

    @cached_property
    def start(self) -> IntArray:
        """First row of every episode [episodes]."""
        return np.asarray(self.ds.episodes["start"], np.int64)

    @cached_property
    def final(self) -> IntArray:
        """Rows of the final observations [episodes], which are no steps."""
        return np.asarray(self.start + self.ds.episodes["length"], np.int64)

    def sampled(self, f: Field) -> bool:
        """Whether `blocks` leaves out some of the steps of a field."""
        return self.ds.num_rows > _most_rows(f)

    def blocks(self, f: Field) -> Iterator[Array]:
        """Steps of an array field, block by block [n, ...]: all of them, or evenly spaced stretches of neighbours."""
        rows, most = self.ds.num_rows, _most_rows(f)
        if rows <= most:
            tile = max(1, _TILE_BYTES // max(1, f.row_bytes))
            stretches = [(a, min(a + tile, rows)) for a in range(0, rows, tile)]
        else:
            count = min(_BLOCKS if self.ds.encoding == "memmap" else _BLOCKS // 8, most)
            size = most // count
            stretches = [(int(a), int(a) + size) for a in np.linspace(0, rows - size, count)]
        parts, held = list[Array](), 0
        for a, b in stretches:
            values = self._range(f.name, a, b)
            no_steps = self.final[slice(*np.searchsorted(self.final, (a, b)))] - a
            parts.append(np.delete(values, no_steps, axis=0) if len(no_steps) else values)
            held += b - a
            if held * f.row_bytes >= _TILE_BYTES or b == stretches[-1][1]:
                yield np.concatenate(parts) if len(parts) > 1 else parts[0]
                parts, held = [], 0

    def at(self, f: Field, rows: IntArray) -> Array:
        """The values of an array field, or the codes of a text field, at ascending ``rows`` [n]."""
        if self.ds.encoding == "memmap":
            return np.asarray(self.ds.store.rows(f.name)[rows])
        at_once = max(1, _DECODED_BYTES // max(1, f.row_bytes))
        parts = []
        for block in np.unique(rows // at_once):
            wanted = rows[rows // at_once == block]
            parts.append(self._range(f.name, int(wanted[0]), int(wanted[-1]) + 1)[wanted - wanted[0]])
        return np.concatenate(parts) if parts else self._range(f.name, 0, 0)

    def frame(self, f: Field, row: int) -> Array | None:
        """One decoded frame of a field kept encoded, None where the row has none."""
        directory = self.ds.store.directory(f.name)
        if f.codec == VIDEO:
            index = read_range(directory, row, row + 1)
            return self.ds.store.videos(f.name).gather(f, index)[0] if index[0, 0] >= 0 else None
        first, end = (int(x) for x in read_range(directory / "offsets", row, row + 2))
        if end <= first:
            return None
        return decode_frame(read_range(directory / "bytes", first, end).tobytes(), f, row)

    def _range(self, name: str, start: int, stop: int) -> Array:
        if self.ds.encoding == "memmap":
            return self.ds.store.rows(name)[start:stop]
        return read_range(self.ds.store.directory(name), start, stop)


def _most_rows(f: Field) -> int:
    return max(1, min(SAMPLE_STEPS, SAMPLE_BYTES // max(1, f.row_bytes)))
