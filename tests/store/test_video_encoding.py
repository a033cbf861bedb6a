"""Frames that are encoded as a video always give the same bytes: those of the encoders' plain C code, in one thread."""

import ctypes
import io
import os
import subprocess
import sys
from contextlib import contextmanager

import av
import numpy as np
import pytest

from rlds_cli.base.threads import priorities_kept
from rlds_cli.preprocess.builtin.video_encoding import encode_video

PLAIN = {
    "h264": ("libx264", {"crf": "23", "bf": "0", "x264-params": "asm=0"}),
    "hevc": (
        "libx265",
        {
            "crf": "28",
            "bf": "0",
            "x265-params": "asm=0:info=0:cutree=0:pools=none:frame-threads=1:wpp=0:log-level=error",
        },
    ),
    "av1": ("libsvtav1", {"crf": "30", "preset": "8", "svtav1-params": "asm=c:lp=1"}),
}


def moving(height: int, width: int, count: int) -> np.ndarray:
    """Blocks that move diagonally under noise [count, height, width, 3]."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1)
    noise = rng.normal(0, 12, (count, height, width, 1))
    moved = np.stack([np.roll(blocks, (t, 2 * t), (0, 1)) for t in range(count)])
    return np.clip(moved + noise, 0, 255).astype(np.uint8)


@contextmanager
def plain_code():
    """Have libswscale, which makes the encoders' pixels, use C code."""
    libraries = ctypes.CDLL(av._core.__file__)
    libraries.av_force_cpu_flags(0)
    try:
        yield
    finally:
        libraries.av_force_cpu_flags(-1)


def encoded_plainly(frames: np.ndarray, codec: str, gop: int) -> bytes:
    encoder, options = PLAIN[codec]
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(encoder, rate=30, options={"g": str(gop), **options})
        stream.codec_context.thread_count = 1
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        with priorities_kept():
            container.start_encoding()
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize(
    ("codec", "gop", "size"),
    [
        ("h264", 2, (32, 48)),  # three macroblocks: AVX-512 code of libx264 goes on behind the third
        ("h264", 30, (128, 176)),  # all its SIMD code rounds otherwise
        ("hevc", 30, (128, 176)),  # two rows of blocks, which threads would code separately
        ("av1", 30, (64, 96)),
    ],
)
def test_a_video_depends_on_neither_processor_nor_threads(codec, gop, size, monkeypatch):
    monkeypatch.setenv("SVT_LOG", "1")
    frames = moving(*size, count=16)
    (made,) = encode_video(frames, codec, gop=gop).made.values()
    with plain_code():
        assert made == encoded_plainly(frames, codec, gop)


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="no priorities of real time here")
@pytest.mark.parametrize("codec", PLAIN)
def test_encoding_leaves_priorities_alone(codec):
    """As root, libsvtav1 gives the highest one of real time to the thread that calls it, and to its own."""
    code = f"""
import os
from contextlib import suppress
import numpy as np
from rlds_cli.preprocess import encode_video
before = os.sched_getscheduler(0)
encode_video(np.arange(5 * 64 * 64, dtype=np.uint8).reshape(5, 64, 64), {codec!r})
found = set()
for task in map(int, os.listdir("/proc/self/task")):
    with suppress(ProcessLookupError):  # it has ended
        found.add(os.sched_getscheduler(task))
assert found == {{before}}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_small_frames_of_hevc_leave_memory_alone():
    """libx265 wrote beyond its rows of blocks, and the process ended in an abort of malloc or a segmentation fault."""
    code = """
import numpy as np
from rlds_cli.preprocess import encode_video
blocks = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8).repeat(8, 0).repeat(8, 1)
for _ in range(6):
    encode_video(np.stack([np.roll(blocks, 4 * t, 1) for t in range(12)]), "hevc")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
