"""Episodes of the second generator as a dataset of LeRobot, v3.0: vectors in one Parquet file, cameras as MP4 videos.

::

    meta/info.json  stats.json  tasks.parquet  episodes/chunk-000/file-000.parquet
    data/chunk-000/file-000.parquet                        all rows
    videos/observation.images.CAMERA/chunk-000/file-KKK.mp4   a file for each episode

States are divided as those of ALOHA are: ``observation.state`` has joints and the opening, ``observation.velocity`` the
velocities; angles are degrees, as those of LeRobot's arms. LeRobot's recorder has ``frame_index / fps`` for a time, so
stamps count whole periods here; what a stamp jumps by, it jumps by. H.264 has a key frame every second frame, as
LeRobot's encoder has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from generator import CAMERAS, JOINTS, RATE, Episode, Frames

FPS = int(RATE)
_CHUNK = "chunk-000/file-000.parquet"
_VECTORS = {
    "observation.state": [*(f"joint_{k}.pos" for k in range(JOINTS)), "gripper.pos"],
    "observation.velocity": [f"joint_{k}.vel" for k in range(JOINTS)],
    "action": [*(f"joint_{k}.vel" for k in range(JOINTS)), "gripper.pos"],
}
_SCALARS = {
    "next.reward": "float32",
    "next.done": "bool",
    "next.success": "bool",
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
Numbers = npt.NDArray[Any]


def key(camera: str) -> str:
    """Return LeRobot's name of a camera."""
    return f"observation.images.{camera}"


def write_lerobot(directory: Path, made: list[Episode]) -> Path:
    """Write a dataset, with its statistics."""
    tasks = list(dict.fromkeys(e.task for e in made))
    first = np.cumsum([0, *(len(e.action) for e in made)])
    rows = [_rows(e, k, int(first[k]), tasks) for k, e in enumerate(made)]
    for name in ("meta/episodes/chunk-000", "data/chunk-000", *(f"videos/{key(c)}/chunk-000" for c in CAMERAS)):
        (directory / name).mkdir(parents=True)
    columns = {n: np.concatenate([r[n] for r in rows]) for n in rows[0]}
    pq.write_table(pa.table({n: _column(c) for n, c in columns.items()}), directory / "data" / _CHUNK)
    for camera in CAMERAS:
        for k, e in enumerate(made):
            encode(directory / f"videos/{key(camera)}/chunk-000/file-{k:03}.mp4", e.cameras[camera])
    of_episodes = [_listed(e, k, int(first[k]), r) for (k, e), r in zip(enumerate(made), rows, strict=True)]
    pq.write_table(pa.Table.from_pylist(of_episodes), directory / "meta/episodes" / _CHUNK)
    _write_tasks(directory / "meta/tasks.parquet", tasks)
    frames = {key(c): np.concatenate([e.cameras[c][::8] for e in made]) for c in CAMERAS}
    stats = {n: statistics(c) for n, c in (columns | frames).items()}
    (directory / "meta/stats.json").write_text(json.dumps(stats))
    (directory / "meta/info.json").write_text(json.dumps(_info(made, tasks), indent=4))
    return directory


def _rows(e: Episode, k: int, first: int, tasks: list[str]) -> dict[str, Numbers]:
    n = len(e.action)
    periods = np.rint(np.diff(e.stamp) * RATE)
    command = np.concatenate([np.rad2deg(e.action[:, :JOINTS]), e.action[:, JOINTS:]], 1)
    return {
        "observation.state": np.concatenate([np.rad2deg(e.joints), e.opening], 1).astype(np.float32),
        "observation.velocity": np.rad2deg(e.velocities).astype(np.float32),
        "action": command.astype(np.float32),
        "next.reward": e.reward.astype(np.float32),
        "next.done": np.arange(n) == n - 1,
        "next.success": (np.arange(n) == n - 1) & e.success,
        "timestamp": (np.concatenate([[0], np.cumsum(periods)]) / FPS).astype(np.float32),
        "frame_index": np.arange(n),
        "episode_index": np.full(n, k),
        "index": np.arange(first, first + n),
        "task_index": np.full(n, tasks.index(e.task)),
    }


def _column(values: Numbers) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def encode(file: Path, frames: Frames) -> None:
    """Write frames [T, H, W, 3] as H.264."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "23", "g": "2", "threads": "1"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())


def statistics(values: Numbers) -> dict[str, Any]:
    """Return what LeRobot keeps of a feature, of finite values; of frames by channel, from 0 to 1."""
    if values.ndim == 4:
        x = values.reshape(-1, 3) / 255
        shape: tuple[int, ...] = (3, 1, 1)
    else:
        x = values.reshape(len(values), -1).astype(np.float64)
        shape = (x.shape[1],)
    x = np.where(np.isfinite(x), x, np.nan)
    found = {"min": np.nanmin(x, 0), "max": np.nanmax(x, 0), "mean": np.nanmean(x, 0), "std": np.nanstd(x, 0)}
    return {n: v.reshape(shape).tolist() for n, v in found.items()} | {"count": [len(values)]}


def _listed(e: Episode, k: int, first: int, rows: Mapping[str, Numbers]) -> dict[str, Any]:
    n = len(e.action)
    row: dict[str, Any] = {"episode_index": k, "tasks": [e.task], "length": n}
    row |= {"dataset_from_index": first, "dataset_to_index": first + n}
    row |= {"data/chunk_index": 0, "data/file_index": 0}
    row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
    for camera in CAMERAS:
        at = f"videos/{key(camera)}"
        row |= {f"{at}/chunk_index": 0, f"{at}/file_index": k}
        row |= {f"{at}/from_timestamp": 0.0, f"{at}/to_timestamp": n / FPS}
    frames = {key(c): f[::8] for c, f in e.cameras.items()}
    for name, values in {**rows, **frames}.items():
        row |= {f"stats/{name}/{s}": v for s, v in statistics(values).items()}
    return row


def _write_tasks(file: Path, tasks: Sequence[str]) -> None:
    """Write the texts as the index of a data frame, as pandas does."""
    index = "__index_level_0__"
    of_column = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    of_index = {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"}
    said = {"index_columns": [index], "column_indexes": [], "columns": [of_column, of_index], "pandas_version": "2.2.3"}
    table = pa.table({"task_index": np.arange(len(tasks)), index: list(tasks)})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(said)}), file)


def _info(made: list[Episode], tasks: Sequence[str]) -> dict[str, Any]:
    features: dict[str, Any] = {
        n: {"dtype": "float32", "shape": [len(names)], "names": names} for n, names in _VECTORS.items()
    }
    for camera, (height, width) in CAMERAS.items():
        about = {"video.fps": FPS, "video.height": height, "video.width": width, "video.channels": 3}
        about |= {"video.codec": "h264", "video.pix_fmt": "yuv420p", "video.is_depth_map": False, "has_audio": False}
        of_axes = ["height", "width", "channels"]
        features[key(camera)] = {"dtype": "video", "shape": [height, width, 3], "names": of_axes, "info": about}
    features |= {n: {"dtype": t, "shape": [1], "names": None} for n, t in _SCALARS.items()}
    return {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "total_episodes": len(made),
        "total_frames": sum(len(e.action) for e in made),
        "total_tasks": len(tasks),
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": FPS,
        "splits": {"train": f"0:{len(made)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
