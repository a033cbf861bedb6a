"""Read the positions and times of the frames of a video file.

MP4 is read by its own tables (`formats.mp4`), what these do not say (fragments, rare codecs) as well as Matroska (also
WebM) and AVI by the demuxers of FFmpeg, which the package ``av`` has. They say where the bytes of each packet lie, so
that all of these files are stored as they are.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base.media import mp4
from rlds_cli.base.media.mp4 import Extent, Read, Track
from rlds_cli.errors import CorruptArchive, MissingPackage, UnknownLayout

_CODECS = ("av1", "ffv1", "h264", "hevc", "mjpeg", "mpeg4", "vp8", "vp9")
_BEFORE = 64  # bytes of a block before its packet
_UNSPECIFIED, _FULL = 2, 2  # of colour spaces, and of ranges, as ITU-T H.273 and FFmpeg number them


def read(file: Path | Extent) -> Track:
    """Read the video track of a file, or of an extent.

    Raises
    ------
    CorruptArchive
        The file is cut short, or damaged.
    UnknownLayout
        It is neither MP4, Matroska nor AVI, or of a codec, or with an order of frames, that is not read.
    MissingPackage
        It is not MP4, and ``av`` is not installed.
    """
    of = file if isinstance(file, Extent) else Extent.whole(file)
    container = _container(of)
    if container is not None:
        return _demuxed(of, container)
    try:
        return mp4.read(file)
    except mp4.OtherForm:
        with suppress(MissingPackage, UnknownLayout, CorruptArchive):
            return _demuxed(of, "mp4")
        raise


def is_mp4(file: Extent) -> bool:
    """Return whether a video is in an MP4 file with tables of its own."""
    try:
        return _container(file) is None and bool(mp4.read(file).codec)
    except UnknownLayout:
        return False


def _container(of: Extent) -> str | None:
    """Return FFmpeg's name of a container by its first bytes; None for MP4 and others."""
    with of.opened() as opened:
        head = opened(0, 12)
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    return "avi" if head[:4] == b"RIFF" and head[8:] == b"AVI " else None


def _demuxed(of: Extent, container: str) -> Track:
    try:
        import av
    except ImportError as e:
        raise MissingPackage(
            f"{of.name}: videos in {container} are read with the package av, which is not installed.",
            hint="pip install 'rlds-cli[video]'",
        ) from e
    try:
        with of.opened() as opened, av.open(_File(opened, of.size), format=container) as file:
            if not file.streams.video:
                raise UnknownLayout(f"{of.name} holds no video.")
            return _track(of, opened, file, file.streams.video[0], container)
    except (av.FFmpegError, ValueError) as e:
        raise CorruptArchive(f"{of.name} is not a whole {container} file: {e}", hint="fetch or write it again") from e


def _track(of: Extent, opened: Read, file: Any, stream: Any, container: str) -> Track:
    context = stream.codec_context  # None if FFmpeg has no decoder
    codec = context.codec.canonical_name if context is not None else "unknown"
    if codec not in _CODECS:
        raise UnknownLayout(f"{of.name}: videos of the codec {codec} are not read; those of {', '.join(_CODECS)} are.")
    if stream.time_base is None or not context.height * context.width:
        raise UnknownLayout(f"{of.name} does not say when its frames are shown, or how large they are.")
    if container == "avi" and context.has_b_frames:
        raise UnknownLayout(
            f"{of.name}: an AVI file does not say when its frames are shown, which are not in their order.",
            hint=f"ffmpeg -fflags +genpts -i {of.name.name} -c copy {of.name.stem}.mp4 keeps the frames",
        )
    found = [(_place(of, opened, p), p.size, p.pts, p.is_keyframe, _is_shown(p, codec)) for p in _packets(file, stream)]
    if not found or any(time is None for _, _, time, _, _ in found):
        raise UnknownLayout(f"{of.name}: {'frames without a time' if found else 'no frames'}.")
    start, size, time, key, shown = (np.array(column) for column in zip(*found, strict=True))
    return Track(
        codec=codec,
        extradata=bytes(context.extradata or b""),
        height=context.height,
        width=context.width,
        timescale=stream.time_base.denominator,
        start=start.astype(np.int64),
        size=size.astype(np.int64),
        time=time.astype(np.int64) * stream.time_base.numerator,
        key=key,
        shown=shown,
        matrix=None if int(context.colorspace) == _UNSPECIFIED else int(context.colorspace),
        full_range=int(context.color_range) == _FULL,
    )


def _packets(file: Any, stream: Any) -> Iterator[Any]:
    return (p for p in file.demux(stream) if p.size)  # the last one is empty


def _place(of: Extent, opened: Read, packet: Any) -> int:
    """Return the byte of the file at which the data of a packet begin."""
    data, at = bytes(packet), packet.pos or 0
    found = opened(at, _BEFORE + len(data)).find(data)
    if found < 0:
        raise UnknownLayout(
            f"{of.name}: its packets are not in it as they are decoded (compressed headers, or laced blocks).",
            hint=f"ffmpeg -i {of.name.name} -c copy {of.name.stem}.mp4 keeps the frames",
        )
    return int(at + found)


def _is_shown(packet: Any, codec: str) -> bool:
    """Return whether a packet's frame is shown. VP8 has hidden ones: bit 4 of the frame tag (RFC 6386, 9.1)."""
    return codec != "vp8" or bool(bytes(packet)[0] & 0x10)


class _File(io.RawIOBase):
    """An extent as a file."""

    def __init__(self, opened: Read, size: int) -> None:
        self._read, self._size, self._at = opened, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._read(self._at, self._size - self._at if size < 0 else size)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def one_thread(av: Any) -> dict[str, int]:
    """Return the argument by which ``VideoReformatter.reformat`` starts no threads.

    From version 17 of ``av`` on it has threads of its own, which a forked process waits for in vain.
    """
    return {"threads": 1} if int(av.__version__.partition(".")[0]) >= 17 else {}
