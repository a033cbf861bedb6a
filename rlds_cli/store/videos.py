"""Store the video files of a field as published, with tables of their packets.

::

    <field>/                          [rows, 2] int32: number of the video, number of the frame in it; -1 for none
    video/<field>/bytes               the files, one after the other
    video/<field>/spans               [videos, 2]: first byte of each, and the one behind its last
    video/<field>/packets             [packets, 4] int64: start and size in the file, time shown, 1 key + 2 shown
    video/<field>/first               [videos + 1]: first packet of each
    video/<field>/tracks/             per video a JSON text: codec, data for its decoder, sides, timescale
    video/<field>/sha256              [videos, 32]: of each file

A file is stored once, however many episodes or rows use it. The tables follow from the bytes; their sha256 is kept
beside them, and does not enter the fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import is_full
from rlds_cli.base.media import video_files
from rlds_cli.base.media.mp4 import Extent, Track
from rlds_cli.base.repeated import distinct
from rlds_cli.errors import DamagedDataset, NoSpace
from rlds_cli.store import digests, layouts
from rlds_cli.store.blocks import Hold
from rlds_cli.store.columns import Column
from rlds_cli.store.decoding import Video, decode_into
from rlds_cli.store.encoded import EncodedBytes
from rlds_cli.store.local import LocalFiles
from rlds_cli.ted import Field

_KEY, _SHOWN = 1, 2
_MOST_HELD = 1 << 22  # packets, about 18 bytes each
_TABLES = ("spans", "packets", "first")


# -- tables of stored videos


Locate = Callable[[str, str], Extent]  # (name of the field, name of the video in the rows' source)


class Videos:
    """The videos of one field, with tables in ``directory``; each is opened on first use.

    ``column`` is that of their bytes.
    """

    def __init__(self, directory: Path, of: EncodedBytes | None = None) -> None:
        self.directory = directory
        self._of = of or _bytes_in(directory)
        self.column = self._of.column
        self._opened: dict[int, Video] = {}
        self._held = 0  # packets of the opened videos
        self._extents: list[Hold] = []
        self._read_tables()

    def _read_tables(self) -> None:
        directory = self.directory
        self.spans: IntArray = layouts.read(directory / "spans")
        self._packets: IntArray = layouts.read(directory / "packets")
        self._first: IntArray = layouts.read(directory / "first")
        self._tracks = layouts.read_strings(directory / "tracks")
        self._check()

    def __len__(self) -> int:
        return len(self.spans)

    def _check(self) -> None:
        """Refuse tables that do not fit each other. The packets of a video are checked when it is opened."""
        check_spans(self.directory / "spans", self.spans, len(self._of.data))
        fits = self._packets.ndim == 2 and self._packets.shape[1] == 4 and self._packets.dtype == np.int64
        if not fits or not len(self.spans) == len(self._first) - 1 == len(self._tracks):
            raise DamagedDataset(f"{self.directory}: tables of other sizes.", hint="rlds verify ID")
        first = self._first
        rises = first.dtype == np.int64 and first[0] == 0 and first[-1] == len(self._packets)
        if not rises or (first[1:] < first[:-1]).any():
            raise DamagedDataset(f"{self.directory}: the table first does not fit packets.", hint="rlds verify ID")

    def published(self, number: int) -> Array:
        """Return the bytes of a video file, uint8 [n], as it was published."""
        self._check_number(number)
        start, stop = self.spans[number].tolist()
        return self._of.files.window(self._of.data, start, stop)

    def _check_number(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise DamagedDataset(f"{self.directory}: video {number:,} of {len(self):,}.", hint="rlds verify ID")

    def video(self, number: int) -> Video:
        """Return a video by its number."""
        video = self._opened.get(number)
        if video is None:
            self._check_number(number)
            data = self.published(number)
            track = self._read_track(number, data)
            self._held += len(track.start)
            if self._held > _MOST_HELD:  # videos in use stay in memory all the same
                self._opened, self._held = {}, len(track.start)
            video = Video((str(self.directory), number), data, track)
            self._opened[number] = video
        return video

    def _read_track(self, number: int, data: Array) -> Track:
        """Return the track of a video with these bytes; raises DamagedDataset."""
        packets = self._packets[self._first[number] : self._first[number + 1]]
        try:
            return _track(self._tracks[number], packets, len(data))
        except (ValueError, TypeError, KeyError) as e:
            text = f"{self.directory}: the tables of video {number:,} cannot be read: {f'{e}'[:200]}"
            raise DamagedDataset(text, hint="rlds verify ID") from e

    def stored_track(self, number: int) -> bytes:
        """Return what is stored of a video's track beside its bytes; nothing where it is read from these."""
        self._check_number(number)
        packets = self._packets[self._first[number] : self._first[number + 1]]
        return self._tracks[number].encode() + packets.tobytes()

    def tables(self, numbers: IntArray | None = None) -> Tables:
        """Return the tables of videos by their numbers, of all by default."""
        chosen = np.arange(len(self)) if numbers is None else numbers
        packets = [self._packets[self._first[n] : self._first[n + 1]] for n in chosen.tolist()]
        return Tables(self.spans[chosen], packets, [self._tracks[n] for n in chosen.tolist()], self.files[chosen])

    @cached_property
    def files(self) -> digests.Digests:
        """The sha256 of each video file [videos, 32]."""
        found = layouts.read(self.directory / "sha256")
        if found.shape != (len(self), 32) or found.dtype != np.uint8:
            raise DamagedDataset(f"{self.directory / 'sha256'} has other videos.", hint="rlds verify ID")
        return found

    def extent(self, number: int) -> Extent:
        """Return the files and the ranges of bytes of a video."""
        self._check_number(number)
        start, stop = self.spans[number]
        return self._of.extent(int(start), int(stop), self._extents)

    def mapped(self, lease: object) -> Videos:
        """Return the videos as they are: a decoder also reads packets beyond `ranges`, which are fetched then."""
        return self

    def ranges(self, index: Array) -> tuple[IntArray, IntArray]:
        """Return the ranges of bytes of all videos, end to end, that decoding the frames of an index [n, 2] takes."""
        index = index[(index >= 0).all(1)].astype(np.int64)
        both = distinct(index[:, 0] << 32 | index[:, 1])  # both are of 32 bits
        numbers, frames = both >> 32, both & 0xFFFFFFFF
        cuts = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist() if len(numbers) else []
        found = [np.zeros((2, 0), np.int64)]
        for a, b in pairwise(cuts):
            number = int(numbers[a])
            track = self.video(number).track
            shown = frames[a:b]
            packets = track.frames[shown[shown < len(track.frames)]]
            found.append(self.spans[number, 0] + np.stack(track.ranges(packets)))
        starts, stops = np.concatenate(found, 1)
        return starts, stops

    def decode_into(
        self,
        out: Sequence[Array],
        f: Field,
        entries: Array,
        rows: IntArray,
        absent: Callable[[Field, IntArray], None],
    ) -> None:
        """Decode the frames of ``rows`` [n] as `decoded` does, to n arrays of their shape."""
        absent(f, rows[entries[:, 0] < 0])
        self._decode(out, f, entries, str(self.directory))

    def decoded(self, f: Field, entries: Array, rows: IntArray, absent: Callable[[Field, IntArray], None]) -> Array:
        """Decode the frames of ``rows`` [n] with these entries [n, 2] to [n, *shape]; ``absent`` gets those without."""
        absent(f, rows[entries[:, 0] < 0])
        return self.gather(f, entries)

    def gather(self, f: Field, index: Array, *, on: bool = False) -> Array:
        """Decode the frames of an index [n, 2] to [n, *shape] in the field's dtype; see `store.decoding.decode_into`.

        With ``on`` the frames behind those of one video are asked for next: it has a decoder of its own.
        """
        out = np.empty((len(index), *f.shape), f.dtype)
        self._decode(out, f, index, (str(self.directory), *(index[:1, 0].tolist() if on else ())), on=on)
        return out

    def _decode(
        self, out: Sequence[Array] | Array, f: Field, index: Array, where: Hashable, *, on: bool = False
    ) -> None:
        if self._of.files.blocks is None:
            decode_into(out, index, self.video, f, where, on=on)
            return
        with self._of.files.hold(self._of.data, *self.ranges(index)) as data:  # from the key frames before them on

            @cache
            def held(number: int) -> Video:
                return replace(self.video(number), data=self._of.files.window(data, *self.spans[number].tolist()))

            decode_into(out, index, held, f, where, on=on)

    def table(self, number: int) -> bytes:
        """Return the table of a video as it is sent beside a growing dataset, see `to_table`."""
        return to_table(self.video(number).track)

    def packet(self, number: int, frame: int) -> bytes:
        """Return the encoded bytes of one frame; decoding them takes those of the frames that it refers to, too."""
        video = self.video(number)
        if not 0 <= frame < len(video.track.frames):
            raise DamagedDataset(f"{self.directory}: frame {frame:,} of video {number:,}.", hint="rlds verify ID")
        at = int(video.track.frames[frame])
        start = int(video.track.start[at])
        return video.data[start : start + int(video.track.size[at])].tobytes()

    def sizes(self, index: Array) -> IntArray:
        """Return the encoded size in bytes of each frame of an index [n, 2]; 0 for rows without a frame."""
        out = np.zeros(len(index), np.int64)
        for number in distinct(index[:, 0]).tolist():
            if number >= 0:
                at, track = index[:, 0] == number, self.video(number).track
                frames = index[at, 1]
                if not 0 <= frames.min() <= frames.max() < len(track.frames):
                    text = f"{self.directory}: a frame beyond the {len(track.frames):,} of video {number:,}."
                    raise DamagedDataset(text, hint="rlds verify ID")
                out[at] = track.size[track.frames[index[at, 1]]]
        return out


def _bytes_in(directory: Path) -> EncodedBytes:
    """Return the bytes of videos beside their tables."""
    shape, dtype = layouts.open_document(directory / "bytes")
    of = Column(
        field=directory.name, part="films", directory=Path("bytes"), dtype=dtype, shape=shape[1:], stop=shape[0]
    )
    files = LocalFiles(directory, moves=False)
    return EncodedBytes(files, of, files.array(of))


def write(directory: Path, extents: Sequence[Extent]) -> digests.Digests:
    """Write the videos of a field and their tables; return the sha256 of each video [videos, 32]."""
    target = arrays.data_file(directory / "bytes", 1)
    safe_files.make(target.parent)
    hashes = []
    try:
        with os.fdopen(safe_files.open_own(target, os.O_WRONLY | os.O_CREAT), "wb") as out:
            out.truncate(0)
            for e in extents:
                if e.sha256:  # its bytes are elsewhere
                    out.truncate(out.seek(e.size, os.SEEK_CUR))
                    hashes.append(bytes.fromhex(e.sha256))
                    continue
                h = hashlib.sha256()
                for piece in e.pieces():
                    out.write(piece)
                    h.update(piece)
                hashes.append(h.digest())
    except OSError as e:
        if is_full(e):
            raise NoSpace(
                "The disk is full: the videos do not fit. Finished parts are kept.",
                hint="free some space and run the same command again: it resumes there",
            ) from e
        raise
    tracks = [video_files.read(e) for e in extents]
    arrays.finish(directory / "bytes", (sum(e.size for e in extents),), "uint8")
    edges = np.cumsum([0, *(e.size for e in extents)], dtype=np.int64)
    tables = of_tracks(np.stack([edges[:-1], edges[1:]], 1), tracks, digests.as_array(hashes))
    tables.write(directory)
    return tables.files


def write_whole(directory: Path, of: Videos) -> None:
    """Write the videos of another field one behind the other, in one file."""
    tables = of.tables()
    edges = np.cumsum([0, *(tables.spans[:, 1] - tables.spans[:, 0])], dtype=np.int64)
    target = arrays.data_file(directory / "bytes", 1)
    safe_files.make(target.parent)
    with target.open("wb") as out:
        for number in range(len(of)):
            for piece in of.extent(number).pieces():
                out.write(piece)
    arrays.finish(directory / "bytes", (int(edges[-1]),), "uint8")
    replace(tables, spans=np.stack([edges[:-1], edges[1:]], 1)).write(directory)


@dataclass(frozen=True, slots=True)
class Tables:
    """What is stored of videos beside their bytes: spans [videos, 2], packets and track of each, and their sha256."""

    spans: IntArray
    packets: Sequence[IntArray]
    tracks: Sequence[str]
    files: digests.Digests

    def write(self, directory: Path) -> None:
        """Write the tables, and the digest of them."""
        arrays.write(directory / "spans", self.spans)
        arrays.write(directory / "first", np.cumsum([0, *map(len, self.packets)], dtype=np.int64))
        arrays.write(directory / "packets", np.concatenate([np.zeros((0, 4), np.int64), *self.packets]))
        arrays.write_strings(directory / "tracks", list(self.tracks))
        arrays.write(directory / "sha256", self.files)
        arrays.write_group(directory, {"sha256": tables_digest(directory)})


def check_spans(directory: Path, spans: IntArray, size: int) -> None:
    """Raise DamagedDataset unless the ``spans`` [videos, 2] of videos are in order, within ``size`` bytes."""
    fits = spans.ndim == 2 and spans.shape[1] == 2 and spans.dtype == np.int64
    edges = np.concatenate([[0], spans.reshape(-1) if fits else [], [size]])
    if not fits or (edges[1:] < edges[:-1]).any():
        raise DamagedDataset(f"{directory} are not in order within {size:,} bytes.", hint="rlds verify ID")


def tables_digest(directory: Path) -> str:
    """Return the sha256 of the tables."""
    h = hashlib.sha256()
    for name in _TABLES:
        h.update(arrays.raw(layouts.read(directory / name)))
    h.update(json.dumps(layouts.read_strings(directory / "tracks")).encode())
    return h.hexdigest()


def stored_digest(directory: Path) -> str:
    """Return the stored sha256 of the tables; empty if it cannot be read."""
    try:
        return str(documents.load(directory / "zarr.json")["attributes"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def of_tracks(spans: IntArray, tracks: Sequence[Track], files: digests.Digests) -> Tables:
    """Return the tables of videos whose packets are read from their bytes."""
    return Tables(spans, [_rows(t) for t in tracks], [_described(t) for t in tracks], files)


def _rows(track: Track) -> IntArray:
    flags = track.key * np.int64(_KEY) + track.shown * np.int64(_SHOWN)
    return np.stack([track.start, track.size, track.time, flags], 1)


def _described(track: Track) -> str:
    names = ("codec", "height", "width", "timescale", "matrix", "full_range", "delay")
    described: dict[str, Any] = {n: getattr(track, n) for n in names}
    return json.dumps(described | {"extradata": track.extradata.hex()})


@lru_cache(maxsize=4096)
def _header(text: str) -> dict[str, Any]:
    values: dict[str, Any] = documents.loads(text)
    for name in ("height", "width", "timescale"):
        if not isinstance(values[name], int) or isinstance(values[name], bool) or not 0 < values[name] < 1 << 31:
            raise ValueError(f"{name} is {str(values[name])[:40]}")
    matrix, delay = values["matrix"], values["delay"]
    if not (matrix is None or (isinstance(matrix, int) and 0 <= matrix < 256)) or not isinstance(delay, int | float):
        raise ValueError(f"matrix is {str(matrix)[:40]}, delay {str(delay)[:40]}")
    if not isinstance(values["codec"], str) or not isinstance(values["full_range"], bool):
        raise ValueError(f"codec is {str(values['codec'])[:40]}, full_range {str(values['full_range'])[:40]}")
    return values | {"extradata": bytes.fromhex(values["extradata"])}


def _track(text: str, packets: IntArray, size: int) -> Track:
    """Build the track of a video of ``size`` bytes; raises ValueError and its like for packets outside of them."""
    start, length, time, flags = packets.T
    if (start < 0).any() or (length < 0).any() or (start > size).any() or (length > size - start).any():
        raise ValueError(f"packets are not within its {size:,} bytes")
    return Track(**_header(text), start=start, size=length, time=time, key=flags & _KEY > 0, shown=flags & _SHOWN > 0)


# -- tables of single videos, which are sent beside those of growing datasets


def table_path(directory: Path, sha256: bytes) -> Path:
    """Return where the table of a video lies, beside the bytes of a field's videos in ``directory``."""
    return directory / "tables" / sha256.hex()


def to_table(track: Track) -> bytes:
    """Return the table of a video: its description, a newline, and its packets, as `Videos` stores them."""
    return _described(track).encode() + b"\n" + _rows(track).astype("<i8").tobytes()


def from_table(data: bytes, size: int) -> Track:
    """Return the track of a video of ``size`` bytes; raises ValueError, TypeError and KeyError for what is none."""
    described, _, packets = data.partition(b"\n")
    return _track(described.decode(), np.frombuffer(packets, "<i8").reshape(-1, 4).astype(np.int64), size)
