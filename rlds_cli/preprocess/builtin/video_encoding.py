"""Encode frames as MP4 videos, with the package ``av``."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.media.video_files import one_thread
from rlds_cli.base.threads import priorities_kept
from rlds_cli.errors import InvalidArgument, MissingPackage
from rlds_cli.ted import VideoFrames

VideoCodec = Literal["h264", "hevc", "av1"]
VIDEO_CODECS = get_args(VideoCodec)
MADE = "made-"  # in the names of videos that were encoded here


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    """An encoder, its usual and its largest crf, and the options by which frames always give the same bytes.

    Fingerprints, locks and results that are used again rest on these bytes: they must not depend on the processor, on
    the number of its cores or on what is in memory.
    """

    name: str
    crf: int
    most_crf: int
    options: Mapping[str, str]


# What a block is worth to later frames (mbtree, cutree) is added up by SIMD code that goes on beyond the end of a row
# of blocks: libx264's of AVX-512 takes up what lies in memory there, and libx265's overwrites it. Independent of the
# processor, libx264 adds up in C (5 % more CPU). libx265 writes the processor's features to the file unless info=0,
# and codes rows (wpp) and frames by the number of its threads.
_ENCODERS = {
    "h264": _Encoder(name="libx264", crf=23, most_crf=51, options={"bf": "0", "x264-params": "cpu-independent=1"}),
    "hevc": _Encoder(
        name="libx265",
        crf=28,
        most_crf=51,
        options={"bf": "0", "x265-params": "log-level=error:info=0:cutree=0:pools=none:frame-threads=1:wpp=0"},
    ),
    "av1": _Encoder(name="libsvtav1", crf=30, most_crf=63, options={"preset": "8", "svtav1-params": "lp=1"}),
}
_EXACT = 2 | 1 << 18 | 1 << 19  # SWS_BILINEAR | SWS_ACCURATE_RND | SWS_BITEXACT: as in C, for 0.5 ms of 640x480 pixels


def encode_video(
    frames: Array,
    codec: VideoCodec = "h264",
    *,
    gop: int = 2,
    crf: int | None = None,
    fps: float = 30,
    name: str = "frames",
) -> VideoFrames:
    """Encode frames as one MP4 video, for a preprocess function of episodes that returns videos instead of arrays.

    A frame that equals the one before is encoded once. The same frames and arguments give the same bytes, on any
    processor, with the same version of ``av``.

    Parameters
    ----------
    frames : uint8 array [n, H, W], [n, H, W, 1] or [n, H, W, 3]
        Height and width are even: brightness has all pixels, colour a quarter of them (4:2:0).
    codec : {"h264", "hevc", "av1"}
    gop : int
        Frames of a group of pictures. A single frame is decoded from the beginning of its group on: 2 suits random
        frames, 30 takes less space.
    crf : int, optional
        Constant rate factor, from 0 (best); by default 23 for H.264, 28 for HEVC and 30 for AV1.
    fps : float
        Frames a second that the file is labelled with.
    name : str
        Name of the field in errors.

    Raises
    ------
    InvalidArgument
        They are not such frames, or there is no such codec, or an argument is out of range.
    MissingPackage
        `av` is not installed.
    """
    if codec not in _ENCODERS:
        raise InvalidArgument(f"{name}: there is no codec {codec!r} for videos; {', '.join(VIDEO_CODECS)} are.")
    encoder = _ENCODERS[codec]
    crf = encoder.crf if crf is None else crf
    for what, value, most in (("gop", gop, 1000), ("crf", crf, encoder.most_crf)):
        if isinstance(value, bool) or not isinstance(value, int) or not (what == "gop") <= value <= most:
            raise InvalidArgument(f"{name}: {what}={value!r} is not an integer from {int(what == 'gop')} to {most:,}.")
    if not isinstance(fps, int | float) or not 0 < fps <= 1000:
        raise InvalidArgument(f"{name}: fps={fps!r} is not a number up to 1,000.")
    channels = frames.shape[3] if frames.ndim == 4 else 1
    if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or channels not in (1, 3):
        raise InvalidArgument(f"{name}: {frames.dtype} {list(frames.shape)} cannot be encoded as a video.")
    height, width = frames.shape[1:3]
    if height % 2 or width % 2:
        raise InvalidArgument(
            f"{name}: frames of {height}x{width} cannot be encoded as a video: even sides are needed.",
            hint=f"crop or resize to {height // 2 * 2}x{width // 2 * 2}",
        )
    new = np.ones(len(frames), bool)
    new[1:] = [not np.array_equal(a, b) for a, b in zip(frames[1:], frames[:-1], strict=True)]
    distinct = frames[new].reshape(-1, height, width, channels)
    options = {"g": str(gop), "crf": str(crf), **encoder.options}
    data = _encoded(distinct, encoder.name, options, Fraction(fps).limit_denominator(1001))
    film = f"{MADE}{hashlib.sha256(data).hexdigest()}"
    index = np.stack([np.zeros(len(frames)), np.cumsum(new) - 1], 1).astype(np.int32)
    return VideoFrames((film,), index, (height, width, channels), made={film: data})


def _encoded(frames: Array, encoder: str, options: dict[str, str], rate: Fraction) -> bytes:
    try:
        import av
    except ImportError as e:
        raise MissingPackage("Videos are encoded with av.", hint="pip install 'rlds-cli[video]'") from e
    os.environ.setdefault("SVT_LOG", "1")  # libsvtav1 describes itself on stderr otherwise
    reformatter = av.video.reformatter.VideoReformatter()
    conversion: Any = {"format": "yuv420p", "interpolation": _EXACT, **one_thread(av)}
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream(encoder, rate=rate, options=options)
        stream.codec_context.thread_count = 1  # episodes are encoded side by side
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        with priorities_kept():
            container.start_encoding()
        grey = frames.shape[3] == 1
        for frame in frames[..., 0] if grey else frames:
            pixels = av.VideoFrame.from_ndarray(frame, format="gray" if grey else "rgb24")
            container.mux(stream.encode(reformatter.reformat(pixels, **conversion)))
        container.mux(stream.encode())
    return file.getvalue()
