"""Videos and images of which each frame says its number: as digits for people, and in stripes for programs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rlds_cli.base.threads import priorities_kept

BITS = 12
# What a canvas shows, read in JavaScript: white stripes at its lower edge are bits.
READ = """((canvas) => {
  const { width, height } = canvas;
  const line = canvas.getContext("2d").getImageData(0, Math.floor(height * 0.95), width, 1).data;
  let number = 0;
  for (let bit = 0; bit < BITS; bit++) if (line[4 * Math.floor(((bit + 0.5) * width) / BITS)] > 128) number |= 1 << bit;
  return number;
})""".replace("BITS", str(BITS))


def frame(number: int, *, width: int = 192, height: int = 144, tint: int = 0) -> Image.Image:
    """One frame."""
    image = Image.new("RGB", (width, height), (40 + tint, 60, 90 + tint // 2))
    draw = ImageDraw.Draw(image)
    draw.text((width // 20, height // 20), str(number), fill="white", font=ImageFont.load_default(height // 7))
    x = width * (0.1 + 0.8 * (number % 200) / 200)
    draw.ellipse((x - height // 12, height * 0.55, x + height // 12, height * 0.55 + height // 6), fill=(220, 140, 60))
    for bit in range(BITS):
        white = 255 * (number >> bit & 1)
        draw.rectangle(
            (bit * width // BITS, height * 7 // 8, (bit + 1) * width // BITS - 1, height), fill=(white, white, white)
        )
    return image


def jpeg(number: int, *, width: int = 192, height: int = 144, tint: int = 0) -> bytes:
    file = io.BytesIO()
    frame(number, width=width, height=height, tint=tint).save(file, "jpeg", quality=92)
    return file.getvalue()


def film(
    path: Path,
    numbers: Sequence[int],
    *,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    rate: int = 30,
    times: Sequence[int] | None = None,
    width: int = 192,
    height: int = 144,
    tint: int = 0,
) -> Path:
    """Write a video of numbered frames; ``times`` in milliseconds make its rate vary."""
    frames = [frame(number, width=width, height=height, tint=tint) for number in numbers]
    return write(path, frames, codec=codec, options=options, rate=rate, times=times)


def write(
    path: Path,
    frames: Sequence[Image.Image],
    *,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    rate: int = 30,
    times: Sequence[int] | None = None,
) -> Path:
    """Write a video of images."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        if times is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        with priorities_kept():
            container.start_encoding()
        for k, shown in enumerate(frames):
            image = av.VideoFrame.from_image(shown)
            image.pts, image.time_base = (k, Fraction(1, rate)) if times is None else (times[k], Fraction(1, 1000))
            container.mux(stream.encode(image))
        container.mux(stream.encode())
    return path


def depth(number: int, *, width: int = 96, height: int = 72) -> bytes:
    """A bowl that moves, in millimetres, as PNG of 16 bits."""
    y, x = np.mgrid[:height, :width]
    away = np.hypot(x - width / 2 - 20 * np.sin(number / 20), y - height / 2)
    file = io.BytesIO()
    Image.fromarray((500 + 30 * away).astype(np.uint16)).save(file, "png")
    return file.getvalue()
