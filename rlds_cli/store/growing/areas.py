"""Arrays in segments whose rows are numbered alike, and how many episodes need each segment.

The rows of all fields are one area, and the bytes of each field of encoded frames another one. An episode lies in rows
[first, stop) of each area::

    area                first              stop
    rows                start              start + length + 1
    frames of a field   its first byte     the byte behind its frames

Episodes may share a video: then their spans overlap, see `growing.films`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import IntArray
from rlds_cli.store.growing.segments import SegmentWriter, episodes_in

Spans = IntArray  # [episodes, 2]: first row, and the one behind the last


def spans_of(e: npt.NDArray[np.void]) -> IntArray:
    """Return where episodes lie in each area [episodes, areas, 2]: the rows first, then the bytes of frames."""
    rows = np.stack([e["start"], e["start"] + e["length"] + 1], 1)
    return np.concatenate([rows[:, None], e["frames"]], 1)


def frame_bytes(e: npt.NDArray[np.void]) -> int:
    """Return the bytes of the encoded frames of episodes, in order; a video that several share counts once."""
    first, stop = e["frames"][..., 0], e["frames"][..., 1]  # neither falls from one episode to the next
    before = np.concatenate([first[:1], stop[:-1]])
    return int(np.maximum(0, stop - np.maximum(first, before)).sum())


class Area:
    """The writers of arrays whose rows are numbered alike, and the episodes in each of their segments."""

    def __init__(self, writers: Sequence[SegmentWriter]) -> None:
        self.writers = writers
        self.segment_rows = writers[0].column.segment_rows
        self.reset()

    def reset(self) -> None:
        """Forget all episodes."""
        self._live: dict[int, int] = {}  # segment -> episodes whose rows it holds
        self._empty: set[int] = set()  # segments of which no row is needed

    def count(self, spans: Spans) -> None:
        """Count episodes for the segments that hold their rows."""
        for number, count in self._segments_of(spans):
            self._live[number] = self._live.get(number, 0) + count

    def release(self, spans: Spans) -> None:
        """Count episodes no more, whose rows nobody needs."""
        for number, count in self._segments_of(spans):
            self._live[number] = self._live.get(number, 0) - count
            if self._live[number] <= 0:
                self._empty.add(number)

    def _segments_of(self, spans: Spans) -> Iterator[tuple[int, int]]:
        """Yield the segments with rows of episodes, and the number of episodes in each."""
        counts = episodes_in(spans[:, 0], spans[:, 1], self.segment_rows)
        numbers = np.flatnonzero(counts)
        return zip(numbers.tolist(), counts[numbers].tolist(), strict=True)

    def begin(self, end: int) -> int:
        """Return where the next rows begin: at ``end``, or in a new segment where other datasets share the last one."""
        number, within = divmod(end, self.segment_rows)
        shared = within and any(w.names(number) > 1 for w in self.writers)
        return (number + 1) * self.segment_rows if shared else end

    def punch(self, first: int, stop: int) -> None:
        """Give the disk back that rows [first, stop) take, as far as whole pages do."""
        for writer in self.writers:
            writer.punch(first, stop)

    def drop(self, end: int) -> None:
        """Give the disk back that rows from ``end`` on take, which are not committed."""
        for writer in self.writers:
            writer.drop(end)

    def remove_empty(self, end: int) -> None:
        """Remove segments of which no row is needed; rows from ``end`` on are still added."""
        self._empty = {n for n in self._empty if self._live.get(n, 0) <= 0}  # rows may have been added since
        for number in [n for n in self._empty if n < end // self.segment_rows]:
            for writer in self.writers:
                writer.remove(number)
            self._empty.discard(number)
            self._live.pop(number, None)

    def sweep(self, end: int) -> None:
        """Remove segments that a writer left behind that was killed: of no episode, or of a commit without a record."""
        for writer in self.writers:
            for number in writer.existing():
                if number != end // self.segment_rows and number not in self._live:
                    writer.remove(number)
