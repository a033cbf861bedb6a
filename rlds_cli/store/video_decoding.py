"""Single frames out of videos: from the key frame before them on, with the package ``av``.

Where a frame lies is known from the tables of its file, so nothing is searched for: its packets go to a decoder of this
thread. A decoder stays where it is, so that reading in order decodes every frame once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import local
from typing import Any

import numpy as np

from rlds_cli.errors import DamagedDataset, Frames, MissingPackage
from rlds_cli.mp4 import Track
from rlds_cli.store.frames import MAX_PIXELS
from rlds_cli.ted import Array, Field

_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}
_CODE_BITS, _DEEP = 12, {False: "gray12le", True: "gray16le"}
_DECODERS = {"av1": ("libdav1d", "av1")}  # the fastest first
_KEPT = 8  # decoders per thread
_NEAR = 3  # packets that are decoded rather than skipped, which costs about as many

_here = local()


@dataclass(frozen=True)
class Video:
    """A video: its file's bytes and where its frames lie in them. ``key`` tells it from others of its field."""

    key: Hashable
    data: Array
    track: Track


def decode_video(index: Array, video: Callable[[int], Video], f: Field, where: Hashable) -> Array:
    """Frames of an index [n, 2] -> [n, *shape] of the field's dtype; zeros where it says -1.

    uint8 are grey, RGB or RGBA; uint16 are values of depth at the video's own depth, of 12 bits or 16.

    Every frame is decoded once, each video from its beginning to its end.

    Parameters
    ----------
    index : int array [n, 2]
        Number of the video, number of the frame in it.
    video : callable
        The videos by their number.
    f : Field
    where : hashable
        Names what the index belongs to; what is read of it next goes on from here.

    Raises
    ------
    Frames
        A frame does not decode to the field's shape.
    MissingPackage
        ``av`` is not installed.
    """
    out = np.zeros((len(index), *f.shape), f.dtype)
    distinct, place, which = np.unique(index, axis=0, return_index=True, return_inverse=True)
    for (number, frame), at in zip(distinct.tolist(), place.tolist(), strict=True):
        if number >= 0:
            out[at] = decode_one(video(number), frame, f, where)
    again = np.ones(len(index), bool)
    again[place] = False
    out[again] = out[place[which.ravel()[again]]]
    return out


def decode_one(video: Video, frame: int, f: Field, where: Hashable) -> Array:
    """One frame of a video, by its number: of the field's dtype and shape; raises as `decode_video`."""
    track = video.track
    if not 0 <= frame < len(track.frames):
        raise DamagedDataset(f"{f.name}: frame {frame:,} of a video of {len(track.frames):,}.", hint="rlds verify ID")
    if (track.height, track.width) != f.shape[:2] or track.height * track.width > MAX_PIXELS:
        raise Frames(f"{f.name}: a video of {track.height}x{track.width}; {f.shape[0]}x{f.shape[1]} expected.")
    return _decoder(track, where).frame(video, int(track.frames[frame]), f)


def _decoder(track: Track, where: Hashable) -> _Decoder:
    """The decoder of this thread for one kind of video."""
    kept: OrderedDict[Hashable, _Decoder] = _here.__dict__.setdefault("decoders", OrderedDict())
    key = (where, track.codec, track.extradata, track.height, track.width, track.matrix, track.full_range)
    found = kept.pop(key, None) or _Decoder(track)
    kept[key] = found
    while len(kept) > _KEPT:
        kept.popitem(last=False)
    return found


class _Decoder:
    """A decoder and how far it has come."""

    def __init__(self, track: Track) -> None:
        self._av = _av()
        self._context = _open(self._av, track)
        self._reformatter = self._av.video.reformatter.VideoReformatter()
        # From version 17 on it has threads of its own, which a forked process waits for in vain.
        self._alone = {"threads": 1} if int(self._av.__version__.partition(".")[0]) >= 17 else {}
        self._video: Hashable = None
        self._next = 0  # packet
        self._last: int | None = None  # time of the frame that came out last
        self._drained = False
        self._ready: deque[Any] = deque()

    def frame(self, video: Video, packet: int, f: Field) -> Array:
        """The frame of a packet."""
        track, time = video.track, int(video.track.time[packet])
        begin = track.begin(packet)
        try:
            if not self._leads_to(video, begin, time):
                self._restart(video, begin)
            found = self._until(video, time)
            if found is None and begin > 0:  # what it refers to lies before the key frame
                self._restart(video, track.begin(begin - 1))
                found = self._until(video, time)
            if found is None:
                raise Frames(f"{f.name}: a frame of a {track.codec} video did not come out of the decoder.")
            return self._pixels(found, f)
        except (self._av.FFmpegError, ValueError) as e:
            self._video = None
            raise Frames(f"{f.name}: a frame does not decode as {track.codec}: {e}", hint="rlds verify ID") from e

    def _leads_to(self, video: Video, begin: int, time: int) -> bool:
        """Whether decoding on from here gives a frame, with no detour."""
        if self._video != video.key or self._drained or begin > self._next + _NEAR:
            return False
        return self._last is not None and self._last < time

    def _restart(self, video: Video, packet: int) -> None:
        self._context.flush_buffers()
        self._video, self._next, self._last, self._drained = video.key, packet, None, False
        self._ready.clear()

    def _until(self, video: Video, time: int) -> Any:
        """Decode on to the frame of a time; None where the video goes on behind it."""
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
            if self._next < len(track.size):
                self._ready.extend(self._context.decode(self._packet(video, self._next)))
                self._next += 1
            else:
                self._ready.extend(self._context.decode(None))
                self._drained = True

    def _packet(self, video: Video, number: int) -> Any:
        track = video.track
        start = int(track.start[number])
        data = np.ascontiguousarray(video.data[start : start + int(track.size[number])])
        packet = self._av.Packet(len(data))  # made of bytes it would have no zeros behind them, which decoders read
        packet.update(data.data)
        packet.pts = int(track.time[number])
        return packet

    def _pixels(self, frame: Any, f: Field) -> Array:
        if (frame.height, frame.width) != f.shape[:2]:
            raise Frames(f"{f.name}: decodes to {frame.height}x{frame.width}; {f.shape[0]}x{f.shape[1]} expected.")
        if f.dtype == "uint16":
            return self._deep(frame).reshape(f.shape)
        form = _FORMATS[f.shape[2] if len(f.shape) == 3 else 1]
        values: Array = self._reformatter.reformat(frame, format=form, **self._alone).to_ndarray()
        return values.reshape(f.shape)

    def _deep(self, frame: Any) -> Array:
        """Grey values of more than 8 bits [H, W]: of 12, as lerobot decodes its depth maps, or of 16."""
        form = _DEEP[frame.format.components[0].bits > _CODE_BITS]
        plane = self._reformatter.reformat(frame, format=form, **self._alone).planes[0]
        rows = np.frombuffer(plane, "<u2").reshape(plane.height, -1)  # lines are padded
        return rows[:, : frame.width]


def _open(av: Any, track: Track) -> Any:
    for name in (*_DECODERS.get(track.codec, ()), track.codec):
        if name in av.codecs_available:
            break
    else:
        raise Frames(f"The package av that is installed has no decoder for {track.codec}.", hint="pip install -U av")
    context = av.CodecContext.create(name, "r")
    if track.extradata:
        context.extradata = track.extradata + bytes(64)  # so that zeros lie behind what is set next
        context.extradata = track.extradata
    if track.codec == "ffv1":  # whose packets do not say
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
