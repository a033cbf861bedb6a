"""Conversion of archives of images: against reading or decoding them with the library at hand and writing plain files.

    python benchmarks/images.py [FAMILY...]        default: all; archives are made below .bench-data/images

Two baselines, each of one loop as anybody would write it: *as published* reads every column and image with h5py,
NumPy, pyarrow or our reader of TFRecords and writes the bytes to one file per column, with fsync; *decoded* decodes
every image with Pillow (videos with PyAV) besides, as ``--frames raw`` does. Ours lays out rows, checks, hashes and
makes statistics, too. Runs alternate, in processes of their own, with the archive in the page cache; medians count.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import records
import video
from checkouts import here
from results import DATA, Results, memory

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
TAR = 2 << 30  # bytes of the members of the tar.xz
HOME = DATA / "images"

Rng = np.random.Generator


@dataclass(frozen=True)
class Family:
    """An archive to be made, and how its columns are read: ``read(path, decode)`` gives (column, rows) by blocks."""

    reader: str
    make: Callable[[Path, Rng], None]
    read: Callable[[Path, bool], Iterator[tuple[str, Any]]]
    encoded: bool = True


def smooth(rng: Rng, n: int, *shape: int) -> np.ndarray:
    """Images as a camera sees them: soft shapes that move, and some noise. uint8 [n, *shape]."""
    base = rng.integers(0, 256, (shape[0] // 8 + 1, shape[1] // 8 + 1, *shape[2:]), np.uint8)
    large = base.repeat(8, 0).repeat(8, 1)[: shape[0], : shape[1]].astype(np.int16)
    moved = np.stack([np.roll(large, 3 * k, 1) for k in range(min(n, 64))])
    noisy = (moved + rng.integers(-3, 4, moved.shape, np.int16)).clip(0, 255).astype(np.uint8)
    return np.concatenate([noisy] * -(-n // len(noisy)))[:n]


# -- TFRecords: Open X-Embodiment, RL Unplugged; LeRobot


def _openx(codec: str, side: int, episodes: int) -> Callable[[Path, Rng], None]:
    def make(path: Path, rng: Rng) -> None:
        images = records.pictures(rng, codec, side, side, 3)
        path.mkdir(parents=True)
        with (path / "toy-train.tfrecord-00000-of-00001").open("wb") as file:
            for _ in range(episodes):
                file.write(records.framed(records.example(records.robot(rng, images))))
        (path / "features.json").write_text(json.dumps(records.features(codec, side)))

    return make


def _rlu_atari(path: Path, rng: Rng) -> None:
    images = records.pictures(rng, "png", 84, 84)
    path.mkdir(parents=True)
    content = b"".join(records.framed(records.example(records.atari(rng, images))) for _ in range(36))
    (path / "run_1-00000-of-00001").write_bytes(gzip.compress(content, 6))


def _read_records(path: Path, decode: bool) -> Iterator[tuple[str, Any]]:
    from rlds_cli.archives.formats import tfrecord

    for file in sorted(path.glob("*-of-*")):
        for record in tfrecord.records(file):
            for name, feature in tfrecord.parse(record.data).items():
                if feature.kind == "bytes":
                    rows = feature.strings()
                    for row in rows:
                        yield name, pixels(row) if decode and row[:2] in (b"\xff\xd8", b"\x89P") else row
                else:
                    yield name, feature.floats() if feature.kind == "float" else feature.integers()


def pixels(image: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(image)))


def _lerobot_images(path: Path, rng: Rng) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = records.pictures(rng, "png", 96, 96, 3)
    n, length = 12_000, 200
    picture = {"dtype": "image", "shape": [96, 96, 3]}
    vector = {"dtype": "float32", "shape": [8]}
    features = {"observation.image": picture, "observation.state": vector, "action": vector}
    features |= {k: {"dtype": d, "shape": [1]} for k, d in (("episode_index", "int64"), ("timestamp", "float32"))}
    (path / "meta").mkdir(parents=True)
    info = {"codebase_version": "v2.1", "fps": 10, "features": features, "total_episodes": n // length}
    (path / "meta/info.json").write_text(json.dumps(info))
    lines = [json.dumps({"episode_index": k, "length": length}) for k in range(n // length)]
    (path / "meta/episodes.jsonl").write_text("\n".join(lines))
    (path / "data/chunk-000").mkdir(parents=True)
    for k in range(n // length):
        chosen = [{"bytes": images[i], "path": "x.png"} for i in rng.integers(0, len(images), length)]
        numbers = [pa.array(rng.standard_normal(8 * length).astype(np.float32)) for _ in range(2)]
        columns = {
            "observation.image": pa.array(chosen, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "observation.state": pa.FixedSizeListArray.from_arrays(numbers[0], 8),
            "action": pa.FixedSizeListArray.from_arrays(numbers[1], 8),
            "episode_index": [k] * length,
            "timestamp": (np.arange(length) / 10).astype(np.float32),
        }
        pq.write_table(pa.table(columns), path / f"data/chunk-000/episode_{k:06d}.parquet")


def _lerobot_video(path: Path, rng: Rng) -> None:
    """One camera in AV1, a key frame every second frame, as LeRobot encodes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    camera, episodes, length = "observation.images.top", 5, 200
    vector = {"dtype": "float32", "shape": [8]}
    features: dict[str, Any] = {"observation.state": vector, "action": vector}
    features |= {camera: {"dtype": "video", "shape": [240, 320, 3]}}
    features |= {k: {"dtype": d, "shape": [1]} for k, d in (("episode_index", "int64"), ("timestamp", "float32"))}
    for below in ("meta", "data/chunk-000", f"videos/chunk-000/{camera}"):
        (path / below).mkdir(parents=True)
    info = {"codebase_version": "v2.1", "fps": 30, "features": features, "total_episodes": episodes}
    (path / "meta/info.json").write_text(json.dumps(info))
    lines = [json.dumps({"episode_index": k, "length": length}) for k in range(episodes)]
    (path / "meta/episodes.jsonl").write_text("\n".join(lines))
    for k in range(episodes):
        numbers = [pa.array(rng.standard_normal(8 * length).astype(np.float32)) for _ in range(2)]
        columns = {
            "observation.state": pa.FixedSizeListArray.from_arrays(numbers[0], 8),
            "action": pa.FixedSizeListArray.from_arrays(numbers[1], 8),
            "episode_index": [k] * length,
            "timestamp": (np.arange(length) / 30).astype(np.float32),
        }
        pq.write_table(pa.table(columns), path / f"data/chunk-000/episode_{k:06d}.parquet")
        options = {"g": "2", "crf": "30", "preset": "12"}
        file = path / f"videos/chunk-000/{camera}/episode_{k:06d}.mp4"
        video.write(file, k, length, "libsvtav1", (240, 320), options)


# -- files of a lab: a table for each episode, and folders of images beside it


def _lab(path: Path, rng: Rng) -> None:
    """400 episodes of 3 cameras of 30 frames each."""
    images = records.pictures(rng, "jpeg", 240, 320, 3)
    for k in range(400):
        for camera in ("left", "right", "wrist"):
            folder = path / f"ep_{k}" / camera
            folder.mkdir(parents=True)
            for t, i in enumerate(rng.integers(0, len(images), 30)):
                (folder / f"{t:04d}.jpg").write_bytes(images[i])
        rows = rng.standard_normal((30, 14))
        lines = [",".join([*(f"q{j}" for j in range(7)), *(f"action_{j}" for j in range(7))])]
        lines += [",".join(f"{x:.6f}" for x in row) for row in rows]
        (path / f"ep_{k}" / "log.csv").write_text("\n".join(lines))


def _read_lab(path: Path, decode: bool) -> Iterator[tuple[str, Any]]:
    for table in sorted(path.rglob("*.csv")):
        yield "log", np.loadtxt(table, delimiter=",", skiprows=1)
    for file in sorted(path.rglob("*.jpg")):
        data = file.read_bytes()
        yield file.parent.name, pixels(data) if decode else data


def _read_lerobot(path: Path, decode: bool) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet as pq

    for file in sorted(path.rglob("*.parquet")):
        table = pq.read_table(file)
        for name in table.column_names:
            column = table[name].combine_chunks()
            if hasattr(column, "field"):
                for image in column.field("bytes"):
                    yield name, pixels(image.as_py()) if decode else image.as_buffer()
            else:
                yield name, (column.flatten() if hasattr(column.type, "value_type") else column).to_numpy()
    for file in sorted(path.rglob("*.mp4")):
        yield from (("video", x) for x in (frames(file) if decode else [file.read_bytes()]))


def frames(file: Path) -> Iterator[np.ndarray]:
    import av

    with av.open(str(file)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


# -- published raw: V-D4RL, the DQN replay logs, robomimic


def _vd4rl(path: Path, rng: Rng) -> None:
    path.mkdir(parents=True)
    for k in range(24):
        n = 501
        columns = {
            "image": smooth(rng, n, 64, 64, 3),
            "action": rng.uniform(-1, 1, (n, 6)).astype("f4"),
            "reward": rng.random(n).astype("f4"),
            "discount": np.ones(n, "f4"),
            **{f"is_{w}": np.arange(n) == at for w, at in (("first", 0), ("last", n - 1), ("terminal", n))},
        }
        np.savez_compressed(path / f"2022{k:04d}T000000-{k:032x}-{n}.npz", **columns)


def _read_npz(path: Path, decode: bool) -> Iterator[tuple[str, Any]]:
    for file in sorted(path.iterdir()):
        with np.load(file) as f:
            yield from ((name, f[name]) for name in f.files)


def _vd4rl_84(path: Path, rng: Rng) -> None:
    path.mkdir(parents=True)
    for k in range(4):
        n = 1002
        with h5py.File(path / f"{k}.hdf5", "w") as f:
            f.create_dataset("observation", data=smooth(rng, n, 84, 84, 3).transpose(0, 3, 1, 2), compression="gzip")
            f.create_dataset("action", data=rng.uniform(-1, 1, (n, 6)).astype("f4"), compression="gzip")
            f["reward"], f["discount"] = rng.random(n).astype("f4"), np.ones(n, "f4")
            f["step_type"] = np.tile(np.r_[0.0, np.ones(499), 2.0], 2)


def _robomimic(path: Path, rng: Rng) -> None:
    path.mkdir(parents=True)
    with h5py.File(path / "image.hdf5", "w") as f:
        f.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Lift", "env_type": 1, "env_kwargs": {}})
        for k in range(60):
            images, n = smooth(rng, 101, 84, 84, 3), 100
            for group, rows in (("obs", slice(0, -1)), ("next_obs", slice(1, None))):
                f[f"data/demo_{k}/{group}/agentview_image"] = images[rows]
                f[f"data/demo_{k}/{group}/robot0_eef_pos"] = np.zeros((n, 3))
            f[f"data/demo_{k}/actions"], f[f"data/demo_{k}/rewards"] = rng.uniform(-1, 1, (n, 7)), np.zeros(n)
            f[f"data/demo_{k}/dones"] = np.arange(n) == n - 1


def _read_hdf5(path: Path, decode: bool) -> Iterator[tuple[str, Any]]:
    for file in sorted(path.iterdir()):
        with h5py.File(file) as f:
            found: list[h5py.Dataset] = []
            f.visititems(lambda _, d, found=found: found.append(d) if isinstance(d, h5py.Dataset) else None)
            yield from ((d.name.rpartition("/")[2], d[()]) for d in found if "next_obs" not in d.name)


def _atari_dqn(path: Path, rng: Rng) -> None:
    path.mkdir(parents=True)
    capacity = 10_000
    columns = {
        "observation": smooth(rng, capacity, 84, 84),
        "action": rng.integers(0, 18, capacity, "i4"),
        "reward": rng.random(capacity).astype("f4"),
        "terminal": (np.arange(capacity) % 500 == 499).astype("u1"),
    }
    for k in range(2):
        position = (k + 1) * (capacity - 1) + k
        others = {"add_count": np.array(position), "invalid_range": (np.arange(5) + position - 1) % capacity}
        for name, values in {**{f"$store$_{n}": v for n, v in columns.items()}, **others}.items():
            with gzip.open(path / f"{name}_ckpt.{k}.gz", "wb", 6) as f:
                np.save(f, values)


def _read_gzip(path: Path, decode: bool) -> Iterator[tuple[str, Any]]:
    for file in sorted(path.iterdir()):
        with gzip.open(file) as f:
            yield file.name.split("_ckpt")[0], np.load(f)


LIBRARIES = {
    "lab, JPEG": Family("plain", _lab, _read_lab),
    "lerobot, PNG": Family("lerobot", _lerobot_images, _read_lerobot),
    "lerobot, video": Family("lerobot", _lerobot_video, _read_lerobot),
    "openx, JPEG": Family("openx", _openx("jpeg", 256, 16), _read_records),
    "openx, PNG": Family("openx", _openx("png", 128, 40), _read_records),
    "rlu_atari, PNG": Family("rlu_atari", _rlu_atari, _read_records),
    "vd4rl, npz": Family("vd4rl", _vd4rl, _read_npz, encoded=False),
    "vd4rl, HDF5": Family("vd4rl", _vd4rl_84, _read_hdf5, encoded=False),
    "atari_dqn": Family("atari_dqn", _atari_dqn, _read_gzip, encoded=False),
    "robomimic": Family("robomimic", _robomimic, _read_hdf5, encoded=False),
}


# -- what is timed: run in a process of its own


def baseline(family: Family, path: Path, out: Path, decode: bool) -> None:
    out.mkdir(parents=True)
    files: dict[str, BinaryIO] = {}
    for name, rows in family.read(path, decode):
        if name not in files:
            files[name] = (out / name.replace("/", "_")).open("wb")
        files[name].write(np.ascontiguousarray(rows).data if isinstance(rows, np.ndarray) else rows)
    for file in files.values():
        file.flush()
        os.fsync(file.fileno())
        file.close()


def ours(family: Family, path: Path, out: Path, decode: bool) -> None:
    from rlds_cli.archives import Archive
    from rlds_cli.base import ids
    from rlds_cli.base.progress import silent
    from rlds_cli.homes import Home
    from rlds_cli.make.convert.archive import Conversion, convert

    files = tuple(sorted(p for p in path.rglob("*") if p.is_file()))
    how = {"frames": "raw"} if decode and family.encoded else {}
    sources = tuple({"file": file.relative_to(path).as_posix(), "size": file.stat().st_size} for file in files)
    work = Conversion(ids.parse("local/x"), family.reader, Archive(path, files), sources=sources, **how)
    convert(work, Home(out), progress=silent)


def timed(way: str, name: str, path: Path, decode: bool) -> tuple[float, float]:
    command = [sys.executable, __file__, "--run", way, name, str(path), str(int(decode))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, cpu, *_ = map(float, done.stdout.split())
    return wall, cpu


def _import(family: Family, path: Path) -> None:
    """What both ways need is loaded before the clock starts."""
    from PIL import Image

    from rlds_cli.archives import reader

    used = ("make.convert.archive", "store.finishing", "store.frames", "store.videos")
    for name in ("av", "pyarrow.parquet", *(f"rlds_cli.{n}" for n in used)):
        import_module(name)
    Image.preinit()
    reader(family.reader).recognise(sorted(p for p in path.rglob("*") if p.is_file()))


def run(way: str, name: str, path: Path, decode: bool) -> None:
    """Print seconds on the wall and of the processor, and the most anonymous memory above the imports in MiB."""
    family, out = LIBRARIES.get(name) or Family("gen_dgrl", _vd4rl, _read_npz, encoded=False), HOME / f"out-{way}"
    work = {"ours": ours, "baseline": baseline}[way]
    _import(family, path)
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    before, most, done = memory("RssAnon"), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            most[0] = max(most[0], memory("RssAnon"))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    wall, cpu = time.perf_counter(), time.process_time()
    with here():
        work(family, path, out, decode)
    print(time.perf_counter() - wall, time.process_time() - cpu, most[0] - before)
    done.set()
    shutil.rmtree(out, ignore_errors=True)


# -- a large tar.xz


def tarball(data: Path) -> Path:
    """Episodes of Procgen, ``TAR`` bytes of them: one xz stream of some, as often as it takes."""
    path = data / "large.tar.xz"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    rng, file = np.random.default_rng(2), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for k in range(8):
            n = 1000
            columns = {
                "observations": smooth(rng, n + 1, 64, 64, 3).transpose(0, 3, 1, 2),
                "actions": rng.integers(0, 15, (n, 1)),
                "rewards": np.zeros((n, 1), "f4"),
                "dones": (np.arange(n) == n - 1).astype("f4"),
            }
            member = io.BytesIO()
            np.savez(member, **columns)
            info = tarfile.TarInfo(f"bigfish/20220101T000000_{k}_{n}_{k}_0.00.npz")
            info.size = member.tell()
            tar.addfile(info, io.BytesIO(member.getvalue()))
        size = tar.offset
    packed, end = lzma.compress(file.getvalue()[:size], preset=6), lzma.compress(bytes(1024))
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as f:
        for _ in range(-(-TAR // size)):
            f.write(packed)
        f.write(end)
    unfinished.rename(path)
    return path


def main(names: list[str]) -> None:
    results = Results("images")
    for name in names or [*LIBRARIES, "tar.xz"]:
        if name == "tar.xz":
            memory_of_tar(results)
            continue
        family, path = LIBRARIES[name], HOME / name.replace(", ", "-")
        if not path.exists():
            unfinished = path.with_name(f"{path.name}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            family.make(unfinished, np.random.default_rng(0))
            unfinished.rename(path)
        for decode in (False, True) if family.encoded else (False,):
            taken: dict[str, list[tuple[float, float]]] = {"ours": [], "baseline": []}
            for _ in range(ROUNDS):
                for way, found in taken.items():
                    found.append(timed(way, name, path, decode))
            ours_s, base_s = (np.median(taken[way], axis=0) for way in taken)
            what = f"{name}: {'--frames raw' if decode else 'as published'}"
            note = f"{ours_s[0]:.2f} and {base_s[0]:.2f} s; at least 0.7 wanted"
            ratio = statistics.median(b[0] / o[0] for o, b in zip(taken["ours"], taken["baseline"], strict=True))
            results.add(f"{what}, rate / baseline's rate", ratio, "x", note)
            results.add(f"{what}, the same in CPU time", base_s[1] / ours_s[1], "x")
    results.write()


def memory_of_tar(results: Results) -> None:
    path = tarball(HOME / "tar")
    command = [sys.executable, __file__, "--run", "ours", "tar.xz", str(path.parent), "0"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, _, most = map(float, done.stdout.split())
    note = f"{TAR >> 20:,} MiB of episodes in {path.stat().st_size >> 20:,} MiB, one process"
    results.add("tar.xz: conversion", (TAR >> 20) / wall, "MiB/s", note)
    results.add("tar.xz: peak anonymous memory without imports", most, "MiB", f"less than {records.MEMORY} wanted")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5] == "1")
    else:
        main(sys.argv[1:])
