"""The files of rows that a writer of a growing dataset has open: those of all fields, in their areas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import safe as safe_files
from rlds_cli.store.columns import Part
from rlds_cli.store.digests import Digests
from rlds_cli.store.frames import laid_out
from rlds_cli.store.growing.areas import Area, spans_of
from rlds_cli.store.growing.records import Records
from rlds_cli.store.growing.segments import SegmentWriter, columns_of
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import EncodedFrames


class RowFiles:
    """The arrays of a growing dataset, for writing. ``ends`` are the rows, and the bytes of frames, that there are.

    Attributes
    ----------
    of_rows, of_digests, of_bytes : dict
        Writers by field: of an entry for each row, of the digests of rows, of the bytes of encoded frames, sorted.
    """

    def __init__(self, dataset: Path, head: Manifest, *, durable: bool) -> None:
        def writers(*parts: Part) -> dict[str, SegmentWriter]:
            return {c.field: SegmentWriter(dataset, c, durable=durable) for c in columns if c.part in parts}

        columns = columns_of(head)
        self.of_rows, self.of_digests = writers("rows"), writers("digests")
        self.of_bytes = dict(sorted(writers("frames", "films").items()))
        by_row = [*self.of_rows.values(), *self.of_digests.values()]
        self._areas = [Area(by_row), *(Area([w]) for w in self.of_bytes.values())]

    @property
    def segment_rows(self) -> IntArray:
        """Rows of a segment in each area [areas]."""
        return np.array([area.segment_rows for area in self._areas])

    # -- writing

    def begin(self, ends: Sequence[int]) -> list[int]:
        """Return where the next rows begin in each area, see `Area.begin`."""
        return [area.begin(end) for area, end in zip(self._areas, ends, strict=True)]

    def write(self, name: str, row: int, values: Array, of_rows: Digests | None) -> None:
        """Write entries of rows from row ``row`` on, and the digests of these rows."""
        self.of_rows[name].write(row, values)
        if of_rows is not None:
            self.of_digests[name].write(row, of_rows)

    def write_frames(self, name: str, frames: EncodedFrames, at: int, start: IntArray) -> Array:
        """Write encoded frames from byte ``at`` on, and return the first byte of each, and the one behind [rows, 2].

        ``start`` are the rows that begin an episode.
        """
        first = np.zeros(len(frames), bool)
        first[start] = True
        data, spans = laid_out(frames, at, first)
        self.of_bytes[name].write(at, data)
        return np.asarray(spans)

    def dirty(self) -> list[int]:
        """Return the descriptors of files that were written to since the last call."""
        return [descriptor for writer in self._writers for descriptor in writer.dirty()]

    def describe(self, ends: Sequence[int]) -> None:
        """Write how many rows there are, for other Zarr readers."""
        for area, end in zip(self._areas, ends, strict=True):
            for writer in area.writers:
                document = json.dumps(replace(writer.column, stop=end).document)
                safe_files.replace_text(writer.directory / "zarr.json", document)

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers:
            writer.close()

    @property
    def _writers(self) -> list[SegmentWriter]:
        return [writer for area in self._areas for writer in area.writers]

    # -- rows that are needed, and others

    def reset(self) -> None:
        """Forget all episodes."""
        for area in self._areas:
            area.reset()

    def count(self, e: Records) -> None:
        """Count episodes for the segments that hold their rows and the bytes of their frames."""
        for area, spans in zip(self._areas, spans_of(e).transpose(1, 0, 2), strict=True):
            area.count(spans)

    def release(self, e: Records) -> None:
        """Count episodes no more, whose rows nobody needs."""
        for area, spans in zip(self._areas, spans_of(e).transpose(1, 0, 2), strict=True):
            area.release(spans)

    def punch(self, unneeded: IntArray) -> None:
        """Give the disk back that rows [first, stop) of each area take [areas, 2], as far as whole pages do."""
        for area, (first, stop) in zip(self._areas, unneeded.tolist(), strict=True):
            area.punch(first, stop)

    def drop(self, ends: Sequence[int]) -> None:
        """Give the disk back that rows behind the ends take, which are not committed."""
        for area, end in zip(self._areas, ends, strict=True):
            area.drop(end)

    def remove_empty(self, ends: Sequence[int]) -> None:
        """Remove segments of which no row is needed; rows are still added to the last one."""
        for area, end in zip(self._areas, ends, strict=True):
            area.remove_empty(end)

    def sweep(self, ends: Sequence[int]) -> None:
        """Remove segments that a writer left behind that was killed: of no episode, or of a commit without a record."""
        for area, end in zip(self._areas, ends, strict=True):
            area.sweep(end)
