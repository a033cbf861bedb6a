"""Feed damaged input to every parser of our own: nothing but errors of rlds may come out.

Usage: python scripts/fuzz.py [TARGET...] [--minutes N] [--seed N]        default: all targets, five minutes together

Valid bytes are changed at random: bits, runs, lengths, cuts, splices of two, and values of JSON. A crash, an error of
another kind, a warning, more than 1 GiB of memory, or a minute of one processor ends the run, and leaves the input in
``fuzz-TARGET.bin``; give that file instead of a target's name to run it again. Where libraries read the input, a crash
and too much memory end the process that reads, and count as refused. What failed once and is small belongs into
``tests/corpus/TARGET/``: such files are changed as well, and the tests run each of them.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import os
import random
import resource
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import google_crc32c
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz_families
import fuzz_growing
import fuzz_strangers
from fuzz_families import hdf5, imported, importing

from rlds_cli.archives import Archive, gen_dgrl, rlu_atari
from rlds_cli.archives.formats import compressed, npz, tfrecord
from rlds_cli.archives.tfds import directory
from rlds_cli.archives.tfds import read as openx
from rlds_cli.base.files import child
from rlds_cli.base.media import image_header, mp4, video_files
from rlds_cli.errors import ArchiveError, RldsError

MEMORY = 1 << 30
LONGEST = 60.0  # seconds of a processor for one input
CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1)


@dataclass(frozen=True)
class Target:
    """A parser: valid inputs, and what is done with others; ``slow`` where libraries read them, in milliseconds."""

    seeds: tuple[bytes, ...]
    run: Callable[[bytes], object]
    slow: bool = False


# -- valid inputs


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _example(lists: Mapping[str, list[bytes] | list[float] | list[int]]) -> bytes:
    entries = []
    for name, values in lists.items():
        first = values[0]
        if isinstance(first, bytes):
            feature = _message(1, b"".join(_message(1, v) for v in values))  # type: ignore[arg-type]
        elif isinstance(first, float):
            feature = _message(2, _message(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            feature = _message(3, _message(1, b"".join(map(_varint, values))))  # type: ignore[arg-type]
        entries.append(_message(1, _message(1, name.encode()) + _message(2, feature)))
    return _message(1, b"".join(entries))


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    crcs = [struct.pack("<I", tfrecord.masked(google_crc32c.value(x))) for x in (length, record)]
    return length + crcs[0] + record + crcs[1]


def _image(codec: str, *shape: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)).save(file, codec)
    return file.getvalue()


def _steps(n: int) -> bytes:
    return _example(
        {
            "steps/observation/image": [_image("png", 4, 5, 3)] * n,
            "steps/observation/state": [0.5] * 2 * n,
            "steps/observation/raw": [zlib.compress(bytes(6))] * n,
            "steps/action": list(range(3 * n)),
            "steps/text": [b"a word"] * n,
            "steps/is_last": [0] * (n - 1) + [1],
            "episode_metadata/id": [300],
        }
    )


def _tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, object]:
    dimensions = [str(n) for n in shape]
    return {"tensor": {"shape": {"dimensions": dimensions}, "dtype": dtype, "encoding": encoding}}


def _group(inner: Mapping[str, object]) -> dict[str, object]:
    return {"featuresDict": {"features": inner}}


_IMAGE = {"image": {"shape": {"dimensions": ["4", "5", "3"]}, "dtype": "uint8", "encodingFormat": "png"}}
_OBSERVATION = {"image": _IMAGE, "state": _tensor("float32", 2), "raw": _tensor("uint16", 3, encoding="zlib")}
_STEP = {
    "observation": _group(_OBSERVATION),
    "action": _tensor("int32", 3),
    "text": {"text": {}},
    "is_last": _tensor("bool"),
}
FEATURES = json.dumps(
    _group(
        {
            "steps": {"sequence": {"feature": _group(_STEP), "length": "-1"}},
            "episode_metadata": _group({"id": _tensor("int64")}),
        }
    )
).encode()


def _atari(n: int) -> bytes:
    lists: dict[str, list[bytes] | list[float] | list[int]] = {
        "observations": [_image("png", 84, 84)] * n,
        "actions": [3] * n,
        "checkpoint_idx": [1],
        "episode_return": [2.0],
    }
    return _example(lists | {k: [1.0] * n for k in ("unclipped_rewards", "clipped_rewards", "discounts")})


def _npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(40.0).reshape(10, 4), b=np.arange(10), c=np.array(["x", "yz"]))
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(12.0).reshape(3, 4))
    return file.getvalue()


def _tar(form: int) -> bytes:
    """Two Procgen episodes and a long name."""
    steps = 3
    columns = {
        "observations": np.zeros((steps + 1, 3, 4, 4), np.float32),
        "actions": np.zeros((steps, 1), np.int64),
        "rewards": np.ones((steps, 1), np.float32),
        "dones": np.arange(steps) == steps - 1,
    }
    packed, file = io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, **columns)
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in (("a_3_7_3.00.npz", packed.getvalue()), ("b/" * 60 + "x.npz", packed.getvalue())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _flat_hdf5() -> bytes:
    rows = 40
    return hdf5(
        observations={"data": np.arange(2.0 * rows).reshape(rows, 2), "chunks": (7, 2), "compression": "gzip"},
        actions=np.zeros((rows, 1), np.float32),
        rewards={"data": np.arange(rows), "chunks": (16,), "scaleoffset": 0},
        terminals=np.arange(rows) % 10 == 9,
        timeouts={"data": np.zeros(rows, bool), "chunks": (8,), "fletcher32": True, "shuffle": True},
        **{"infos/note": [f"text {k}" for k in range(rows)], "metadata/about": "a text"},
    )


def _minari_hdf5() -> bytes:
    columns: dict[str, object] = {}
    for k in range(2):
        columns |= {f"episode_{k}/{key}": np.zeros((4, 1)) for key in ("actions", "infos/x")}
        columns |= {f"episode_{k}/{key}": np.arange(4) == 3 for key in ("terminations", "truncations")}
        columns |= {f"episode_{k}/rewards": np.ones(4), f"episode_{k}/observations": np.zeros((5, 2), np.float32)}
    return hdf5(**columns)


MINARI = json.dumps(
    {
        "total_episodes": 2,
        "total_steps": 8,
        "minari_version": "0.5.0",
        "data_format": "hdf5",
        "dataset_id": "x/y-v0",
        "author": ["a"],
        "ref_min_score": 1.5,
        "env_spec": json.dumps({"id": "X-v0", "max_episode_steps": 4, "kwargs": {}}),
        "observation_space": json.dumps(
            {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -1], "high": [1, 1]}
        ),
        "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}),
    }
).encode()


def _columns(rows: int = 40) -> dict[str, list[object]]:
    return {
        "observation": [[0.5 * k, 1.0] for k in range(rows)],
        "action": list(range(rows)),
        "reward": [float(k) for k in range(rows)],
        "done": [k % 10 == 9 for k in range(rows)],
        "task": [f"task {k // 10}" for k in range(rows)],
    }


def _parquet(columns: Mapping[str, object], **options: object) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **options)
    return file.getvalue()


def _arrow(**options: object) -> bytes:
    import pyarrow as pa
    from pyarrow import feather

    file = io.BytesIO()
    feather.write_feather(pa.table(_columns()), file, **options)
    return file.getvalue()


def _json_lines() -> bytes:
    columns = _columns()
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _csv() -> bytes:
    columns = _columns()
    lines = (f'{k},{r},{str(d).lower()},{t},"{o}"' for o, k, r, d, t in zip(*columns.values(), strict=True))
    return ("action,reward,done,task,observation\n" + "\n".join(lines) + "\n").encode()


def _plain_npz() -> bytes:
    file = io.BytesIO()
    rows = 40
    columns = {
        "observations": np.ones((rows, 2), order="F"),
        "actions": np.zeros(rows),
        "dones": np.arange(rows) % 10 == 9,
    }
    np.savez_compressed(file, **columns)
    return file.getvalue()


_LEROBOT_DATA = {
    "observation.state": [[0.5, 1.0]] * 6,
    "action": [[1.0]] * 6,
    "timestamp": [0.0, 0.1, 0.2] * 2,
    "frame_index": [0, 1, 2] * 2,
    "episode_index": [0, 0, 0, 1, 1, 1],
    "index": list(range(6)),
    "task_index": [0] * 6,
}


EXPORTED = json.dumps(
    {
        "columns": {
            "action": {"field": "action/arm", "placement": "root", "shape": []},
            "observation.state": {"placement": "both", "shape": [2, 1]},
        },
        "added": ["timestamp"],
        "episodes": {"seed": "length", "options": "note", "columns": {"long": "length"}},
    }
).encode()


def _lerobot(version: str) -> dict[str, bytes]:
    """The files of a dataset of two episodes of three steps, without cameras."""
    features = {k: {"dtype": "int64", "shape": [1], "names": None} for k in _LEROBOT_DATA}
    features |= {
        k: {"dtype": "float32", "shape": [n], "names": None} for k, n in (("observation.state", 2), ("action", 1))
    }
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    info = {
        "codebase_version": version,
        "fps": 10,
        "total_episodes": 2,
        "features": features,
        "splits": {"train": "0:2"},
    }
    if version != "v3.0":
        lines = [json.dumps({"episode_index": k, "tasks": ["push"], "length": 3}) for k in range(2)]
        halves = [{k: v[3 * n : 3 * n + 3] for k, v in _LEROBOT_DATA.items()} for n in range(2)]
        return {
            "meta/info.json": json.dumps(info).encode(),
            "meta/episodes.jsonl": "\n".join(lines).encode(),
            "meta/tasks.jsonl": json.dumps({"task_index": 0, "task": "push"}).encode(),
            **{f"data/chunk-000/episode_{n:06d}.parquet": _parquet(halves[n]) for n in range(2)},
        }
    listed = {"episode_index": [0, 1], "length": [3, 3], "data/chunk_index": [0, 0], "data/file_index": [0, 0]}
    return {
        "meta/info.json": json.dumps(info).encode(),
        "meta/episodes/chunk-000/file-000.parquet": _parquet(listed),
        "meta/tasks.parquet": _parquet({"task_index": [0], "task": ["push"]}),
        "data/chunk-000/file-000.parquet": _parquet(_LEROBOT_DATA),
    }


# -- what is done with an input


def _in_file(name: str, content: bytes, use: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        path.write_bytes(content)
        use(path)


def _read_records(content: bytes) -> None:
    def use(path: Path) -> None:
        tfrecord.is_tfrecord(path)
        for record in tfrecord.records(path, limit=1 << 24):
            _parse(record.data)

    _in_file("x.tfrecord", content, use)


def _parse(content: bytes) -> None:
    for feature in tfrecord.parse(content).values():
        for values in (feature.floats, feature.integers, feature.strings):
            try:
                values()
            except RldsError:
                continue


def _convert(reader: object, name: str, content: bytes, description: bytes | None = None) -> None:
    """All that a conversion does with an archive, but for writing."""

    def use(path: Path) -> None:
        if description is not None:
            (path.parent / "features.json").write_bytes(description)
        reader.recognise([path])  # type: ignore[attr-defined]
        plan = reader.plan(Archive(path.parent, (path,)))  # type: ignore[attr-defined]
        for part in plan.parts:
            for _ in reader.read(plan, part):  # type: ignore[attr-defined]
                pass

    _in_file(name, content, use)


def _among(name: str, version: str) -> Target:
    """One file of a LeRobot dataset."""
    files = _lerobot(version)
    return Target((files[name],), lambda content: imported("lerobot", files | {name: content}), slow=True)


def _features(content: bytes) -> None:
    _in_file("features.json", content, directory.load)
    _convert(openx, "x-train.tfrecord", _framed(_steps(3)), content)


def _headers(content: bytes) -> None:
    image_header.read(content)
    image_header.read(content, 3, len(content) - 1)


def _npz_members(content: bytes) -> None:
    def use(path: Path) -> None:
        with npz.open_npz(path) as f:
            for name in f.members:
                f.array(name)

    _in_file("x.npz", content, use)


def _tar_members(content: bytes) -> None:
    def use(path: Path) -> None:
        with compressed.open_unpacked(path) as stream:
            for member in compressed.members(stream):
                while member.read():
                    pass

    _in_file("x.tar", content, use)


def _video(codec: str, frames: int, form: str) -> bytes:
    """A video of 16x16 pixels, as `av` writes it."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=10)
        stream.height = stream.width = 16
        stream.pix_fmt = "yuv420p"
        for k in range(frames):
            picture = np.full((16, 16, 3), 20 * k, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def _mp4(codec: str, frames: int) -> bytes:
    content = _video(codec, frames, "mp4")
    return content[content.index(b"moov") - 4 :] + content[: content.index(b"moov") - 4]  # the tables first


def _tables(read: Callable[[Path], mp4.Track], content: bytes) -> None:
    def use(path: Path) -> None:
        track = read(path)
        assert (track.start >= 0).all() and (track.start + track.size <= len(content)).all()
        assert len(track.seconds) == track.shown.sum()
        assert all(0 <= track.begin(k) < len(track.size) for k in track.frames[:100])

    _in_file("x.mp4", content, use)


def _arriving(content: bytes) -> None:
    """Have the tables of a video arrive in the pieces that are asked for."""

    def use(path: Path) -> None:
        held: list[tuple[int, int]] = []
        while (wanted := mp4.missing([mp4.Partial(path, len(content), tuple(held))])[0]) is not None:
            first, size = wanted
            assert size > 0 and first >= 0 and first + size <= len(content) and len(held) < 1000
            held.append((first, first + size))

    _in_file("x.mp4", content, use)


def _mcap() -> bytes:
    """A recording of joints, a text and commands, as ROS 2 makes it."""
    from mcap.writer import CompressionType
    from mcap_ros2.writer import Writer

    file = io.BytesIO()
    writer = Writer(file, compression=CompressionType.NONE)
    kinds = {"/state": "float64[] data\nuint8[] raw\n", "/mode": "string data\n", "/cmd": "float32 x\nbool on\n"}
    schemas = {topic: writer.register_msgdef(f"lab/msg/T{k}", text) for k, (topic, text) in enumerate(kinds.items())}
    for k in range(4):
        values = {
            "/state": {"data": [k, 1.5], "raw": bytes([k, 2])},
            "/mode": {"data": "go"},
            "/cmd": {"x": k, "on": 1},
        }
        for topic, value in values.items():
            writer.write_message(topic, schemas[topic], value, log_time=k * 10**7, publish_time=k * 10**7)
    writer.finish()
    return file.getvalue()


def _bag() -> bytes:
    """A bag of ROS 1 with numbers, texts and lists, by the package rosbags."""
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    layout = store.types["std_msgs/msg/MultiArrayLayout"]([], 0)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.bag"
        with Writer(path) as writer:
            kinds = {"/state": "std_msgs/msg/Float64MultiArray", "/cmd": "std_msgs/msg/Float32MultiArray"}
            of = {topic: writer.add_connection(topic, kind, typestore=store) for topic, kind in kinds.items()}
            for k in range(4):
                for topic, kind in kinds.items():
                    values = np.array([k, 1.5], "f8" if topic == "/state" else "f4")
                    message = store.types[kind](layout, values)
                    writer.write(of[topic], k * 10**7, store.serialize_ros1(message, kind))
        return path.read_bytes()


def _database() -> bytes:
    """The same as ROS 2 has it in SQLite, with the definition of the messages."""
    import sqlite3

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.db3"
        base = sqlite3.connect(path)
        base.executescript(
            "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT);"
            "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB);"
            "CREATE TABLE message_definitions(topic_type TEXT, encoding TEXT, encoded_message_definition TEXT);"
            "INSERT INTO message_definitions VALUES('lab/msg/X', 'ros2msg', 'float64[] data');"
            "INSERT INTO topics VALUES(1, '/state', 'lab/msg/X', 'cdr'), (2, '/cmd', 'lab/msg/X', 'cdr');"
        )
        for k in range(8):
            data = b"\0\1\0\0" + struct.pack("<I4xdd", 2, k, 1.5)
            base.execute("INSERT INTO messages VALUES(NULL, ?, ?, ?)", (1 + k % 2, k // 2 * 10**7, data))
        base.commit()
        base.close()
        return path.read_bytes()


def _rerun() -> bytes:
    """An episode of numbers, images and texts as `rlds export --to rerun` writes it."""
    import rlds_cli

    rng = np.random.default_rng(0)
    e = {"observation": {"q": rng.normal(size=(5, 2)), "cam": rng.integers(0, 255, (5, 8, 8, 3), np.uint8)}}
    e |= {"action": rng.normal(size=(4, 1)), "note": ["a", "b", "c", "d"], "large": rng.normal(size=(4, 70))}
    with tempfile.TemporaryDirectory() as directory:
        ds = rlds_cli.create("local/fuzz", [e], fps=10, home=directory, progress=False)
        rlds_cli.export(ds, "rerun", f"{directory}/out", progress=False, verify=False)
        return Path(f"{directory}/out/episode_0000.rrd").read_bytes()


_LINES = b"".join(
    json.dumps({"topic": topic, "time": k / 50, "x": [k, 0.5], "on": {"a": k}}).encode() + b"\n"
    for k in range(4)
    for topic in ("state", "cmd")
)
_MINARI_DATA = _minari_hdf5()

TARGETS = {
    "mp4": Target((_mp4("mpeg4", 6), _mp4("libx264", 4)), partial(_tables, mp4.read)),
    "mp4_arriving": Target((_mp4("mpeg4", 6), _video("mpeg4", 6, "mp4")), _arriving),
    "recording": Target((_mcap(),), importing("recordings", "x.mcap"), slow=True),
    **(
        {"recording_bag": Target((_bag(),), importing("recordings", "x.bag"), slow=True)}
        if find_spec("rosbags")
        else {}
    ),
    "recording_database": Target((_database(),), importing("recordings", "x.db3"), slow=True),
    **(
        {"recording_rerun": Target((_rerun(),), importing("recordings", "x.rrd"), slow=True)}
        if find_spec("rerun")
        else {}
    ),
    "recording_lines": Target((_LINES,), importing("recordings", "x.jsonl"), slow=True),
    "video": Target(
        (_video("libx264", 4, "matroska"), _video("mpeg4", 6, "avi"), _video("libvpx", 4, "webm")),
        partial(_tables, video_files.read),
        slow=True,
    ),
    "tfrecord": Target((_framed(_steps(2)) + _framed(b"x" * 40),), _read_records),
    "gzip": Target((gzip.compress(_framed(_steps(2)) + _framed(b"x" * 40)),), _read_records),
    "example": Target((_steps(3), _atari(2), _example({"x": [1, 300, 1 << 60]})), _parse),
    "openx": Target((_steps(3), _steps(1)), lambda c: _convert(openx, "x-train.tfrecord", _framed(c), FEATURES)),
    "features": Target((FEATURES,), _features),
    "rlu_atari": Target((_atari(3),), lambda c: _convert(rlu_atari, "run_1-00000-of-00001", gzip.compress(_framed(c)))),
    "npz": Target((_npz(),), _npz_members),
    "npy": Target((_npy(),), lambda c: npz.parse_header("x", io.BytesIO(c), "x.npz")),
    "tar": Target((_tar(tarfile.PAX_FORMAT), _tar(tarfile.GNU_FORMAT)), _tar_members),
    "xz": Target((lzma.compress(_tar(tarfile.GNU_FORMAT)), gzip.compress(_tar(tarfile.USTAR_FORMAT))), _tar_members),
    "gen_dgrl": Target((_tar(tarfile.USTAR_FORMAT),), lambda c: _convert(gen_dgrl, "x.tar", c)),
    "hdf5": Target((_flat_hdf5(),), importing("plain", "x.h5"), slow=True),
    "d4rl": Target((_flat_hdf5(),), importing("d4rl", "x.hdf5"), slow=True),
    "minari": Target((_minari_hdf5(),), importing("minari", "main_data.hdf5"), slow=True),
    "minari_json": Target(
        (MINARI,), lambda c: imported("minari", {"main_data.hdf5": _MINARI_DATA, "metadata.json": c}), slow=True
    ),
    "parquet": Target(
        (_parquet(_columns()), _parquet(_columns(), compression="zstd", data_page_version="2.0", row_group_size=15)),
        importing("plain", "x.parquet"),
        slow=True,
    ),
    "arrow": Target(
        (_arrow(compression="uncompressed"), _arrow(compression="zstd", chunksize=15)),
        importing("plain", "x.arrow"),
        slow=True,
    ),
    "csv": Target((_csv(),), importing("plain", "x.csv"), slow=True),
    "json_lines": Target((_json_lines(),), importing("plain", "x.jsonl"), slow=True),
    "plain_npz": Target((_plain_npz(),), importing("plain", "x.npz"), slow=True),
    "exported": Target((EXPORTED,), lambda c: imported("lerobot", _lerobot("v2.1") | {"meta/rlds.json": c}), slow=True),
    "lerobot_info": _among("meta/info.json", "v3.0"),
    "lerobot_episodes": _among("meta/episodes.jsonl", "v2.1"),
    "lerobot_tasks": _among("meta/tasks.jsonl", "v2.1"),
    "lerobot_lists": _among("meta/episodes/chunk-000/file-000.parquet", "v3.0"),
    "lerobot_data": _among("data/chunk-000/file-000.parquet", "v3.0"),
    "image": Target((_image("png", 4, 5, 3), _image("jpeg", 16, 9, 3), _image("jpeg", 8, 8)), _headers),
    **{
        name: Target(*t, slow=True)
        for name, t in (fuzz_families.targets(MINARI) | fuzz_strangers.targets() | fuzz_growing.targets()).items()
    },
}
if find_spec("rosbags"):
    TARGETS["recording_bag"] = Target((_bag(),), importing("recordings", "x.bag"), slow=True)


# -- changing them


def mutated(seeds: tuple[bytes, ...], rng: random.Random) -> bytes:
    """One of the seeds, changed in one to six places."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_CHANGES)(data, rng, seeds)
    return bytes(data)


def _flip(data: bytearray, rng: random.Random, seeds: tuple[bytes, ...]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random, seeds: tuple[bytes, ...]) -> None:
    number, at = rng.choice(INTERESTING), rng.randrange(len(data) + 1)
    size = rng.choice((1, 2, 4, 8))
    data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, rng.choice(("little", "big")))


def _lengthen(data: bytearray, rng: random.Random, seeds: tuple[bytes, ...]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at : at + 1] = _varint(rng.choice(INTERESTING))


def _remove(data: bytearray, rng: random.Random, seeds: tuple[bytes, ...]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 8, 64, 1 << 20))]


def _repeat(data: bytearray, rng: random.Random, seeds: tuple[bytes, ...]) -> None:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 8, 64))
    data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))


def _splice(data: bytearray, rng: random.Random, seeds: tuple[bytes, ...]) -> None:
    other = rng.choice(seeds)
    at, start = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    data[at : at + rng.randrange(64)] = other[start : start + rng.randrange(64)]


def _retype(data: bytearray, rng: random.Random, seeds: tuple[bytes, ...]) -> None:
    """Put another kind of value in the place of one of a JSON text, or of a line of them."""
    lines = bytes(data).split(b"\n")
    k = rng.randrange(len(lines))
    try:
        content = json.loads(lines[k])
    except (ValueError, RecursionError):
        return
    places: list[tuple[dict[str, object] | list[object], object]] = []
    pending = [content]
    while pending:
        at = pending.pop()
        inner = at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ()
        places += [(at, key) for key, _ in inner]
        pending += [value for _, value in inner]
    if places:
        holder, key = rng.choice(places)
        holder[key] = rng.choice(_VALUES)  # type: ignore[index, call-overload]
        lines[k] = json.dumps(content).encode()
        data[:] = b"\n".join(lines)


_VALUES = (
    *(
        None,
        True,
        -1,
        0,
        1,
        1.5,
        1e308,
        float("nan"),
        float("inf"),
        1 << 31,
        1 << 63,
        -(1 << 63),
        10**30,
        "",
        "x",
        "0:1",
    ),
    *("\ud800", "../../x", "/etc/passwd", "\x1b[31m", [], [[]], [1, "x"], {}, {"dtype": 5}, {"shape": [-1]}, "O", "V8"),
)
_CHANGES = (_flip, _retype, _flip, _overwrite, _lengthen, _remove, _repeat, _splice)


def attempt(target: Target, content: bytes) -> str:
    """``read`` or ``refused``; raises whatever else comes out.

    What libraries in C and C++ read is read in another process, as everywhere: one that crashes or takes too much
    memory has refused the input.
    """
    if not target.slow:
        return attempt_here(target, content)
    try:
        name = next(n for n, t in TARGETS.items() if t is target)
        return str(child.ask(f"{Path(__file__).stem}.attempt_named", name, content, names=()))
    except ArchiveError:
        return "refused"


def attempt_named(name: str, content: bytes) -> str:
    """As `attempt_here`, for a target by its name."""
    return attempt_here(TARGETS[name], content)


def attempt_here(target: Target, content: bytes) -> str:
    """As `attempt`, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begun = time.process_time()
        try:
            target.run(content)
        except RldsError as e:
            if _lacks_memory(e) and not target.slow:
                raise MemoryError(str(e)) from e
            return "refused"
        finally:
            if time.process_time() - begun > LONGEST:
                raise TimeoutError(f"{time.process_time() - begun:.0f} s for one input")
    return "read"


def _lacks_memory(e: BaseException | None) -> bool:
    """Whether there was too little memory, which an input must not come to ask for."""
    while e is not None:
        if isinstance(e, MemoryError):
            return True
        e = e.__cause__
    return False


def corpus(name: str) -> tuple[bytes, ...]:
    """The inputs of a target that failed once."""
    return tuple(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))


def fuzz(name: str, *, seconds: float = 1e9, rounds: int = 1 << 60, seed: int = 0) -> dict[str, int]:
    """How many inputs of a target were read and refused; what fails is kept in ``fuzz-NAME.bin``."""
    target, rng, end = TARGETS[name], random.Random(f"{name}-{seed}"), time.monotonic() + seconds
    counts = {"read": 0, "refused": 0}
    seeds, kept = (*target.seeds, *corpus(name)), Path(f"fuzz-{name}.bin")
    with child.reading(*([Path(__file__).stem] if target.slow else [])):
        while rounds and time.monotonic() < end:
            content, rounds = mutated(seeds, rng), rounds - 1
            kept.write_bytes(content)  # beforehand: a crash leaves no time
            counts[attempt(target, content)] += 1
    kept.unlink(missing_ok=True)
    return counts


def main() -> None:
    """Run the targets one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"RLDS_HOME": f"{home}/rlds", "HOME": f"{home}/user", "NO_PROXY": "*", "RLDS_READ_MEMORY": "1GiB"}
        _run(asked.targets, asked.minutes, asked.seed)


def _run(targets: Sequence[str], minutes: float, seed: int) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    for name in targets:
        if name not in TARGETS:
            kept = Path(name)
            print(f"{name}: {attempt(TARGETS[kept.stem.removeprefix('fuzz-')], kept.read_bytes())}")
            continue
        counts = fuzz(name, seconds=60 * minutes / len(targets), seed=seed)
        print(f"{name:10} seed {seed}: {counts['read']:,} read, {counts['refused']:,} refused", flush=True)


if __name__ == "__main__":
    sys.exit(main())
