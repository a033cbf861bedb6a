"""Pictures that say their number: ten blocks, white for a 1, and below each the block of its opposite.

They are read again from any picture of them that shows light and dark, however it was encoded.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from rlds_cli.base.threads import priorities_kept

BITS, SIDE = 10, 16
HEIGHT, WIDTH = 2 * SIDE, BITS * SIDE
CODECS = {  # of PyAV, with options that tests want
    "h264": ("libx264", {"preset": "ultrafast"}),
    "hevc": ("libx265", {"preset": "ultrafast"}),
    "vp9": ("libvpx-vp9", {"cpu-used": "8", "deadline": "realtime"}),
    "av1": ("libsvtav1", {"preset": "12"}),
    "mpeg4": ("mpeg4", {}),
}


def picture(number: int, dtype: str = "uint8", white: int = 255) -> np.ndarray:
    """Values [32, 160] that say a number."""
    bits = np.array([number >> k & 1 for k in range(BITS)])
    rows = np.stack([bits, 1 - bits]) * white
    return rows.repeat(SIDE, 0).repeat(SIDE, 1).astype(dtype)


def pictures(numbers: Iterable[int]) -> np.ndarray:
    """RGB pictures [n, 32, 160, 3]."""
    return np.stack([picture(n) for n in numbers])[..., None].repeat(3, -1)


def encoded(number: int, codec: str) -> bytes:
    """A picture as JPEG or PNG."""
    file = io.BytesIO()
    Image.fromarray(picture(number)[..., None].repeat(3, -1)).save(file, codec)
    return file.getvalue()


def number_of(image: bytes) -> int:
    """The number that a JPEG or a PNG says."""
    values = np.asarray(Image.open(io.BytesIO(image)).convert("L"))
    rows, side = values.shape[0] // 2, values.shape[1] / BITS
    at = ((np.arange(BITS) + 0.5) * side).astype(int)
    upper, lower = values[rows // 2, at] > 127, values[rows + rows // 2, at] > 127
    assert (upper != lower).all(), "no number is to be seen"
    return int((upper * (1 << np.arange(BITS))).sum())


def film(
    path: Path, numbers: Sequence[int], *, codec: str = "h264", times: Sequence[int] | None = None, fps: int = 30,
    pixels: str = "yuv420p", x265: str = "", **options: str,
) -> Path:  # fmt: skip
    """Write a video of pictures, shown at ``times``, in hundredths of a frame of ``fps``."""
    encoder, usual = CODECS[codec]
    chosen = {**usual, **options}
    if codec == "hevc":
        chosen["x265-params"] = f"log-level=none:cutree=0:{x265}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(encoder, rate=fps, options=chosen)
        stream.codec_context.thread_count = 1
        stream.codec_context.time_base = Fraction(1, 100 * fps)
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, pixels
        with priorities_kept():
            container.start_encoding()
        for k, frame in enumerate(pictures(numbers)):
            made = av.VideoFrame.from_ndarray(frame, format="rgb24")
            made.pts, made.time_base = times[k] if times is not None else 100 * k, Fraction(1, 100 * fps)
            container.mux(stream.encode(made))
        container.mux(stream.encode())
    return path


def seconds_of(path: Path) -> list[float]:
    """When the frames of a video are shown, by FFmpeg."""
    with av.open(str(path)) as container:
        return [float(frame.time) for frame in container.decode(video=0)]
