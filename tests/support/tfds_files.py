"""TFRecord files and TFDS directories, written by hand: frames with struct, protocol buffers byte by byte."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from PIL import Image


def varint(n: int) -> bytes:
    n &= (1 << 64) - 1
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Any, *, packed: bool = True) -> bytes:
    """A tf.train.Feature: bytes or str, floats, or whole numbers."""
    values = np.ravel(values).tolist() if isinstance(values, np.ndarray) else list(values)
    if values and isinstance(values[0], bytes | str):
        texts = (v.encode() if isinstance(v, str) else v for v in values)
        return message(1, b"".join(message(1, v) for v in texts))
    if values and isinstance(values[0], float):
        inner = struct.pack(f"<{len(values)}f", *values)
        loose = b"".join(b"\x0d" + inner[i : i + 4] for i in range(0, len(inner), 4))
        return message(2, message(1, inner) if packed else loose)
    numbers = [varint(int(v)) for v in values]
    return message(3, message(1, b"".join(numbers)) if packed else b"".join(b"\x08" + n for n in numbers))


def example(features: Mapping[str, Any], *, packed: bool = True) -> bytes:
    """A tf.train.Example."""
    entries = (message(1, k.encode()) + message(2, feature(v, packed=packed)) for k, v in features.items())
    return message(1, b"".join(message(1, entry) for entry in entries))


def mask(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8 & 0xFFFFFFFF


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", mask(length)) + record + struct.pack("<I", mask(record))


def write_records(path: Path, records: Iterable[bytes], *, packed: bool = False) -> Path:
    content = b"".join(map(framed, records))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def image(values: np.ndarray, codec: str = "png") -> bytes:
    file = io.BytesIO()
    plain = values[..., 0] if values.shape[-1] == 1 else values
    Image.fromarray(plain).save(file, codec)
    return file.getvalue()


def decoded(data: bytes) -> np.ndarray:
    values = np.asarray(Image.open(io.BytesIO(data)))
    return values if values.ndim == 3 else values[..., None]


# -- features.json


class Node(dict[str, Any]):
    """A feature, to tell it from a group of them."""


def tensor(dtype: str, *shape: int, encoding: str = "none") -> Node:
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    return Node(tensor={"shape": dimensions, "dtype": dtype, "encoding": encoding})


def picture(*shape: int, dtype: str = "uint8", codec: str = "png") -> Node:
    return Node(image={"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encodingFormat": codec})


TEXT = Node(text={})
FLAGS = {f"is_{k}": tensor("bool") for k in ("first", "last", "terminal")}


def group(features: Mapping[str, Any]) -> Node:
    """A FeaturesDict; plain mappings inside are groups, too."""
    nested = {k: v if isinstance(v, Node) else group(v) for k, v in features.items()}
    return Node(featuresDict={"features": nested})


def sequence(inner: Node, length: int = -1) -> Node:
    return Node(sequence={"feature": inner, "length": str(length)})


def write_dataset(
    directory: Path,
    steps: Mapping[str, Any],
    splits: Mapping[str, Sequence[Sequence[bytes]]],
    *,
    metadata: Mapping[str, Any] | None = None,
    name: str = "toy",
) -> Path:
    """A TFDS directory; ``splits`` holds the records of each shard, ``steps`` the features of a step."""
    directory.mkdir(parents=True, exist_ok=True)
    top = {"steps": sequence(group(steps))} | ({"episode_metadata": group(metadata)} if metadata else {})
    (directory / "features.json").write_text(json.dumps(group(top)))
    info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": []}
    for split, shards in splits.items():
        info["splits"].append({"name": split, "shardLengths": [str(len(s)) for s in shards]})
        for i, records in enumerate(shards):
            write_records(directory / f"{name}-{split}.tfrecord-{i:05d}-of-{len(shards):05d}", records)
    (directory / "dataset_info.json").write_text(json.dumps(info))
    return directory


def write_desk(directory: Path) -> None:
    """What the pages of openx and rlu_atari speak of: a robot's episodes, and two files of a game."""
    rng = np.random.default_rng(0)
    frames = [image(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)) for _ in range(5)]
    steps = {"observation": {"image": picture(8, 8, 3), "state": tensor("float32", 2)}, "action": tensor("float32", 2)}
    features = {**steps, "reward": tensor("float32"), "language_instruction": TEXT, **FLAGS}
    record = example(
        {
            "steps/observation/image": frames,
            "steps/observation/state": rng.standard_normal(10),
            "steps/action": rng.standard_normal(10),
            "steps/reward": np.arange(5.0),
            "steps/language_instruction": ["pick up the cup"] * 5,
            "steps/is_first": [1, 0, 0, 0, 0],
            "steps/is_last": [0, 0, 0, 0, 1],
            "steps/is_terminal": [0, 0, 0, 0, 0],
            "episode_metadata/file_path": ["/data/0.npy"],
        }
    )
    splits = {"train": [[record] * 3], "val": [[record]]}
    write_dataset(directory / "my_robot/1.0.0", features, splits, metadata={"file_path": TEXT}, name="my_robot")
    gray = [image(np.full((84, 84, 1), 40 * i, np.uint8)) for i in range(5)]
    for k in range(2):
        lists = {
            "observations": gray,
            "actions": [1, 2, 3, 4, 0],
            "discounts": [1.0, 1.0, 1.0, 1.0, 0.0],
            "unclipped_rewards": [0.0, 4.0, 0.0, 1.0, 0.0],
            "clipped_rewards": [0.0, 1.0, 0.0, 1.0, 0.0],
            "checkpoint_idx": [k],
            "episode_idx": [k],
            "episode_return": [5.0],
            "clipped_episode_return": [2.0],
        }
        write_records(directory / f"Alien/run_1-{k:05d}-of-00002", [example(lists)], packed=True)
