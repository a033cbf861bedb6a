"""Archives that somebody has tampered with, family by family."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import image_archives
import lerobot_archives
import minari_archives
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tfds_files
from d4rl_files import flags, ramp
from d4rl_files import write as write_h5
from family_files import _d3rlpy, _robomimic


def d4rl(root: Path) -> tuple[Path, str]:
    columns = {"observations": ramp(20), "actions": ramp(20, 1), "rewards": np.zeros(20), "terminals": flags(20, 9, 19)}
    return write_h5(root / "a.hdf5", **columns, timeouts=flags(20)), "rewards"


def plain(root: Path) -> tuple[Path, str]:
    columns = {"obs": ramp(20), "action": ramp(20, 1), "reward": np.zeros(20), "dones": flags(20, 9, 19)}
    return write_h5(root / "a.h5", **columns), "reward"


def minari(root: Path) -> tuple[Path, str]:
    return minari_archives.by_hand(root / "m", [minari_archives.plain_episode(seed=k) for k in range(2)]), (
        "episode_0/rewards"
    )


def roboset(root: Path) -> tuple[Path, str]:
    with h5py.File(root / "a.h5", "w") as f:
        for k in range(2):
            trial = {"observations": ramp(6, 3), "actions": ramp(6, 2), "rewards": np.zeros(6), "done": flags(6, 5)}
            for key, value in (trial | {"time": np.arange(6.0), "env_infos/obs_dict/door": ramp(6, 3)}).items():
                f[f"Trial{k}/{key}"] = value
    return root / "a.h5", "Trial0/rewards"


def robomimic(root: Path) -> tuple[Path, str]:
    _robomimic(root / "low_dim.hdf5")
    return root / "low_dim.hdf5", "data/demo_0/rewards"


def d3rlpy(root: Path) -> tuple[Path, str]:
    _d3rlpy(root / "a.h5")
    return root / "a.h5", "rewards"


def vd4rl(root: Path) -> tuple[Path, str]:
    image_archives.write_vd4rl_shards(root / "84px", [6, 6], [7])
    return root / "84px", "reward"


HDF5 = (d4rl, plain, minari, roboset, robomimic, d3rlpy, vd4rl)


def _outside(root: Path, like: h5py.Dataset) -> Path:
    with h5py.File(root / "secret.h5", "w") as f:
        f["secret"] = like[()]
    return root / "secret.h5"


def external_link(root: Path, f: h5py.File, key: str) -> None:
    other = _outside(root, f[key])
    del f[key]
    f[key] = h5py.ExternalLink(str(other), "secret")


def soft_link_to_an_external_one(root: Path, f: h5py.File, key: str) -> None:
    external_link(root, f, key)
    f.move(key, f"{key}_elsewhere")
    f[key] = h5py.SoftLink(f"/{key}_elsewhere")


def external_storage(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    (root / "secret.raw").write_bytes(bytes(4096))
    del f[key]
    f.create_dataset(key, shape, dtype, external=[(str(root / "secret.raw"), 0, 4096)])


def virtual_of_another_file(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(str(_outside(root, f[key])), "secret", shape)
    del f[key]
    f.create_virtual_dataset(key, layout)


def virtual_of_absurd_shape(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    layout = h5py.VirtualLayout((1 << 40, *shape[1:]), dtype)
    layout[: shape[0]] = h5py.VirtualSource(".", f"{key}_real", shape)
    f.move(key, f"{key}_real")
    f.create_virtual_dataset(key, layout, fillvalue=0)


def absurd_shape(root: Path, f: h5py.File, key: str) -> None:
    shape, dtype = f[key].shape, f[key].dtype
    del f[key]
    f.create_dataset(key, (1 << 40, *shape[1:]), dtype, chunks=(1024, *shape[1:]), compression="gzip")


def absurd_shape_scale_offset(root: Path, f: h5py.File, key: str) -> None:
    shape = f[key].shape
    del f[key]
    chunks = (1024, *shape[1:])
    f.create_dataset(key, (1 << 40, *shape[1:]), "i4", chunks=chunks, scaleoffset=0)[: shape[0]] = 0


def endless_circle(root: Path, f: h5py.File, key: str) -> None:
    f[f"{key}_around"] = h5py.SoftLink("/")


TRICKS = (
    external_link,
    soft_link_to_an_external_one,
    external_storage,
    virtual_of_another_file,
    virtual_of_absurd_shape,
    absurd_shape,
    absurd_shape_scale_offset,
)


def file_of(path: Path) -> Path:
    return path if path.is_file() else min((*path.rglob("*.hdf5"), *path.rglob("*.h5")))


def _link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("1.npz")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


MEMBERS = {
    "absolute": "/tmp/1.npz",
    "climbs": "a/../../1.npz",
    "symbolic link": _link(tarfile.SYMTYPE),
    "hard link": _link(tarfile.LNKTYPE),
    "character device": _link(tarfile.CHRTYPE),
    "block device": _link(tarfile.BLKTYPE),
    "named pipe": _link(tarfile.FIFOTYPE),
}


def npz_of(family: str, root: Path) -> tuple[Path, Path]:
    """An archive that holds npz, and where to put another."""
    if family == "vd4rl":
        image_archives.write_vd4rl(root / "64px", [6, 6])
        return root / "64px", min((root / "64px").iterdir())
    rows = {"observations": ramp(20), "actions": ramp(20, 1), "terminals": flags(20, 9, 19)}
    name = {"ogbench": "pointmaze-medium-navigate-v0.npz", "plain": "rollouts.npz"}[family]
    rows |= {"qpos": ramp(20), "qvel": ramp(20)} if family == "ogbench" else {"rewards": np.zeros(20)}
    np.savez_compressed(root / name, **rows)
    return root / name, root / name


def repacked(path: Path, change: Callable[[str, bytes], tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(*change(info.filename, old.read(info)))
    return file.getvalue()


def _npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


BOMB = _npy(np.zeros(8 << 20, "u1"))
PICKLED = _npy(np.array([{"a": 1}] * 20, object))
ABSURD = _npy(np.zeros(20, "f4")).replace(b"(20,), }            ", b"(4398046511104,), }", 1)
NPZ: dict[str, Callable[[str, bytes], tuple[str, bytes]]] = {
    "absolute": lambda name, data: (f"/{name}" if name.startswith("action") else name, data),
    "climbs": lambda name, data: (f"../{name}" if name.startswith("action") else name, data),
    "bomb": lambda name, data: (name, BOMB),
    "pickled": lambda name, data: (name, PICKLED if name.startswith("action") else data),
    "header": lambda name, data: (name, ABSURD if name.startswith("action") else data),
}


def openx(path: Path, images: list[bytes], state: bytes | None = None) -> Path:
    steps: dict[str, Any] = {
        "observation": {"image": tfds_files.picture(4, 5, 3), "state": tfds_files.tensor("float32", 2)},
        "action": tfds_files.tensor("float32", 1),
        **tfds_files.FLAGS,
    }
    lists: dict[str, Any] = {
        "steps/observation/image": images,
        "steps/observation/state": np.zeros((3, 2), np.float32),
        "steps/action": np.zeros((3, 1), np.float32),
        "steps/is_first": np.arange(3) == 0,
        "steps/is_last": np.arange(3) == 2,
        "steps/is_terminal": np.arange(3) == 2,
    }
    if state is not None:
        steps["observation"]["state"] = tfds_files.tensor("uint8", 1 << 20, encoding="zlib")
        lists["steps/observation/state"] = [state] * 3
    return tfds_files.write_dataset(path, steps, {"train": [[tfds_files.example(lists)]]})


def png(height: int, width: int) -> bytes:
    content = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = b"IEND"
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (content, end)
    )


def jpeg(height: int, width: int) -> bytes:
    whole = tfds_files.image(np.zeros((16, 16, 3), np.uint8), "jpeg")
    at = whole.index(b"\xff\xc0") + 5
    return whole[:at] + struct.pack(">HH", height, width) + whole[at + 4 :]


IMAGES = {"png": png(60_000, 60_000), "jpeg": jpeg(65_000, 65_000)}


def with_images(file: Path, images: list[bytes]) -> None:
    table = pq.read_table(file)
    at = table.column_names.index("observation.images.top")
    rows = [{"bytes": images[k % len(images)], "path": "x"} for k in range(len(table))]
    pq.write_table(table.set_column(at, table.field(at), pa.array(rows, table.field(at).type)), file)


def minari_parquet(path: Path, image: bytes) -> None:
    (path / "data/0").mkdir(parents=True)
    columns = {
        "observations": pa.array([image] * 3, pa.binary()),
        "actions": pa.array([0, 1, 0]),
        **{k: pa.array(np.zeros(3, bool)) for k in ("terminations", "truncations")},
        "rewards": pa.array(np.zeros(3)),
    }
    pq.write_table(pa.table(columns), path / "data/0/part-0.parquet")
    (path / "data/0/metadata.json").write_text(json.dumps({"id": 0, "total_steps": 2}))
    about = {"total_episodes": 1, "total_steps": 2, "data_format": "parquet", "minari_version": "0.5.4"}
    (path / "data/metadata.json").write_text(json.dumps(about))


def _lerobot_json(root: Path, text: bytes) -> Path:
    made = lerobot_archives.write_v2(root / "a", lerobot_archives.Content(lengths=(3,)))
    (made / "meta/info.json").write_bytes(text)
    return made


def _lerobot_lines(root: Path, text: bytes) -> Path:
    made = lerobot_archives.write_v2(root / "a", lerobot_archives.Content(lengths=(3,)))
    (made / "meta/episodes.jsonl").write_bytes(text)
    return made


def _openx_json(name: str) -> Callable[[Path, bytes], Path]:
    def make(root: Path, text: bytes) -> Path:
        made = openx(root / "a", [tfds_files.image(np.zeros((4, 5, 3), np.uint8))] * 3)
        (made / name).write_bytes(text)
        return made

    return make


def _minari_json(root: Path, text: bytes) -> Path:
    path, _ = minari(root)
    (path / "metadata.json").write_bytes(text)
    return path


def _minari_space(root: Path, text: bytes) -> Path:
    about = {"observation_space": text.decode()}
    return minari_archives.by_hand(root / "m", [minari_archives.plain_episode()], about)


JSON = {
    "info.json": ("lerobot", _lerobot_json),
    "episodes.jsonl": ("lerobot", _lerobot_lines),
    "features.json": ("openx", _openx_json("features.json")),
    "dataset_info.json": ("openx", _openx_json("dataset_info.json")),
    "metadata.json": ("minari", _minari_json),
    "a space in metadata.json": ("minari", _minari_space),
}
