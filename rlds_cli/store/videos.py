"""Store the video files of a field as published, with tables of their packets, and decode single frames.

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

A frame is decoded with the package ``av``, from the key frame before it on. The tables say which packets that takes, so
nothing is searched for. Each thread keeps its decoders where they are: reading in order decodes every frame once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from threading import local
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import is_full
from rlds_cli.base.media import video_files
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.base.media.mp4 import Extent, Track
from rlds_cli.base.repeated import copy_repeated
from rlds_cli.errors import DamagedDataset, FrameError, MissingPackage, NoSpace
from rlds_cli.store import digests, layouts
from rlds_cli.store.blocks import Hold
from rlds_cli.store.columns import Column
from rlds_cli.store.encoded import EncodedBytes
from rlds_cli.store.local import LocalFiles
from rlds_cli.ted import Field

_KEY, _SHOWN = 1, 2
_MOST_HELD = 1 << 22  # packets, about 18 bytes each
_TABLES = ("spans", "packets", "first")
_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}
_CODE_BITS, _DEEP = 12, {False: "gray12le", True: "gray16le"}
_DECODERS = {"av1": ("libdav1d", "av1")}  # the fastest first
_KEPT = 8  # decoders per thread
_NEAR = 3  # packets up to the next key frame for which a decoder goes on: one that ends gives up what it holds back
_UNKNOWN, _ELSEWHERE = -1, -2  # the next frame: not known yet, or none of this video


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
        distinct = np.unique(index[:, 0] << 32 | index[:, 1])  # both are of 32 bits
        numbers, frames = distinct >> 32, distinct & 0xFFFFFFFF
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

    def decoded(self, f: Field, entries: Array, rows: IntArray, absent: Callable[[Field, IntArray], None]) -> Array:
        """Decode the frames of ``rows`` [n] with these entries [n, 2] to [n, *shape]; ``absent`` gets those without."""
        absent(f, rows[entries[:, 0] < 0])
        return self.gather(f, entries)

    def gather(self, f: Field, index: Array, *, on: bool = False) -> Array:
        """Decode the frames of an index [n, 2] to [n, *shape] in the field's dtype; see `decode_video`.

        With ``on`` the frames behind those of one video are asked for next: it has a decoder of its own.
        """
        where = (str(self.directory), *(index[:1, 0].tolist() if on else ()))
        if self._of.files.blocks is None:
            return decode_video(index, self.video, f, where, on=on)
        with self._of.files.hold(self._of.data, *self.ranges(index)) as data:  # from the key frames before them on

            @cache
            def held(number: int) -> Video:
                return replace(self.video(number), data=self._of.files.window(data, *self.spans[number].tolist()))

            return decode_video(index, held, f, where, on=on)

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
        for number in np.unique(index[:, 0]).tolist():
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


_here = local()


# -- decoding


@dataclass(frozen=True)
class Video:
    """A video: the bytes of its file and the table of its packets. ``key`` identifies it among the field's videos."""

    key: Hashable
    data: Array
    track: Track


def decode_video(index: Array, video: Callable[[int], Video], f: Field, where: Hashable, *, on: bool = False) -> Array:
    """Decode the frames of an index [n, 2] to [n, *shape] in the field's dtype, with zeros for an index of -1.

    uint8 frames are grey, RGB or RGBA; uint16 frames hold the video's own values of depth, of 12 or 16 bits.

    Every frame is decoded once, each video from its beginning to its end.

    Parameters
    ----------
    index : int array [n, 2]
        Number of the video, number of the frame in it.
    video : callable
        The videos by their number.
    f : Field
    where : hashable
        Identifies the reader of the index, whose next call uses the same decoders.
    on : bool
        The frame behind the last one is asked for next.

    Raises
    ------
    FrameError
        A frame does not decode to the field's shape.
    MissingPackage
        ``av`` is not installed.
    """
    out = np.zeros((len(index), *f.shape), f.dtype)
    distinct, place, which = np.unique(index, axis=0, return_index=True, return_inverse=True)
    wanted = [(n, frame, at) for (n, frame), at in zip(distinct.tolist(), place.tolist(), strict=True) if n >= 0]
    end = (wanted[-1][0], wanted[-1][1] + 1, 0) if on and wanted else (None, _UNKNOWN, 0)
    for (number, frame, at), (later, follows, _) in zip(wanted, [*wanted[1:], end], strict=False):
        out[at] = decode_one(video(number), frame, f, where, follows if later in (number, None) else _ELSEWHERE)
    copy_repeated(out, place, which)
    return out


def decode_one(video: Video, frame: int, f: Field, where: Hashable, follows: int = _UNKNOWN) -> Array:
    """Decode one frame of a video, by number, in the field's dtype and shape; raises as `decode_video`.

    ``follows`` is the next frame of the video that is wanted, if that is known.
    """
    track = video.track
    if not 0 <= frame < len(track.frames):
        raise DamagedDataset(f"{f.name}: frame {frame:,} of a video of {len(track.frames):,}.", hint="rlds verify ID")
    if (track.height, track.width) != f.shape[:2] or track.height * track.width > MAX_PIXELS:
        raise FrameError(f"{f.name}: a video of {track.height}x{track.width}; {f.shape[0]}x{f.shape[1]} expected.")
    if follows >= 0:  # a frame beyond the video is refused when its turn comes
        follows = int(track.frames[follows]) if follows < len(track.frames) else _ELSEWHERE
    return _decoder(track, where).frame(video, int(track.frames[frame]), f, follows)


def _decoder(track: Track, where: Hashable) -> _Decoder:
    """Return this thread's decoder for one kind of video."""
    kept: OrderedDict[Hashable, _Decoder] = _here.__dict__.setdefault("decoders", OrderedDict())
    key = (where, track.codec, track.extradata, track.height, track.width, track.matrix, track.full_range)
    found = kept.pop(key, None) or _Decoder(track)
    kept[key] = found
    while len(kept) > _KEPT:
        kept.popitem(last=False)
    return found


class _Decoder:
    """A decoder and its position in a video.

    A decoder holds frames back until others may no longer come before them. Where no frame is wanted behind the one
    that is, it is told that the video ends there, and gives that frame at once. Pictures of H.264 that no other refers
    to are decoded only if they are wanted: in groups of pictures of usual encoders, these are more than half.
    """

    def __init__(self, track: Track) -> None:
        self._av = _av()
        self._context = _open(self._av, track)
        self._reformatter = self._av.video.reformatter.VideoReformatter()
        self._alone = video_files.one_thread(self._av)
        self._prefix = track.length_prefix
        self._video: Hashable = None
        self._next = 0  # packet
        self._last: int | None = None  # time of the frame that came out last
        self._drained = False
        self._ready: deque[Any] = deque()
        self._paused, self._continues = False, True  # a call has ended; the call after one went on from there

    def frame(self, video: Video, packet: int, f: Field, follows: int) -> Array:
        """Decode the frame of a packet; ``follows`` is the packet of the next frame, `_UNKNOWN` or `_ELSEWHERE`."""
        track, time = video.track, int(video.track.time[packet])
        begin = track.begin(packet)
        near = self._is_near(video, begin, time)
        if self._paused:
            self._continues = near
        self._paused = follows == _UNKNOWN
        ends = not self._continues if self._paused else follows < 0 or track.begin(follows) > packet + _NEAR
        try:
            if not near or self._drained:
                self._restart(video, begin)
            found = self._until(video, time, packet, ends)
            if found is None and begin > 0:  # it refers to frames before the key frame
                self._restart(video, track.begin(begin - 1))
                found = self._until(video, time, packet, ends)
            if found is None:
                raise FrameError(f"{f.name}: a frame of a {track.codec} video did not come out of the decoder.")
            return self._pixels(found, f)
        except (self._av.FFmpegError, ValueError) as e:
            self._video = None
            raise FrameError(f"{f.name}: a frame does not decode as {track.codec}: {e}", hint="rlds verify ID") from e

    def _is_near(self, video: Video, begin: int, time: int) -> bool:
        """Return whether a frame is ahead of the decoder's position, with no key frame between: a jump costs less."""
        if self._video != video.key or begin > self._next:
            return False
        return self._last is not None and self._last < time

    def _restart(self, video: Video, packet: int) -> None:
        self._context.flush_buffers()
        self._video, self._next, self._last, self._drained = video.key, packet, None, False
        self._ready.clear()

    def _until(self, video: Video, time: int, packet: int, ends: bool) -> Any:
        """Decode on up to the frame of a time, of a packet; None if the decoder passes that time without a frame."""
        track = video.track
        while True:
            while self._ready:
                if self._ready[0].pts > time:
                    return None
                found = self._ready.popleft()
                self._last = found.pts
                if found.pts == time:
                    return found
            if self._drained:
                return None
            if self._next >= len(track.size) or (ends and self._next > packet):
                self._ready.extend(self._context.decode(None))
                self._drained = True
                continue
            if not (self._next < packet and track.time[self._next] < time and self._is_spare(video, self._next)):
                self._ready.extend(self._context.decode(self._packet(video, self._next)))
            self._next += 1

    def _is_spare(self, video: Video, number: int) -> bool:
        """Return whether no other picture refers to that of a packet: ``nal_ref_idc`` is 0 (ITU-T H.264, 7.4.1)."""
        if not self._prefix:
            return False
        at, stop = int(video.track.start[number]), int(video.track.start[number] + video.track.size[number])
        while at + self._prefix < stop:
            *length, head = video.data[at : at + self._prefix + 1].tolist()
            if 1 <= head & 31 <= 5:  # a slice of the picture
                return bool(head >> 5 & 3 == 0)
            at += self._prefix + int.from_bytes(bytes(length))
        return False

    def _packet(self, video: Video, number: int) -> Any:
        track = video.track
        start = int(track.start[number])
        data = np.ascontiguousarray(video.data[start : start + int(track.size[number])])
        packet = self._av.Packet(len(data))  # decoders read zeros behind the data, which Packet(data) lacks
        packet.update(data.data)
        packet.pts = int(track.time[number])
        return packet

    def _pixels(self, frame: Any, f: Field) -> Array:
        if (frame.height, frame.width) != f.shape[:2]:
            raise FrameError(f"{f.name}: decodes to {frame.height}x{frame.width}; {f.shape[0]}x{f.shape[1]} expected.")
        if f.dtype == "uint16":
            return self._deep(frame).reshape(f.shape)
        form = _FORMATS[f.shape[2] if len(f.shape) == 3 else 1]
        values: Array = self._reformatter.reformat(frame, format=form, **self._alone).to_ndarray()
        return values.reshape(f.shape)

    def _deep(self, frame: Any) -> Array:
        """Return grey values [H, W] of 12 bits, as lerobot decodes its depth maps, or of 16 bits."""
        form = _DEEP[frame.format.components[0].bits > _CODE_BITS]
        plane = self._reformatter.reformat(frame, format=form, **self._alone).planes[0]
        rows = np.frombuffer(plane, "<u2").reshape(plane.height, -1)  # lines are padded
        return rows[:, : frame.width]


def _open(av: Any, track: Track) -> Any:
    for name in (*_DECODERS.get(track.codec, ()), track.codec):
        if name in av.codecs_available:
            break
    else:
        raise FrameError(
            f"The package av that is installed has no decoder for {track.codec}.", hint="pip install -U av"
        )
    context = av.CodecContext.create(name, "r")
    if track.extradata:
        context.extradata = track.extradata + bytes(64)  # leaves zeros behind the extradata that is set next
        context.extradata = track.extradata
    if track.codec == "ffv1":  # its packets do not state their size
        context.width, context.height = track.width, track.height
    context.thread_count = 1  # many frames are decoded side by side by the threads of the loader
    context.options = {"max_pixels": str(MAX_PIXELS)}
    if track.matrix is not None:
        context.colorspace = track.matrix
        context.color_range = 2 if track.full_range else 1
    return context


def _av() -> Any:
    try:
        import av
    except ImportError as e:
        raise MissingPackage(
            "Videos are decoded with the package av, which is not installed.", hint="pip install 'rlds-cli[video]'"
        ) from e
    return av
