"""Cut some frames out of an MP4 file without decoding them: new tables for the same packets.

The packets are those from the key frame before the first frame to the last one. An edit list hides the frames before
the first, as ISO/IEC 14496-12, 8.6.6 has it, so that the first frame is shown at time 0. Equal input gives equal bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.media import mp4
from rlds_cli.base.media.mp4 import Extent, Track

_UNIT = (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)  # the matrix that leaves a picture as it is
_UNKNOWN_LANGUAGE = 0x55C4
_SHOWN_TRACK = 3  # enabled, and part of the presentation
_STILLS = 30  # a second: the duration of the only frame of a file


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A file that is made of ``head`` and some ranges of bytes (start, size) of ``video``."""

    video: Extent
    head: bytes
    ranges: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return len(self.head) + sum(size for _, size in self.ranges)

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in pieces of about a megabyte."""
        if self.head:
            yield self.head
        for start, size in self.ranges:
            yield from self.video.pieces(start, size)

    def write(self, path: Path) -> None:
        """Write the whole, through to the disk."""
        with path.open("wb") as out:
            for piece in self.pieces():
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())


def cut(video: Extent, first: int, last: int) -> Excerpt:
    """Return frames ``first`` to ``last``, both included, of a video.

    Raises
    ------
    CorruptArchive, UnknownLayout
        The video is not one that `mp4.read` reads.
    """
    track, entry = mp4.read(video), mp4.sample_entries(video)
    wanted = track.frames[first : last + 1]
    b, e = track.begin(int(wanted[0])), int(wanted.max()) + 1
    time, sizes, places = track.time[b:e], track.size[b:e], track.start[b:e]
    begins = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1] + sizes[:-1]]))
    ends = np.append(begins[1:], len(places))
    ranges = [
        (int(places[x]), int(places[y - 1] + sizes[y - 1] - places[x]))
        for x, y in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    shown = int(track.time[wanted[0]]), int(track.time[wanted[-1]])
    head = _head(track, entry, time, sizes, track.key[b:e], shown)
    return Excerpt(video, head, tuple(ranges))


def _head(track: Track, entry: bytes, time: IntArray, sizes: IntArray, key: Array, shown: tuple[int, int]) -> bytes:
    """Return everything before the packets."""
    order = np.sort(time)
    late = int((order - time).max())  # so that no frame is shown before it is decoded
    decoded = order - order[0]
    offset = time - order[0] + late - decoded
    last = _duration(track)
    duration = np.append(np.diff(decoded), last)
    total, played = int(duration.sum()), shown[1] - shown[0] + last
    tables = [
        _box(b"stsd", entry),
        _full(b"stts", _runs(duration)),
        _full(b"ctts", _runs(offset)) if offset.any() else b"",
        _full(b"stss", _numbers(np.flatnonzero(key) + 1)) if not key.all() else b"",
        _full(b"stsc", struct.pack(">IIII", 1, 1, len(sizes), 1)),
        _full(b"stsz", struct.pack(">I", 0) + _numbers(sizes)),
    ]
    begin = shown[0] - int(order[0]) + late
    size = int(sizes.sum())
    wide = size + 16 >= 1 << 32
    front = _box(b"ftyp", b"isom" + struct.pack(">I", 512) + b"isomiso2mp41")
    data = struct.pack(">I4sQ", 1, b"mdat", size + 16) if wide else struct.pack(">I4s", size + 8, b"mdat")
    moov = _moov(track, [*tables, _full(b"co64", struct.pack(">IQ", 1, 0))], total, played, begin)
    at = len(front) + len(moov) + len(data)
    moov = _moov(track, [*tables, _full(b"co64", struct.pack(">IQ", 1, at))], total, played, begin)
    return front + moov + data


def _moov(track: Track, tables: list[bytes], total: int, played: int, begin: int) -> bytes:
    scale, matrix = track.timescale, struct.pack(">9i", *_UNIT)
    movie = struct.pack(">QQIQ", 0, 0, scale, played) + struct.pack(">IHHQ", 0x10000, 0x100, 0, 0) + matrix
    movie += bytes(24) + struct.pack(">I", 2)
    header = struct.pack(">QQIIQ", 0, 0, 1, 0, played) + bytes(16) + matrix
    header += struct.pack(">II", track.width << 16, track.height << 16)
    edit = struct.pack(">IQqhh", 1, played, begin, 1, 0)
    media = [
        _full(b"mdhd", struct.pack(">QQIQHH", 0, 0, scale, total, _UNKNOWN_LANGUAGE, 0), version=1),
        _full(b"hdlr", struct.pack(">I4s", 0, b"vide") + bytes(12) + b"video\0"),
        _box(
            b"minf",
            _full(b"vmhd", bytes(8), flags=1)
            + _box(b"dinf", _full(b"dref", struct.pack(">I", 1) + _full(b"url ", b"", flags=1)))
            + _box(b"stbl", b"".join(tables)),
        ),
    ]
    return _box(
        b"moov",
        _full(b"mvhd", movie, version=1)
        + _box(
            b"trak",
            _full(b"tkhd", header, version=1, flags=_SHOWN_TRACK)
            + _box(b"edts", _full(b"elst", edit, version=1))
            + _box(b"mdia", b"".join(media)),
        ),
    )


def _duration(track: Track) -> int:
    """Return how long a frame is shown, most often."""
    steps = np.diff(track.time[track.frames])
    if not len(steps):
        return max(1, track.timescale // _STILLS)
    values, counts = np.unique(steps, return_counts=True)
    return max(1, int(values[np.argmax(counts)]))


def _runs(values: IntArray) -> bytes:
    """Return a table of pairs (count, value)."""
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    counts = np.diff(np.append(begins, len(values)))
    return struct.pack(">I", len(begins)) + np.stack([counts, values[begins]], 1).astype(">u4").tobytes()


def _numbers(values: IntArray) -> bytes:
    return struct.pack(">I", len(values)) + values.astype(">u4").tobytes()


def _full(kind: bytes, content: bytes, *, version: int = 0, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", version << 24 | flags) + content)


def _box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content
