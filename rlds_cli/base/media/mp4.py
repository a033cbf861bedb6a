"""Read the positions and times of the frames of an MP4 file from its sample tables, without decoding anything.

Boxes and tables are those of ISO/IEC 14496-12: ``moov/trak/mdia/minf/stbl``. The data for the decoder come from the box
that the codec's standard names (``avcC``, ``hvcC``, ``av1C``, ``esds``). Fragmented files are refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.base.files import child
from rlds_cli.errors import CorruptArchive, DamagedDataset, UnknownLayout

_PIECE = 1 << 20
_MOST_TABLES = 1 << 28  # bytes of the box that holds the tables
_MOST_BOXES = 1 << 8  # of a file; sound ones have four or five
_MOST_CHILDREN = 1 << 10  # boxes in a box
_CODECS = {
    "FFV1": ("ffv1", "glbl"),
    "av01": ("av1", "av1C"),
    "avc1": ("h264", "avcC"),
    "avc3": ("h264", "avcC"),
    "hev1": ("hevc", "hvcC"),
    "hvc1": ("hevc", "hvcC"),
    "mp4v": ("mpeg4", "esds"),
    "vp09": ("vp9", ""),
}
_OBJECTS = {0x20: "mpeg4", 0x6C: "mjpeg"}  # of ``esds``: ISO/IEC 14496-1, table 5
_ENTRY = 78  # bytes of a visual sample entry before its boxes

Boxes = dict[str, list[memoryview]]

Read = Callable[[int, int], bytes]


class OtherForm(UnknownLayout):
    """A whole MP4 file whose tables do not say where its packets lie, or name a codec that is rare."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of one video: ``parts`` are a file, the first byte there and the number of bytes, end to end."""

    parts: tuple[tuple[Path, int, int], ...]
    sha256: str = ""  # of a video that is elsewhere: its file has the tables alone, and holes

    @classmethod
    def whole(cls, file: Path, sha256: str = "") -> Extent:
        """Return the extent of a whole file."""
        return cls(((file, 0, file.stat().st_size),), sha256)

    @property
    def size(self) -> int:
        """Bytes of the video."""
        return sum(size for _, _, size in self.parts)

    @property
    def name(self) -> Path:
        """The first of its files, for messages."""
        return self.parts[0][0]

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """Open the files; the function that is yielded reads so many bytes from a given one on, fewer at the end."""
        with ExitStack() as files:
            opened = [(files.enter_context(f.open("rb", buffering=0)).fileno(), a, n) for f, a, n in self.parts]

            def read(at: int, size: int) -> bytes:
                found = []
                for file, first, count in opened:
                    here = min(size, count - at)
                    if at < count and here > 0:
                        found.append(os.pread(file, here, first + at))
                        at, size = at + len(found[-1]), size - len(found[-1])
                    at -= count
                return b"".join(found)

            yield read

    def pieces(self, start: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield ``size`` bytes from ``start`` on, or all, in pieces of at most a megabyte.

        Raises
        ------
        DamagedDataset
            A file is shorter.
        """
        stop = self.size if size is None else start + size
        with self.opened() as read:
            while start < stop:
                piece = read(start, min(_PIECE, stop - start))
                if not piece:
                    raise DamagedDataset(f"{self.name} ends {stop - start:,} bytes before it should.")
                yield piece
                start += len(piece)


@dataclass(frozen=True)
class Track:
    """The video of a file: its packets in the order in which they are decoded.

    Parameters
    ----------
    codec : str
        ``av1 ffv1 h264 hevc mpeg4 vp9``.
    extradata : bytes
        Data for the decoder before the first packet.
    height, width : int
    timescale : int
        Units of ``time`` per second.
    start, size : int array [packets]
        Position of each packet in the file.
    time : int array [packets]
        Time at which the packet's frame is shown.
    key : bool array [packets]
        True if decoding can begin with the packet.
    shown : bool array [packets]
        True if the packet's frame is shown; other frames only serve to decode those.
    matrix, full_range : int or None, bool
        Coefficients from YUV to RGB, numbered as in ITU-T H.273, if the file states them.
    delay : float
        Seconds before the first frame.
    """

    codec: str
    extradata: bytes
    height: int
    width: int
    timescale: int
    start: IntArray
    size: IntArray
    time: IntArray
    key: BoolArray
    shown: BoolArray
    matrix: int | None = None
    full_range: bool = False
    delay: float = 0.0

    @cached_property
    def frames(self) -> IntArray:
        """Packets of the frames that are shown, in the order of time [frames]."""
        shown = np.flatnonzero(self.shown)
        return shown[np.argsort(self.time[shown], kind="stable")]

    @cached_property
    def keys(self) -> IntArray:
        """Packets with which decoding can begin, in order."""
        return np.flatnonzero(self.key)

    @cached_property
    def groups(self) -> IntArray:
        """Number of the group of pictures of each frame [frames]: those between two key frames, as they are stored."""
        return (np.searchsorted(self.keys, self.frames, "right") - 1).astype(np.int32)

    @property
    def length_prefix(self) -> int:
        """Bytes of the length before each unit in a packet of H.264 (ISO/IEC 14496-15, avcC); 0 for other codecs."""
        is_avcc = self.codec == "h264" and len(self.extradata) > 4 and self.extradata[0] == 1
        return (self.extradata[4] & 3) + 1 if is_avcc else 0

    @property
    def seconds(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Time at which each frame is shown [frames]."""
        return self.time[self.frames] / self.timescale + self.delay

    def begin(self, packet: int) -> int:
        """Return the packet from which decoding must begin to reach a given packet."""
        k = int(self.keys.searchsorted(packet, "right")) - 1
        # Frames that are shown before a key frame, but stored behind it, may refer to frames before both.
        while k >= 0 and self.time[self.keys[k]] > self.time[packet]:
            k -= 1
        return int(self.keys[k]) if k >= 0 else 0

    def ranges(self, packets: IntArray) -> tuple[IntArray, IntArray]:
        """Return the ranges of bytes of the file, one for each of some packets, that decoding these takes."""
        first = np.array([self.begin(packet) for packet in packets.tolist()], np.int64)
        if not len(packets):
            return first, first
        edges = np.stack([first, packets + 1], 1).reshape(-1)  # every second piece is that of a packet
        start, stop = np.append(self.start, 0), np.append(self.start + self.size, 0)
        return np.minimum.reduceat(start, edges)[::2], np.maximum.reduceat(stop, edges)[::2]


def read(file: Path | Extent) -> Track:
    """Read the video track of a file, or of an extent.

    Raises
    ------
    CorruptArchive
        The file is cut short, or its tables contradict each other.
    UnknownLayout
        The file is not MP4, is fragmented, or has an unknown codec.
    """
    try:
        of = file if isinstance(file, Extent) else Extent.whole(file)
        child.note(of.name)
        return _track(_children(_tables(of)), of.size, of.name)
    except (struct.error, ValueError, IndexError, KeyError, OverflowError) as e:
        where = file.name if isinstance(file, Extent) else file
        raise CorruptArchive(f"{where}: the tables of the video are damaged: {e}", hint="fetch it again") from e


def sample_entries(video: Extent) -> bytes:
    """Return the content of the box ``stsd`` of a video that `read` reads: its codec, and data for the decoder."""
    moov = _children(_tables(video))
    for trak in map(_children, moov.get("trak", [])):
        media = _children(trak["mdia"][0])
        if bytes(media["hdlr"][0][8:12]) == b"vide":
            return bytes(_children(_children(media["minf"][0])["stbl"][0])["stsd"][0])
    raise UnknownLayout(f"{video.name} holds no video.")


def bits(track: Track) -> int | None:
    """Return the bits of one brightness value, for codecs whose decoder data state them: HEVC and AV1.

    ``hvcC`` is of ISO/IEC 14496-15, 8.3.3.1; ``av1C`` of the AV1 codec's binding to ISO media files, 2.3.
    """
    if track.codec == "hevc" and len(track.extradata) > 17:
        return 8 + (track.extradata[17] & 7)
    if track.codec == "av1" and len(track.extradata) > 2:
        high, twelve = track.extradata[2] & 0x40, track.extradata[2] & 0x20
        return 12 if high and twelve else 10 if high else 8
    return None


def _tables(video: Extent) -> memoryview:
    """Read the content of the box ``moov``."""
    with video.opened() as read:
        return tables(read, video.size, video.name)


def tables(read: Read, size: int, file: Path) -> memoryview:
    """Return the content of the box ``moov`` of a video of ``size`` bytes; ``read`` is asked for no more than it takes.

    Raises
    ------
    CorruptArchive, UnknownLayout
        As `read`.
    """
    at, length = _find_tables(read, size, file)
    return memoryview(read(at, length))


def is_turned(read: Read, size: int, file: Path) -> bool:
    """Return whether players turn or mirror the pictures of a video of ``size`` bytes.

    The matrices of ``mvhd`` and ``tkhd`` say so (ISO/IEC 14496-12, 6.2.2, 8.2.2 and 8.3.2); decoders know nothing of
    them.

    Raises
    ------
    CorruptArchive, UnknownLayout
        As `read`.
    """
    at, length = _find_tables(read, size, file)
    boxes = list(_places(read, at, at + length))
    headers = [(start, 36) for kind, start, _ in boxes if kind == b"mvhd"]
    for kind, start, stop in boxes:
        if kind == b"trak":
            headers += [(inner, 40) for name, inner, _ in _places(read, start, stop) if name == b"tkhd"]
    for start, place in headers:
        is_long = read(start, 1) == b"\1"  # version 1 has times of 8 bytes
        matrix = struct.unpack(">9i", read(start + place + 12 * is_long, 36))
        if matrix[0] <= 0 or matrix[4] <= 0 or matrix[1] or matrix[3]:
            return True
    return False


def _places(read: Read, at: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, first byte and end of the content of the boxes between two bytes of a file."""
    for _ in range(_MOST_CHILDREN):
        if at + 8 > stop:
            return
        length, kind = struct.unpack(">I4s", read(at, 8))
        length = length or stop - at
        if length < 8 or at + length > stop:  # none of these boxes needs a length of 8 bytes
            return
        yield kind, at + 8, at + length
        at += length


def _find_tables(read: Read, size: int, file: Path) -> tuple[int, int]:
    """Return the first byte of the content of the box ``moov``, and its bytes; see `tables`."""
    at = 0
    for number in range(_MOST_BOXES):
        if at + 8 > size:
            raise CorruptArchive(f"{file} has no tables: writing it was interrupted.")
        length, kind = struct.unpack(">I4s", read(at, 8))
        head = 8
        if length == 1 and at + 16 <= size:
            length, head = struct.unpack(">Q", read(at + 8, 8))[0], 16
        length = length or size - at
        if not number and kind not in (b"ftyp", b"moov", b"free", b"wide", b"mdat"):
            raise UnknownLayout(f"{file} is not an MP4 file.")
        if length < head or at + length > size:
            raise CorruptArchive(f"{file} is cut short: a box ends beyond its {size:,} bytes.")
        if kind == b"moov":
            if length > _MOST_TABLES:
                raise UnknownLayout(f"{file}: tables of {length:,} bytes; at most {_MOST_TABLES:,} are read.")
            return at + head, length - head
        at += length
    raise UnknownLayout(f"{file} has no tables among its first {_MOST_BOXES} boxes.")


@dataclass(frozen=True, slots=True)
class Partial:
    """A file with a part of a video: the bytes [first, stop) of ``held`` have arrived, the others are a hole."""

    file: Path
    size: int
    held: tuple[tuple[int, int], ...]


class _Absent(Exception):
    """Bytes [at, at + size) have not arrived."""

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size = at, size


def missing(videos: Sequence[Partial]) -> list[tuple[int, int] | None]:
    """Return the bytes (first, number) of each video that must arrive next for `read`; None if its tables are complete.

    Raises
    ------
    CorruptArchive, UnknownLayout
        As `read`.
    """
    return [_missing(video) for video in videos]


def _missing(video: Partial) -> tuple[int, int] | None:
    with Extent(((video.file, 0, video.size),)).opened() as read:

        def held(at: int, size: int) -> bytes:
            if not any(first <= at and at + size <= stop for first, stop in video.held):
                raise _Absent(at, size)
            return read(at, size)

        try:
            tables(held, video.size, video.file)
        except _Absent as absent:
            return absent.at, absent.size
        return None


def _children(data: memoryview) -> Boxes:
    found: Boxes = {}
    for kind, content in _boxes(data):
        found.setdefault(kind, []).append(content)
    return found


def _boxes(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    at = 0
    for _ in range(_MOST_CHILDREN):
        if at + 8 > len(data):
            return
        length, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if length == 1:
            length, head = struct.unpack_from(">Q", data, at + 8)[0], 16
        length = length or len(data) - at
        if length < head or at + length > len(data):
            raise ValueError(f"a box of {length:,} bytes where {len(data) - at:,} are left")
        yield kind.decode("latin-1"), data[at + head : at + length]
        at += length
    raise ValueError(f"more than {_MOST_CHILDREN:,} boxes in a box")


def _track(moov: Boxes, size: int, file: Path) -> Track:
    if "mvex" in moov:
        raise OtherForm(
            f"{file} is a fragmented MP4 file.", hint=f"ffmpeg -i {file.name} -c copy -movflags faststart whole.mp4"
        )
    movie = _timescale(moov["mvhd"][0])
    for trak in map(_children, moov.get("trak", [])):
        media = _children(trak["mdia"][0])
        if bytes(media["hdlr"][0][8:12]) == b"vide":
            return _video(trak, media, movie, size, file)
    raise UnknownLayout(f"{file} holds no video.")


def _timescale(box: memoryview) -> int:
    scale = int(struct.unpack_from(">I", box, 20 if box[0] == 1 else 12)[0])
    if scale == 0:
        raise ValueError("a time scale of 0")
    return scale


def _video(trak: Boxes, media: Boxes, movie: int, file_size: int, file: Path) -> Track:
    table = _children(_children(media["minf"][0])["stbl"][0])
    scale = _timescale(media["mdhd"][0])
    size = _sizes(table["stsz"][0], file_size)
    start = _starts(table, size)
    time = _times(table, len(size))
    if len(size) and int((start + size).max()) > file_size:
        raise ValueError("frames beyond the end of the file")
    key = np.ones(len(size), bool)
    if "stss" in table:
        key[:] = False
        key[_numbers(table["stss"][0], 4, ">u4").astype(np.int64) - 1] = True
    first, delay = _edit(trak, movie, file)
    codec, extradata, height, width, matrix, full = _entry(table["stsd"][0], file)
    return Track(
        *(codec, extradata, height, width, scale, start, size, time - first, key, time >= first),
        matrix=matrix,
        full_range=full,
        delay=delay,
    )


def _numbers(box: memoryview, at: int, dtype: str, width: int = 1) -> Any:
    """Read the rows of a table, with their number at ``at``."""
    count = struct.unpack_from(">I", box, at)[0]
    return (
        np.frombuffer(box, dtype, count * width, at + 4).reshape(-1, width)
        if width > 1
        else np.frombuffer(box, dtype, count, at + 4)
    )


def _sizes(box: memoryview, file_size: int) -> IntArray:
    same, count = struct.unpack_from(">II", box, 4)
    if not same:
        return np.frombuffer(box, ">u4", count, 12).astype(np.int64)
    if same * count > file_size:
        raise ValueError(f"{count:,} frames of {same:,} bytes")
    return np.full(count, same, np.int64)


def _starts(table: Boxes, size: IntArray) -> IntArray:
    """Return the position of every packet, from the positions of chunks and their numbers of packets."""
    if "co64" in table:
        chunks = _numbers(table["co64"][0], 4, ">u8").astype(np.int64)
    else:
        chunks = _numbers(table["stco"][0], 4, ">u4").astype(np.int64)
    runs = _numbers(table["stsc"][0], 4, ">u4", 3).astype(np.int64)  # first chunk, packets per chunk, description
    lengths = np.diff(np.append(runs[:, 0], len(chunks) + 1))
    if len(size) == 0:
        return np.zeros(0, np.int64)
    if runs[0, 0] != 1 or (lengths < 0).any() or runs[:, 1].max() > len(size):
        raise ValueError("chunks that do not follow each other")
    per_chunk = np.repeat(runs[:, 1], lengths)
    if per_chunk.sum() != len(size):
        raise ValueError(f"{per_chunk.sum():,} frames in chunks; {len(size):,} are listed")
    before = np.cumsum(size) - size
    first = np.cumsum(per_chunk) - per_chunk
    start: IntArray = before + np.repeat(chunks - before[np.minimum(first, len(size) - 1)], per_chunk)
    return start


def _times(table: Boxes, count: int) -> IntArray:
    """Return the time at which every packet's frame is shown: the sum of durations before it, and its offset."""
    duration = _spread(_numbers(table["stts"][0], 4, ">u4", 2).astype(np.int64), count)
    time = np.cumsum(duration) - duration
    if "ctts" in table:
        counts = _numbers(table["ctts"][0], 4, ">u4", 2).astype(np.int64)[:, 0]
        offsets = _numbers(table["ctts"][0], 4, ">i4", 2).astype(np.int64)[:, 1]
        time = time + _spread(np.stack([counts, offsets], 1), count)
    return time


def _spread(runs: IntArray, count: int) -> IntArray:
    """Expand pairs (count, value) to one value per packet."""
    if runs[:, 0].sum() != count:
        raise ValueError(f"times of {runs[:, 0].sum():,} frames; {count:,} are listed")
    return np.repeat(runs[:, 1], runs[:, 0])


def _edit(trak: Boxes, movie: int, file: Path) -> tuple[int, float]:
    """Return the time at which the presentation begins, and the seconds before that."""
    lists = _children(trak["edts"][0]).get("elst") if "edts" in trak else None
    if not lists:
        return 0, 0.0
    box = lists[0]
    form = ">Qqhh" if box[0] == 1 else ">Iihh"
    count = struct.unpack_from(">I", box, 4)[0]
    if count * struct.calcsize(form) > len(box) - 8:
        raise ValueError(f"{count:,} edits")
    edits = [struct.unpack_from(form, box, 8 + k * struct.calcsize(form)) for k in range(count)]
    played = [e for e in edits if e[1] >= 0]
    if len(played) > 1 or (played and played[-1] is not edits[-1]):
        raise UnknownLayout(f"{file} has an edit list that joins {len(played)} pieces.")
    return (played[0][1] if played else 0), sum(e[0] for e in edits if e[1] < 0) / movie


def _entry(box: memoryview, file: Path) -> tuple[str, bytes, int, int, int | None, bool]:
    """Read codec, decoder data, height, width and colours."""
    entries = list(_boxes(box[8:]))
    if len(entries) != 1:
        raise UnknownLayout(f"{file} changes its codec: {len(entries)} descriptions.")
    kind, entry = entries[0]
    if kind not in _CODECS:
        raise OtherForm(f'{file}: there is no decoder for "{kind}".', hint=f"known are {', '.join(_CODECS)}")
    width, height = struct.unpack_from(">HH", entry, 24)
    codec, wanted = _CODECS[kind]
    inner = _children(entry[_ENTRY:])
    extradata = bytes(inner[wanted][0]) if wanted in inner else b""
    if wanted == "esds" and extradata:
        number, extradata = _decoder_specific(extradata[4:])
        if number not in _OBJECTS:
            raise OtherForm(f"{file}: a video of the MPEG-4 object type {number:#x}, which is not read.")
        codec = _OBJECTS[number]
    matrix, full = None, False
    for colour in inner.get("colr", []):
        if bytes(colour[:4]) == b"nclx":
            matrix, full = int(struct.unpack_from(">H", colour, 8)[0]), bool(colour[10] & 0x80)
    return codec, extradata, height, width, matrix, full


def _decoder_specific(data: bytes) -> tuple[int, bytes]:
    """Return the object type and the innermost descriptor of an ``esds`` box (ISO/IEC 14496-1, 7.2.6)."""
    at, kind = 0, 0
    while at + 2 <= len(data):
        tag, length, at = data[at], 0, at + 1
        while True:
            length = length << 7 | data[at] & 0x7F
            at += 1
            if not data[at - 1] & 0x80:
                break
        if tag == 5:
            return kind, data[at : at + length]
        if tag == 3:
            flags = data[at + 2]
            at += 3 + 2 * bool(flags & 0x80) + 2 * bool(flags & 0x20) + (1 + data[at + 3] if flags & 0x40 else 0)
        elif tag == 4:
            kind, at = data[at], at + 13
        else:
            at += length
    return kind, b""
