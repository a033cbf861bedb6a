"""Frames a second out of videos: random ones, windows, all in order; beside PyAV.

Usage: python benchmarks/video.py [--frames N]        writes and removes an archive of its own; medians of five
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlds_cli.importing import import_files
from rlds_cli.loader import Loader, Slice, Transition

FPS, EPISODE, HEIGHT, WIDTH = 10, 200, 240, 320
CAMERA = "observation.images.top"
FIELD = "observation/images/top"


def write(root: Path, frames: int) -> Path:
    """A LeRobot v2.1 archive of one camera, encoded as LeRobot does: AV1, a key frame every second frame."""
    episodes = max(1, frames // EPISODE)
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [8]},
        "action": {"dtype": "float32", "shape": [8]},
        CAMERA: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3]},
        "episode_index": {"dtype": "int64", "shape": [1]},
        "timestamp": {"dtype": "float32", "shape": [1]},
    }
    (root / "meta").mkdir(parents=True)
    info = {"codebase_version": "v2.1", "fps": FPS, "features": features, "total_episodes": episodes}
    (root / "meta/info.json").write_text(json.dumps(info))
    lines = [json.dumps({"episode_index": k, "length": EPISODE}) for k in range(episodes)]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    base = np.random.default_rng(0).integers(0, 255, (HEIGHT // 8, WIDTH // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    for k in range(episodes):
        zeros = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(EPISODE * 8, np.float32)), 8)
        time = (np.arange(EPISODE) / FPS).astype(np.float32)
        columns = {"observation.state": zeros, "action": zeros, "timestamp": time, "episode_index": [k] * EPISODE}
        data, video = root / "data/chunk-000", root / "videos/chunk-000" / CAMERA
        data.mkdir(parents=True, exist_ok=True)
        video.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), data / f"episode_{k:06d}.parquet")
        with av.open(str(video / f"episode_{k:06d}.mp4"), "w") as container:
            stream = container.add_stream("libsvtav1", rate=FPS, options={"g": "2", "crf": "30", "preset": "12"})
            stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
            for i in range(EPISODE):
                picture = np.roll(base, 3 * (i + k), 1)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
    return root


def rate(what: str, frames: int, run: Callable[[], object]) -> None:
    """Print the median rate of five runs."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    print(f"{what:44} {frames / statistics.median(seconds):8,.0f} frames/s")


def searched(file: Path, numbers: np.ndarray) -> None:
    """Each frame by itself: the file opened, searched and decoded."""
    for k in numbers.tolist():
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            container.seek(int(k / FPS / stream.time_base), stream=stream)
            frames = container.decode(stream)
            next(f for f in frames if f.pts * stream.time_base >= k / FPS - 1e-4).to_ndarray(format="rgb24")


def in_order(file: Path) -> None:
    """All frames of a file."""
    with av.open(str(file)) as container:
        for frame in container.decode(video=0):
            frame.to_ndarray(format="rgb24")


def main() -> None:
    """Write, import, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=2000)
    frames = parser.parse_args().frames
    with tempfile.TemporaryDirectory() as place:
        root = write(Path(place, "archive"), frames)
        ds = import_files(root, "local/video", cache_dir=Path(place, "home"))
        rows = np.concatenate([s + np.arange(EPISODE) for s in ds.episodes["start"]])
        drawn = np.random.default_rng(0).choice(rows, 200)
        how: dict[str, Any] = {"window": Transition(anchors="steps"), "fields": [FIELD], "steps": 8, "seed": 0}
        video = min(root.rglob("*.mp4"))
        rate("random frames, one thread", 200, lambda: ds.gather(FIELD, drawn))
        rate("in order, one thread", 600, lambda: ds.gather(FIELD, rows[:600]))
        rate("loader, batches of 64 random frames", 512, lambda: list(Loader(ds, 64, **how)))
        rate("loader, batches of 8 windows of 8", 512, lambda: list(Loader(ds, 8, window=Slice(8), **how)))
        rate("PyAV, in order", EPISODE, lambda: in_order(video))
        rate("PyAV, opened and searched for each frame", 40, lambda: searched(video, drawn[:40] % EPISODE))


if __name__ == "__main__":
    main()
