"""Frames of videos: shuffled, windows, in order, and cached in the size of training; beside torchcodec.

Usage: python benchmarks/video.py [--frames N] [--videos N]     medians of three; videos of its own, removed again

torchcodec needs libraries of FFmpeg: it is given those that PyAV brings along. It is left out
where it does not load. Its loop is the fastest that we found: a decoder is kept for each video, a batch is one
`get_frames_at` for each of its videos, by two threads. Frames in their own size are compared bit for bit.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from results import Results

import rlds_cli
from rlds_cli.base.threads import priorities_kept
from rlds_cli.dataset import Dataset
from rlds_cli.loader import Loader, Resize, Sequential, Shuffled, Slice, Transition

CAMERA, SMALL, THREADS = "observation/camera", (96, 96), 2
ENCODINGS: dict[str, tuple[str, tuple[int, int], dict[str, str]]] = {
    "H.264 640x480, GOP 2": ("libx264", (480, 640), {"g": "2", "bf": "0"}),
    "H.264 640x480, GOP 30": ("libx264", (480, 640), {"g": "30"}),
    "AV1 320x240, GOP 2": ("libsvtav1", (240, 320), {"g": "2", "crf": "30", "preset": "12"}),
}
Run = Callable[[], int]  # returns how many frames it has read


def with_libraries() -> None:
    """Start again with the libraries of FFmpeg that are in PyAV's wheel, under their own names."""
    wheel = Path(av.__file__).parents[1] / "av.libs"
    if "RLDS_BENCH_LIBRARIES" in os.environ or not wheel.is_dir():
        return
    place = tempfile.mkdtemp()
    for file in wheel.iterdir():
        plain = re.sub(r"-[0-9a-f]+(\.so\.[0-9]+).*", r"\1", file.name)
        for name in {file.name, plain}:
            Path(place, name).symlink_to(file)
    os.environ |= {"RLDS_BENCH_LIBRARIES": place, "LD_LIBRARY_PATH": place}
    os.execv(sys.executable, [sys.executable, *sys.argv])


def write(file: Path, seed: int, frames: int, codec: str, size: tuple[int, int], options: dict[str, str]) -> Path:
    """Write a video of a pattern that moves, with noise as cameras have it."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 255, (size[0] // 8, size[1] // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    noise = rng.integers(0, 12, (8, *size, 3), np.uint8)
    encode(file, (np.roll(base, 3 * t, 1) // 2 + noise[t % 8] for t in range(frames)), codec, options)
    return file


def encode(file: Path, pictures: Iterable[np.ndarray], codec: str, options: dict[str, str], rate: int = 30) -> None:
    """Write a video of pictures [H, W, 3]."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.pix_fmt = "yuv420p"
        for k, picture in enumerate(pictures):
            if k == 0:
                stream.height, stream.width = picture.shape[:2]
                with priorities_kept():
                    container.start_encoding()
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


class Torchcodec:
    """Frames of videos, files or their bytes, by torchcodec."""

    def __init__(self, videos: Sequence[Path | bytes], frames: int) -> None:
        from torchcodec.decoders import VideoDecoder

        given = [str(video) if isinstance(video, Path) else video for video in videos]
        self.decoders = [VideoDecoder(video, dimension_order="NHWC", num_ffmpeg_threads=1) for video in given]
        self.frames, self._pool = frames, ThreadPoolExecutor(THREADS)

    def batch(self, rows: np.ndarray) -> torch.Tensor:
        """Return frames by their numbers over all videos [n]."""
        order = np.argsort(rows, kind="stable")
        video, frame = np.divmod(rows[order], self.frames)
        parts = [(v, frame[video == v].tolist()) for v in np.unique(video).tolist()]
        read = self._pool.map(lambda part: self.decoders[part[0]].get_frames_at(part[1]).data, parts)
        made = torch.cat(list(read))
        out = torch.empty_like(made)
        out[torch.from_numpy(order)] = made
        return out


def measured(run: Run, times: int = 3) -> tuple[float, float]:
    """Return the medians of wall and CPU time of a frame, in milliseconds."""
    found = []
    for _ in range(times):
        began, busy = time.perf_counter(), time.process_time()
        frames = run()
        found.append(((time.perf_counter() - began) / frames * 1e3, (time.process_time() - busy) / frames * 1e3))
    return statistics.median(wall for wall, _ in found), statistics.median(cpu for _, cpu in found)


def counted(batches: Iterable[Any]) -> int:
    """Read batches; return their frames."""
    return sum(int(np.prod(b[CAMERA].shape[:-3])) for b in batches)


def ours(ds: Dataset, batch: int, how: dict[str, Any]) -> Run:
    """A loader over the frames."""
    return lambda: counted(Loader(ds, batch, fields=[CAMERA], **how))


def theirs(peer: Torchcodec, rows: np.ndarray, batch: int, size: tuple[int, int] | None = None) -> Run:
    """The peer's loop over rows [n]: ``batch`` frames at a time, resized as ours are."""

    def run() -> int:
        for k in range(0, len(rows), batch):
            made = peer.batch(rows[k : k + batch])
            if size is not None:
                Resize(CAMERA, size).apply(CAMERA, made)
        return len(rows)

    return run


def order_of(ds: Dataset, batch: int, how: dict[str, Any]) -> np.ndarray:
    """Return the frames that a loader reads, in its order, by their numbers over all videos."""
    parts = list(Loader(ds, batch, fields=["action"], dtype=None, backend="numpy", **how))
    return np.concatenate([p["action"].reshape(-1) for p in parts])


def rows_of(name: str, place: Path, videos: int, frames: int, results: Results) -> None:
    """Measure one encoding."""
    codec, size, options = ENCODINGS[name]
    files = [write(place / f"{k}.mp4", k, frames, codec, size, options) for k in range(videos)]
    episodes = [
        {"observation": {"camera": rlds_cli.Video(f)}, "action": np.arange(frames) + k * frames, "next": {}}
        for k, f in enumerate(files)
    ]
    ds = rlds_cli.create("local/video", episodes, home=place / "home", force=True)
    try:
        peer: Torchcodec | None = Torchcodec(files, frames)
    except (ImportError, OSError, RuntimeError):
        peer = None
    each: dict[str, Any] = {"window": Transition(anchors="steps"), "seed": 0}
    whole, cached = Resize(CAMERA, SMALL), Resize(CAMERA, SMALL, cache="8GiB")
    steps = max(1, videos * frames // 64)
    cases: list[tuple[str, int, dict[str, Any], tuple[int, int] | None]] = [
        ("shuffled frames, 64 a batch", 64, each | {"sampler": Shuffled()}, None),
        ("windows of 4, 16 a batch", 16, {"window": Slice(4), "steps": steps, "seed": 0}, None),
        ("windows of 8, 8 a batch", 8, {"window": Slice(8), "steps": steps, "seed": 0}, None),
        ("in order, 64 a batch", 64, each | {"sampler": Sequential()}, None),
        ("shuffled, 96x96", 64, each | {"sampler": Shuffled(), "transform": whole}, SMALL),
        ("shuffled, 96x96, cache: first epoch", 64, each | {"sampler": Shuffled(), "transform": cached}, SMALL),
        ("shuffled, 96x96, cache: second epoch", 64, each | {"sampler": Shuffled(), "transform": cached}, SMALL),
    ]
    for what, batch, how, small in cases:
        first = "first epoch" in what
        wall, cpu = measured(ours(ds, batch, how), 1 if first else 3)
        note = f"CPU {cpu:.2f} ms"
        if peer is not None:
            rows = order_of(ds, batch, {k: v for k, v in how.items() if k != "transform"})
            at_once = batch * (how["window"].length if isinstance(how["window"], Slice) else 1)
            other, busy = measured(theirs(peer, rows, at_once, small))
            note += f"; torchcodec {other:.2f} and {busy:.2f} ms: {other / wall:.2f} x, CPU {busy / cpu:.2f} x"
            if small is None:
                check(ds, batch, how, peer, rows[:at_once])
        results.add(f"{name}: {what}", wall, "ms", note)


def check(ds: Dataset, batch: int, how: dict[str, Any], peer: Torchcodec, rows: np.ndarray) -> None:
    """Compare the first batch: frames are equal bit for bit."""
    made = next(iter(Loader(ds, batch, fields=[CAMERA], **how)))[CAMERA].flatten(0, -4)
    assert torch.equal(made, peer.batch(rows)), "frames differ from torchcodec's"


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--videos", type=int, default=6)
    given = parser.parse_args()
    with_libraries()
    os.environ["SVT_LOG"] = "1"  # errors alone
    results = Results("video")
    for name in ENCODINGS:
        with tempfile.TemporaryDirectory() as place:
            rows_of(name, Path(place), given.videos, given.frames, results)
    results.write()


if __name__ == "__main__":
    main()
