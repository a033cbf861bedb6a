"""Decode single frames of stored videos.

A frame is decoded with the package ``av``, from the key frame before it on. The tables of a video say which packets
that takes, so nothing is searched for. Each thread keeps its decoders where they are: reading in order decodes every
frame once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import local
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.media import video_files
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.base.media.mp4 import Track
from rlds_cli.base.repeated import copy_repeated
from rlds_cli.errors import DamagedDataset, FrameError, MissingPackage
from rlds_cli.ted import Field

_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}
_CODE_BITS, _DEEP = 12, {False: "gray12le", True: "gray16le"}
_DECODERS = {"av1": ("libdav1d", "av1")}  # the fastest first
_KEPT = 8  # decoders per thread
_NEAR = 3  # packets up to the next key frame for which a decoder goes on: one that ends gives up what it holds back
_UNKNOWN, _ELSEWHERE = -1, -2  # the next frame: not known yet, or none of this video
_here = local()


@dataclass(frozen=True)
class Video:
    """A video: the bytes of its file and the table of its packets. ``key`` identifies it among the field's videos."""

    key: Hashable
    data: Array
    track: Track


def decode_video(index: Array, video: Callable[[int], Video], f: Field, where: Hashable, *, on: bool = False) -> Array:
    """Decode the frames of an index [n, 2] to [n, *shape], in new memory; see `decode_into`."""
    out = np.empty((len(index), *f.shape), f.dtype)
    decode_into(out, index, video, f, where, on=on)
    return out


def decode_into(
    out: Sequence[Array] | Array,
    index: Array,
    video: Callable[[int], Video],
    f: Field,
    where: Hashable,
    *,
    on: bool = False,
) -> None:
    """Decode the frames of an index [n, 2] to n arrays of the field's shape and dtype, with zeros for an index of -1.

    uint8 frames are grey, RGB or RGBA; uint16 frames hold the video's own values of depth, of 12 or 16 bits.

    Every frame is decoded once, each video from its beginning to its end.

    Parameters
    ----------
    out : sequence of arrays [n]
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
    distinct, place, which = np.unique(index, axis=0, return_index=True, return_inverse=True)
    wanted = [(n, frame, at) for (n, frame), at in zip(distinct.tolist(), place.tolist(), strict=True) if n >= 0]
    end = (wanted[-1][0], wanted[-1][1] + 1, 0) if on and wanted else (None, _UNKNOWN, 0)
    for (number, frame, at), (later, follows, _) in zip(wanted, [*wanted[1:], end], strict=False):
        out[at][...] = decode_one(video(number), frame, f, where, follows if later in (number, None) else _ELSEWHERE)
    for at in place[distinct[:, 0] < 0].tolist():
        out[at][...] = 0
    copy_repeated(out, place, which)


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
