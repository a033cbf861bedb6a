"""Encode frames as MP4 videos, with the package ``av``."""

from __future__ import annotations

import hashlib
import io
import os
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from rlds_cli.errors import InvalidArgument, MissingPackage
from rlds_cli.ted import Array, VideoFrames

VideoCodec = Literal["h264", "hevc", "av1"]
VIDEO_CODECS = get_args(VideoCodec)
MADE = "made-"  # in the names of videos that were encoded here
_ENCODERS = {"h264": ("libx264", 23), "hevc": ("libx265", 28), "av1": ("libsvtav1", 30)}  # and the usual quality
_MOST_CRF = {"h264": 51, "hevc": 51, "av1": 63}


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

    A frame that equals the one before is encoded once.

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
    encoder, usual = _ENCODERS[codec]
    crf = usual if crf is None else crf
    for what, value, most in (("gop", gop, 1000), ("crf", crf, _MOST_CRF[codec])):
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
    options = {"g": str(gop), "crf": str(crf)} | ({"preset": "8"} if codec == "av1" else {"bf": "0"})
    if codec == "hevc":
        options["x265-params"] = "log-level=error"
    distinct = frames[new].reshape(-1, height, width, channels)
    data = _encoded(distinct, encoder, options, Fraction(fps).limit_denominator(1001))
    film = f"{MADE}{hashlib.sha256(data).hexdigest()}"
    index = np.stack([np.zeros(len(frames)), np.cumsum(new) - 1], 1).astype(np.int32)
    return VideoFrames((film,), index, (height, width, channels), made={film: data})


def _encoded(frames: Array, encoder: str, options: dict[str, str], rate: Fraction) -> bytes:
    try:
        import av
    except ImportError as e:
        raise MissingPackage("Videos are encoded with av.", hint="pip install 'rlds-cli[video]'") from e
    os.environ.setdefault("SVT_LOG", "1")  # libsvtav1 describes itself on stderr otherwise
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream(encoder, rate=rate, options=options)
        stream.codec_context.thread_count = 1  # episodes are encoded side by side
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        grey = frames.shape[3] == 1
        for frame in frames[..., 0] if grey else frames:
            pixels = av.VideoFrame.from_ndarray(frame, format="gray" if grey else "rgb24")
            container.mux(stream.encode(pixels))
        container.mux(stream.encode())
    return file.getvalue()
