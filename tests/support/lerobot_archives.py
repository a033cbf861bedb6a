"""Small archives in LeRobot's layouts, written with pyarrow, PIL and av; and what is in them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from rlds_cli.base.threads import priorities_kept

FPS = 10
H, W = 48, 64


@dataclass
class Content:
    """Episodes and how they are to be written."""

    lengths: tuple[int, ...] = (12, 7, 20)
    video: tuple[str, ...] = ()  # cameras
    image: tuple[str, ...] = ()
    codec: str = "libx264"
    options: dict[str, str] = field(default_factory=lambda: {"g": "4", "bf": "0"})
    tasks: tuple[str, ...] = ("push the block", "pull")
    splits: dict[str, str] = field(default_factory=lambda: {"train": "0:2", "val": "2:3"})
    depth: tuple[str, ...] = ()  # cameras of depth: videos of 12 bits
    depth_info: dict[str, Any] = field(default_factory=lambda: {"is_depth_map": True, "video.pix_fmt": "gray12le"})
    depth_codec: str = "libx265"
    per_file: int = 2  # episodes of a data file, v3
    per_video: int = 3  # episodes of a video, v3
    extra: dict[str, tuple[dict[str, Any], Any]] = field(default_factory=dict)  # feature, values of all rows

    @property
    def rows(self) -> int:
        return sum(self.lengths)

    @property
    def starts(self) -> list[int]:
        return [sum(self.lengths[:k]) for k in range(len(self.lengths))]

    def column(self, key: str) -> np.ndarray:
        """Values of all rows of a feature that every archive has."""
        rng = np.random.default_rng(sum(key.encode()))
        n = self.rows
        if key == "observation.state":
            return rng.normal(size=(n, 4)).astype(np.float32)
        if key == "action":
            return rng.normal(size=(n, 2)).astype(np.float32)
        if key == "next.reward":
            return rng.normal(size=n).astype(np.float32)
        if key == "next.done":
            return np.isin(np.arange(n), np.cumsum(self.lengths) - 1)
        if key == "frame_index":
            return np.concatenate([np.arange(k) for k in self.lengths])
        if key == "timestamp":
            return (self.column("frame_index") / FPS).astype(np.float32)
        if key == "episode_index":
            return np.repeat(np.arange(len(self.lengths)), self.lengths)
        if key == "index":
            return np.arange(n)
        assert key == "task_index"
        return self.column("episode_index") % len(self.tasks)

    def frames(self, camera: str) -> np.ndarray:
        """What a camera saw: blobs that move [rows, H, W, 3]."""
        rng = np.random.default_rng(len(camera))
        base = rng.integers(0, 255, (H // 8, W // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        return np.stack([np.roll(base, 3 * k, 1) for k in range(self.rows)])

    def codes(self, camera: str) -> np.ndarray:
        """What a camera of depth saw: codes of 12 bits in a ramp that moves, uint16 [rows, H, W]."""
        ramp = (np.arange(H * W, dtype=np.int64).reshape(H, W) * 4095 // (H * W - 1) + len(camera)) % 4096
        return np.stack([np.roll(ramp, 5 * k, 1) for k in range(self.rows)]).astype(np.uint16)

    def features(self) -> dict[str, dict[str, Any]]:
        image = {"shape": [H, W, 3], "names": ["height", "width", "channels"]}
        vectors = {"observation.state": ("float32", [4]), "action": ("float32", [2])}
        scalars = {"next.reward": "float32", "next.done": "bool", "timestamp": "float32"}
        numbers = dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")
        return {
            **{k: {"dtype": d, "shape": s, "names": None} for k, (d, s) in vectors.items()},
            **{f"observation.images.{c}": {"dtype": "image", **image} for c in self.image},
            **{f"observation.images.{c}": {"dtype": "video", **image} for c in self.video},
            **{
                f"observation.images.{c}": {"dtype": "video", **image, "shape": [H, W, 1], "info": self.depth_info}
                for c in self.depth
            },
            **{k: {"dtype": d, "shape": [1], "names": None} for k, d in (scalars | numbers).items()},
            **{k: f for k, (f, _) in self.extra.items()},
        }

    def table(self, start: int, stop: int) -> pa.Table:
        """Some rows, as LeRobot writes them."""
        columns: dict[str, pa.Array] = {}
        for key, f in self.features().items():
            if f["dtype"] == "video":
                continue
            if f["dtype"] == "image" and key not in self.extra:
                pictures = [png(x) for x in self.frames(key.rpartition(".")[2])[start:stop]]
                columns[key] = pa.array(
                    [{"bytes": p, "path": f"frame-{k:06d}.png"} for k, p in enumerate(pictures)],
                    pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
                )
                continue
            values = self.extra[key][1] if key in self.extra else self.column(key)
            values = values[start:stop]
            if isinstance(values, np.ndarray) and values.ndim == 2:
                columns[key] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
            else:
                columns[key] = pa.array(values)
        return pa.table(columns)


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def encode(path: Path, frames: np.ndarray, codec: str, options: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options=options)
        stream.codec_context.thread_count = 1  # several threads do not always write the same bytes
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        with priorities_kept():
            container.start_encoding()
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def encode_depth(path: Path, codes: np.ndarray, codec: str, pixels: str) -> None:
    """A video of grey values, lossless, as lerobot writes depth."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # With B-frames, x265 makes up the decoding times of films as short as these.
    lossless = {"x265-params": "lossless=1:log-level=none:cutree=0:keyint=2:bframes=0"} if codec == "libx265" else {}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options=lossless)
        stream.codec_context.thread_count = 1
        stream.height, stream.width, stream.pix_fmt = codes.shape[1], codes.shape[2], pixels
        with priorities_kept():
            container.start_encoding()
        for k, values in enumerate(codes):
            frame = av.VideoFrame(codes.shape[2], codes.shape[1], pixels)
            frame.pts, frame.time_base = k, Fraction(1, FPS)
            plane = frame.planes[0]
            lines = np.zeros((plane.height, plane.line_size // values.itemsize), values.dtype)
            lines[:, : values.shape[1]] = values
            plane.update(lines.tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def decoded(path: Path) -> np.ndarray:
    """All frames of a video, by av from the first to the last."""
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def _info(c: Content, version: str, **paths: Any) -> dict[str, Any]:
    return {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": len(c.lengths),
        "total_frames": c.rows,
        "total_tasks": len(c.tasks),
        "chunks_size": 1000,
        "fps": FPS,
        "splits": c.splits,
        "features": c.features(),
        **paths,
    }


def write_v3(root: Path, c: Content) -> Path:
    """Several episodes to a file; videos are cut elsewhere than data."""
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    info = _info(
        c,
        "v3.0",
        data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    )
    (root / "meta" / "info.json").write_text(json.dumps(info))
    (root / "meta" / "stats.json").write_text("{}")
    tasks = pa.table({"task_index": range(len(c.tasks)), "__index_level_0__": list(c.tasks)})
    pq.write_table(tasks, root / "meta" / "tasks.parquet")
    stops = [s + n for s, n in zip(c.starts, c.lengths, strict=True)]
    episodes = []
    for k, length in enumerate(c.lengths):
        row = {"episode_index": k, "tasks": [c.tasks[k % len(c.tasks)]], "length": length}
        row |= {"data/chunk_index": 0, "data/file_index": k // c.per_file}
        row |= {"dataset_from_index": c.starts[k], "dataset_to_index": stops[k]}
        for camera in (*c.video, *c.depth):
            first = k // c.per_video * c.per_video
            begin = (c.starts[k] - c.starts[first]) / FPS
            at = f"videos/observation.images.{camera}"
            row |= {f"{at}/chunk_index": 0, f"{at}/file_index": k // c.per_video}
            row |= {f"{at}/from_timestamp": begin, f"{at}/to_timestamp": begin + length / FPS}
        episodes.append(row)
    pq.write_table(pa.Table.from_pylist(episodes), root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    for number, first in enumerate(range(0, len(c.lengths), c.per_file)):
        last = min(first + c.per_file, len(c.lengths)) - 1
        rows = c.table(c.starts[first], stops[last])
        pq.write_table(rows, root / "data" / "chunk-000" / f"file-{number:03d}.parquet", row_group_size=5)
    for camera in (*c.video, *c.depth):
        for number, first in enumerate(range(0, len(c.lengths), c.per_video)):
            last = min(first + c.per_video, len(c.lengths)) - 1
            path = root / "videos" / f"observation.images.{camera}" / "chunk-000" / f"file-{number:03d}.mp4"
            rows = slice(c.starts[first], stops[last])
            if camera in c.depth:
                encode_depth(path, c.codes(camera)[rows], c.depth_codec, c.depth_info["video.pix_fmt"])
            else:
                encode(path, c.frames(camera)[rows], c.codec, c.options)
    return root


def write_v2(root: Path, c: Content, version: str = "v2.1") -> Path:
    """One data file and one video per camera and episode; v2.0 has statistics of all rows, and names motors."""
    (root / "meta").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    info = _info(
        c,
        version,
        data_path="data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    )
    if version == "v2.0":
        for key, f in info["features"].items():
            if f["dtype"] == "video":
                info["features"][key] = f | {"video_info": {"video.fps": float(FPS), "video.is_depth_map": False}}
            elif len(f["shape"]) == 1 and f["shape"][0] > 1:
                info["features"][key] = f | {"names": {"motors": [f"motor_{i}" for i in range(f["shape"][0])]}}
        info |= {"robot_type": "unknown", "total_videos": len(c.lengths) * len(c.video), "total_chunks": 1}
        (root / "meta" / "stats.json").write_text(json.dumps({"action": {"min": [0.0, 0.0], "max": [1.0, 1.0]}}))
    (root / "meta" / "info.json").write_text(json.dumps(info))
    tasks = [json.dumps({"task_index": k, "task": t}) for k, t in enumerate(c.tasks)]
    (root / "meta" / "tasks.jsonl").write_text("\n".join(tasks) + "\n")
    lines = [
        json.dumps({"episode_index": k, "tasks": [c.tasks[k % len(c.tasks)]], "length": n})
        for k, n in enumerate(c.lengths)
    ]
    (root / "meta" / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    for k, (start, n) in enumerate(zip(c.starts, c.lengths, strict=True)):
        pq.write_table(c.table(start, start + n), root / "data" / "chunk-000" / f"episode_{k:06d}.parquet")
        for camera in c.video:
            path = root / "videos" / "chunk-000" / f"observation.images.{camera}" / f"episode_{k:06d}.mp4"
            encode(path, c.frames(camera)[start : start + n], c.codec, c.options)
    return root
