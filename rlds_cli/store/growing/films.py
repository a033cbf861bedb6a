"""Videos of growing datasets: published MP4 files as they are, end to end, each stored once for several episodes.

::

    FIELD                int32 [rows, 2]    number of the video among all that the field ever had, number of the frame
    video/FIELD/bytes    uint8 [bytes]      the videos, in segments
    videos.log           a record each      field, bytes [first, stop), sha256

Tables of packets follow from the bytes of a video, and are read from them when it is opened.

The span of an episode has all videos that its rows refer to. An archive may have many episodes in one video, so spans
overlap. Their first bytes and their last ones never fall from one episode to the next, though::

    episode      0         1         2         3
    videos       0         0         0, 1      1
    span         [0, 70)   [0, 70)   [0, 90)   [70, 90)

Then the bytes between the last needed episode before some episodes and the first needed one behind them are unneeded,
as with spans that do not overlap. Where episodes refer to videos in another order, a span also has those between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.media import video_files
from rlds_cli.base.media.mp4 import Extent, Track
from rlds_cli.errors import CorruptArchive, DamagedDataset, UnknownLayout
from rlds_cli.store import digests
from rlds_cli.store.blocks import Hold
from rlds_cli.store.digests import Digests
from rlds_cli.store.encoded import EncodedBytes
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.segments import SegmentWriter
from rlds_cli.store.local import LocalFiles
from rlds_cli.store.videos import Tables, Videos, from_table, of_tracks, table_path
from rlds_cli.ted import VideoFrames

Records = npt.NDArray[np.void]
_NONE = np.iinfo(np.int64).max  # first byte of an episode without videos


# -- writing


@dataclass(frozen=True, slots=True)
class Film:
    """A stored video: its number, its bytes, and the sha256 of them."""

    number: int
    start: int
    stop: int
    sha256: bytes


class FilmWriter:
    """Writes videos of one field behind those that it has.

    Parameters
    ----------
    field : int
        Its number, see `logs.encoded`.
    writer : SegmentWriter
        Of the bytes.
    count, end : int
        Number of the next video, and its first byte.
    known : dict
        Stored videos by their names in the source; those that may be referred to once more. New ones are added.
    """

    def __init__(self, field: int, writer: SegmentWriter, count: int, end: int, known: dict[str, Film]) -> None:
        self._field, self.writer, self._count, self._known = field, writer, count, known
        self._before = self._end = end
        self._new: list[Film] = []

    def write(self, names: Sequence[str], extent: Callable[[str], Extent]) -> list[Film]:
        """Return the stored videos of these names; write those that are not known."""
        for name in names:
            if name not in self._known:
                self._known[name] = self._written(extent(name))
        return [self._known[name] for name in names]

    def _written(self, extent: Extent) -> Film:
        video_files.read(extent)  # what cannot be read is refused before it is stored
        h, start = hashlib.sha256(), self._end
        for piece in extent.pieces():
            h.update(piece)
            self.writer.write(self._end, np.frombuffer(piece, np.uint8))
            self._end += len(piece)
        self._new.append(Film(self._count + len(self._new), start, self._end, h.digest()))
        return self._new[-1]

    def records(self) -> Records:
        """Return the records of the videos that were written."""
        found = np.zeros(len(self._new), logs.VIDEO_RECORD)
        found["field"] = self._field
        found["span"] = np.array([(f.start, f.stop) for f in self._new], np.int64).reshape(-1, 2)
        found["sha256"] = digests.as_array([f.sha256 for f in self._new])
        return found

    def spans(self, films: Sequence[Film], of: IntArray, start: IntArray) -> IntArray:
        """Return the spans of episodes [episodes, 2].

        ``of`` are the numbers in ``films`` of their videos, -1 for none, end to end; those of an episode begin at its
        ``start`` [episodes].
        """
        edges = np.array([*((f.start, f.stop) for f in films), (_NONE, 0)], np.int64)
        first = np.minimum.reduceat(edges[of, 0], start)
        stop = np.maximum.accumulate(np.maximum(np.maximum.reduceat(edges[of, 1], start), self._before))
        first = np.minimum(np.minimum.accumulate(first[::-1])[::-1], stop)
        return np.stack([first, stop], 1)


def write(
    to: FilmWriter, frames: VideoFrames, start: IntArray, extent: Callable[[str], Extent]
) -> tuple[Array, IntArray, Digests]:
    """Store the videos of whole episodes, whose first rows are ``start``.

    Returns
    -------
    int32 array [rows, 2]
        Number of the stored video, number of the frame.
    int array [episodes, 2]
        The spans of the episodes.
    uint8 array [videos, 32]
        The sha256 of the videos in the order of ``frames.files``; zeros for those without a frame.
    """
    used = referred(frames.index[:, 0])
    films = to.write([frames.files[n] for n in used.tolist()], extent)
    place = np.full(len(frames.files) + 1, -1, np.int64)  # the last stands for no video
    place[used] = np.arange(len(used))
    local = place[frames.index[:, 0]]
    spans = to.spans(films, local, start)
    found = np.zeros((len(frames.files), 32), np.uint8)
    found[used] = digests.as_array([f.sha256 for f in films])
    return renumbered(frames.index, _numbers(films)[place]), spans, found


def move(to: FilmWriter, records: Records, rows: Sequence[Array]) -> tuple[IntArray, IntArray]:
    """Store the videos of kept episodes once more, whose ``rows`` are [n, 2] for each.

    Parameters
    ----------
    records : array
        Of all videos of the field.

    Returns
    -------
    int array [episodes, 2]
        The spans of the episodes.
    int array [videos + 1]
        The new number of each video, -1 for those that no row refers to, and last for none.

    Raises
    ------
    DamagedDataset
        A row refers to a video that does not exist.
    """
    held = [np.append(referred(r[:, 0]), -1) for r in rows]
    flat = np.concatenate([np.zeros(0, np.int64), *held])
    used = referred(flat)
    if len(used) and used.max() >= len(records):
        where = to.writer.directory
        raise DamagedDataset(f"{where}: video {used.max():,} of {len(records):,}.", hint=logs.HINT)
    extents = {str(n): _extent(to.writer, *records["span"][n].tolist()) for n in used.tolist()}
    films = to.write(list(extents), extents.__getitem__)
    place = np.full(len(records) + 1, -1, np.int64)
    place[used] = np.arange(len(used))
    start = np.cumsum([0, *map(len, held)])[:-1]
    return to.spans(films, place[flat], start), _numbers(films)[place]


def renumbered(index: Array, numbers: IntArray) -> Array:
    """Return rows (video, frame) [n, 2] with other ``numbers`` of videos; the last is for none."""
    return np.stack([numbers[index[:, 0]], index[:, 1]], 1).astype(np.int32)


def _numbers(films: Sequence[Film]) -> IntArray:
    return np.array([*(f.number for f in films), -1], np.int64)


def referred(numbers: Array) -> IntArray:
    """Return the different numbers that are not negative, in the order in which they first appear."""
    used, first = np.unique(numbers, return_index=True)
    ordered = used[np.argsort(first)]
    return np.asarray(ordered[ordered >= 0], np.int64)


def _extent(of: SegmentWriter, start: int, stop: int) -> Extent:
    """Return the extent of bytes [start, stop) of the array of a writer."""
    size = of.column.segment_rows
    column = replace(of.column, needed=tuple(range(start // size, -(-stop // size))))
    return LocalFiles(of.dataset, moves=False).extent(column, start, stop, [])


# -- reading


class GrowingVideos(Videos):
    """The videos of one field of a growing dataset, at one version.

    Parameters
    ----------
    directory : Path
    of : EncodedBytes
        Their bytes, from the first that the version has on.
    records : array
        All of the field.
    """

    def __init__(self, directory: Path, of: EncodedBytes, records: Records) -> None:
        self._records = records
        super().__init__(directory, of)

    def _read_tables(self) -> None:
        spans = self._records["span"] - self._of.column.first
        spans[(spans[:, 0] < 0) | (spans[:, 1] > len(self._of.data))] = 0  # the version has none of these
        self.spans, self.files = spans, np.ascontiguousarray(self._records["sha256"])

    def _read_track(self, number: int, data: Array) -> Track:
        """Read the track of a video: from its table, if one was sent beside it, else from its bytes."""
        held: list[Hold] = []
        start, stop = self.spans[number].tolist()
        table = self._of.files.table_of(table_path(self._of.column.directory.parent, bytes(self.files[number])))
        try:
            if table is not None:
                return from_table(table, stop - start)
            return video_files.read(self._of.extent(start, stop, held))
        except (CorruptArchive, UnknownLayout, OSError, ValueError, TypeError, KeyError) as e:
            text = f"{self.directory}: video {number:,} cannot be read: {f'{e}'[:200]}"
            raise DamagedDataset(text, hint=logs.HINT) from e
        finally:
            for hold in held:
                hold.release()

    def stored_track(self, number: int) -> bytes:
        """Return nothing: tracks are read from the bytes."""
        return b""

    def tables(self, numbers: IntArray | None = None) -> Tables:
        """Return the tables of videos by their numbers, which are read from their bytes."""
        chosen = np.arange(len(self)) if numbers is None else numbers
        tracks = [self._read_track(n, self._of.data[:0]) for n in chosen.tolist()]
        return of_tracks(self.spans[chosen], tracks, self.files[chosen])
