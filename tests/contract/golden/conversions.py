"""Datasets converted from every sample archive, and from archives that the tests' makers write."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import family_files
import image_archives
import lerobot_archives
import numpy as np
import own_files
import tfds_files
from conftest import write_d4rl
from PIL import Image

import rlds_cli
from golden import DATA, digest
from rlds_cli.make.importing import import_files

GENUINE = (
    "d3rlpy/pendulum_random_v1.1.0.h5",
    "d4rl/hopper_random_layout-v2.hdf5",
    "d4rl/kitchen_layout-v0.hdf5",
    "dopamine/Breakout/1/replay_logs",
    "lerobot/image_v3",
    "lerobot/state_only_v3",
    "lerobot/video_v3",
    *(f"minari/breakout/random_{form}-v0" for form in ("arrow", "hdf5", "parquet")),
    *(f"minari/hopper/random_{form}-v0" for form in ("arrow", "hdf5", "parquet")),
    *(f"minari/pointmaze/umaze_{form}-v0" for form in ("arrow", "hdf5", "parquet")),
    *(f"minari/taxi/random_{form}-v0" for form in ("arrow", "hdf5", "parquet")),
    "ogbench/pointmaze-medium-navigate-v0.npz",
    "ogbench/visual-cube-single-play-v0-val.npz",
    "openx/bridge_dataset/1.0.0",
    "robomimic/low_dim_layout.hdf5",
    "roboset/door_paths.h5",
    "vd4rl/main/walker_walk/random/64px",
    "vd4rl/main/walker_walk/random/84px",
)
# The same archive, imported in other ways.
OTHERWISE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("d4rl/hopper_random_layout-v2.hdf5", {"episodes_by": "jumps"}),
    ("d4rl/kitchen_layout-v0.hdf5", {"storage": "zarr"}),
    ("dopamine/Breakout/1/replay_logs", {"frames": "42x42"}),
    ("lerobot/image_v3", {"frames": "raw"}),
    ("openx/bridge_dataset/1.0.0", {"last_step": "observation"}),
)
SAMPLES = ("sample/pendulum-d4rl", "sample/cartpole-minari", "sample/mountaincar-robohive")


# At least one archive of every reader; `make test-all` converts the others, too.
_QUICK = re.compile(
    r"""sample/|d3rlpy/|d4rl/kitchen.*store|dopamine/[^ ]*$|lerobot/video_v3|ogbench/.*-val|openx/[^ ]*$|robomimic/
    |minari/(breakout/.*parquet|pointmaze/.*arrow)|roboset/|LeRobot\ v2\.1|RL\ Unplugged|V-D4RL\ shards|Procgen
    |desk\ adult|flat\ \.npz$|two\ files|TorchRL\ (h5_wrapped|interleaved.*)$""",
    re.X,
)


def collect(directory: Path, *, quick: bool = False) -> dict[str, Any]:
    """Of every archive: what it was taken for, the fingerprint, and the digest of every field."""
    found = {ref: _of(rlds_cli.download(ref, jobs=0)) for ref in SAMPLES}
    genuine: list[tuple[str, Path, dict[str, Any]]] = [(name, DATA / name, {}) for name in GENUINE]
    for name, how in OTHERWISE:
        genuine.append((f"{name} {' '.join(f'{k}={v}' for k, v in how.items())}", DATA / name, how))
    for name, path, how in chain(genuine, _written(directory / "made")):
        if quick and not _QUICK.match(name):
            continue
        encoded = name != "LeRobot v2 with videos"  # what the encoder writes is its own affair
        found[name] = _of(import_files(path, "local/x", force=True, jobs=0, **how), encoded)
    return found


def _of(ds: rlds_cli.Dataset, encoded: bool = True) -> dict[str, Any]:
    m = ds.manifest
    pinned = {f.name: encoded or f.kind != "frames" for f in m.fields}
    columns = {n: getattr(m.counts, n) for n in ("rows", "episodes", "steps", "transitions", "final_observations")}
    return {
        "fingerprint": ds.fingerprint if all(pinned.values()) else None,
        "reader": f"{m.reader} {m.reader_version}",
        "episodes_by": m.episodes_by,
        "counts": columns,
        "fields": {
            f.name: f"{f.dtype}{list(f.shape)} {f.placement} {f.kind} {f.digest[:12] if pinned[f.name] else ''}"
            for f in m.fields
        },
        "notes": {n["code"]: n["count"] for n in m.notes},
        # What names an episode is a hash of all fields.
        "episode columns": {
            name: digest(_plain(ds.episodes[name]))
            for name in sorted(ds.episodes)
            if name != "id" or all(pinned.values())
        },
    }


def _plain(column: Any) -> Any:
    return column if isinstance(column, np.ndarray) else list(column)


def _written(directory: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """(name, path, arguments) of archives that are written here."""
    directory.mkdir()
    write_d4rl(directory / "walk-v2.hdf5", [5, 3, 8, 1])
    yield "D4RL with next observations", directory / "walk-v2.hdf5", {}
    write_d4rl(directory / "walk-v0.hdf5", [5, 3, 8, 1], next_observations=False)
    yield "D4RL without next observations", directory / "walk-v0.hdf5", {}
    yield from _desk(directory / "desk")
    yield from _lerobot(directory)
    yield from _tfrecords(directory)
    image_archives.write_vd4rl(directory / "64px", [5, 3, 9])
    yield "V-D4RL episodes", directory / "64px", {}
    image_archives.write_vd4rl_shards(directory / "84px", [5, 3, 9], [8])
    yield "V-D4RL shards", directory / "84px", {}
    image_archives.write_dgrl(directory / "bigfish.tar.xz", [5, 1, 30])
    yield "Procgen of gen_dgrl", directory / "bigfish.tar.xz", {}
    with tarfile.open(DATA / "torchrl/dumps.tar.xz") as tar:
        tar.extractall(directory / "torchrl", filter="data")
    for path in sorted((directory / "torchrl").iterdir()):
        if path.name not in ("interleaved_envs_part", "pytree_wrapped"):  # which are refused
            yield f"TorchRL {path.name}", path, {}
    yield from _flat(directory)


def _desk(directory: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    directory.mkdir()
    family_files.RNG = np.random.default_rng(0)  # which other tests may have drawn from
    family_files.write_desk(directory)
    for name in ("pointmaze-medium-navigate-v0.npz", "low_dim_v15.hdf5", "cartpole_v1.1.0.h5", "buffer.h5"):
        yield f"desk {name}", directory / name, {}
    yield "desk adult.arff", directory / "adult.arff", {}
    yield "desk rollouts.npz", directory / "rollouts.npz", {}
    yield "desk rollouts.parquet", directory / "rollouts.parquet", {}


def _lerobot(directory: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    content = lerobot_archives.Content()
    yield "LeRobot v3", lerobot_archives.write_v3(directory / "v3", content), {}
    yield "LeRobot v2.1", lerobot_archives.write_v2(directory / "v21", content), {}
    yield "LeRobot v2.0", lerobot_archives.write_v2(directory / "v20", content, "v2.0"), {}
    filmed = lerobot_archives.Content(video=("top",))
    yield "LeRobot v2 with videos", lerobot_archives.write_v2(directory / "filmed", filmed), {}


def _png(values: np.ndarray) -> bytes:
    """Without compression: every version of the library writes the same bytes."""
    from io import BytesIO

    file = BytesIO()
    Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values).save(file, "png", compress_level=0)
    return file.getvalue()


def _tfrecords(directory: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    rng = np.random.default_rng(0)
    steps = {"image": tfds_files.picture(8, 8, 3), "state": tfds_files.tensor("float32", 2)}
    features = {"observation": steps, "action": tfds_files.tensor("float32", 2)}
    features |= {"reward": tfds_files.tensor("float32"), "language_instruction": tfds_files.TEXT, **tfds_files.FLAGS}
    records = [
        tfds_files.example(
            {
                "steps/observation/image": [_png(x) for x in rng.integers(0, 256, (n, 8, 8, 3)).astype(np.uint8)],
                "steps/observation/state": rng.standard_normal(2 * n),
                "steps/action": rng.standard_normal(2 * n),
                "steps/reward": np.arange(float(n)),
                "steps/language_instruction": ["lift the cup"] * n,
                "steps/is_first": [1] + [0] * (n - 1),
                "steps/is_last": [0] * (n - 1) + [1],
                "steps/is_terminal": [0] * (n - 1) + [n % 2],
                "episode_metadata/file_path": [f"/data/{n}.npy"],
            }
        )
        for n in (5, 2, 4)
    ]
    splits = {"train": [records[:2], records[2:]], "val": [records[1:2]]}
    metadata = {"file_path": tfds_files.TEXT}
    root = tfds_files.write_dataset(directory / "toy/1.0.0", features, splits, metadata=metadata)
    yield "Open X", root, {}
    frames = [_png(np.full((84, 84, 1), 40 * i, np.uint8)) for i in range(5)]
    for k in range(2):
        lists = {
            "observations": frames,
            "actions": [1, 2, 3, 4, 0],
            "discounts": [1.0, 1.0, 1.0, 1.0, 0.0],
            "unclipped_rewards": [0.0, 4.0, 0.0, 1.0, 0.0],
            "clipped_rewards": [0.0, 1.0, 0.0, 1.0, 0.0],
            "checkpoint_idx": [k],
            "episode_idx": [k],
            "episode_return": [5.0],
            "clipped_episode_return": [2.0],
        }
        path = directory / f"Alien/run_1-{k:05d}-of-00002"
        tfds_files.write_records(path, [tfds_files.example(lists)], packed=True)
    yield "RL Unplugged Atari", directory / "Alien", {}


def _flat(directory: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    rng = np.random.default_rng(1)
    columns = {
        "obs": rng.standard_normal((12, 3)).round(3).tolist(),
        "action": rng.standard_normal((12, 2)).round(3).tolist(),
        "reward": np.arange(12.0),
        "terminated": np.isin(np.arange(12), (3, 11)),
        "truncated": np.isin(np.arange(12), (7,)),
        "number": np.repeat([0, 1, 2], 4),
    }
    scalars = {k: v for k, v in columns.items() if k not in ("obs", "action")}
    scalars |= {"obs": np.arange(12) / 4, "action": np.arange(12) % 3}
    for suffix in own_files.FORMATS:
        path = own_files.write(directory / f"flat{suffix}", scalars if suffix == ".csv" else columns)
        yield f"flat {suffix}", path, {}
        yield f"flat {suffix} episodes by number", path, {"episodes_by": "field:number"}
        fields = {"observation": "obs", "info/return": "reward"}
        yield f"flat {suffix} mapped", path, {"fields": fields}
    shards = directory / "shards"
    for k, suffix in enumerate((".npz", ".npz")):
        own_files.write(shards / f"part{k}{suffix}", columns)
    yield "two files of .npz, an episode each", shards, {"episodes_by": "file"}
    shutil.copyfile(directory / "flat.npz", directory / "own.npz")
    yield "a format that is named", directory / "own.npz", {"reader": "plain"}
