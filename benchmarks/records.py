"""TFRecord files into NumPy arrays: against the ``tfrecord`` package, and the memory of a conversion.

    python benchmarks/records.py            needs .bench-data/peers (make bench-convert makes it)

Every list of every record becomes an array, or a list of views of its byte strings (the peer copies them into an array
padded to the longest). The peer checks no checksum; we check all. Runs alternate, in processes of their own, with the
file in the page cache; the median of the processor's time counts.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PEERS = Path(".bench-data/peers/bin/python")
ROUNDS = 5
BYTES = 256 << 20
LARGE = 2 << 30
MEMORY = 300  # MiB of anonymous memory above the imports that a conversion may take


# -- files


def varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(lists: dict[str, Any]) -> bytes:
    entries = []
    for name, values in lists.items():
        if isinstance(values, list):
            feature = message(1, b"".join(message(1, v) for v in values))
        elif values.dtype.kind == "f":
            feature = message(2, message(1, values.astype("<f4").tobytes()))
        else:
            feature = message(3, message(1, b"".join(map(varint, values.ravel().tolist()))))
        entries.append(message(1, message(1, name.encode()) + message(2, feature)))
    return message(1, b"".join(entries))


def framed(record: bytes) -> bytes:
    import google_crc32c

    from rlds_cli.archives.formats.tfrecord import masked

    length = struct.pack("<Q", len(record))
    crcs = [struct.pack("<I", masked(google_crc32c.value(x))) for x in (length, record)]
    return length + crcs[0] + record + crcs[1]


def robot(rng: np.random.Generator, images: list[bytes], n: int = 100) -> dict[str, Any]:
    """An episode as in Open X-Embodiment: two cameras, state, action, an embedding, text."""
    marks = np.zeros(n, np.int64)
    return {
        "steps/observation/image": [images[i] for i in rng.integers(0, len(images), n)],
        "steps/observation/wrist": [images[i] for i in rng.integers(0, len(images), n)],
        "steps/observation/state": rng.standard_normal((n, 8), np.float32),
        "steps/action": rng.standard_normal((n, 7), np.float32),
        "steps/language_embedding": rng.standard_normal((n, 512), np.float32),
        "steps/language_instruction": [b"put the carrot on the plate"] * n,
        "steps/reward": np.zeros(n, np.float32),
        **{f"steps/is_{k}": marks for k in ("first", "last", "terminal")},
    }


def states(rng: np.random.Generator, images: list[bytes], n: int = 1000) -> dict[str, Any]:
    """A low-dimensional episode: floats and flags."""
    return {
        "steps/observation/state": rng.standard_normal((n, 40), np.float32),
        "steps/action": rng.standard_normal((n, 8), np.float32),
        "steps/reward": rng.standard_normal(n, np.float32),
        "steps/discount": np.ones(n, np.float32),
        **{f"steps/is_{k}": np.zeros(n, np.int64) for k in ("first", "last", "terminal")},
    }


def counts(rng: np.random.Generator, images: list[bytes], n: int = 1000) -> dict[str, Any]:
    """Whole numbers of one and two bytes, mixed at random: what vectors are worst at."""
    return {"steps/observation": rng.integers(0, 1024, (n, 64)), "steps/action": rng.integers(0, 18, n)}


def atari(rng: np.random.Generator, images: list[bytes], n: int = 800) -> dict[str, Any]:
    """An episode as in RL Unplugged."""
    return {
        "observations": [images[i] for i in rng.integers(0, len(images), n)],
        "actions": rng.integers(0, 18, n),
        **{k: np.ones(n, np.float32) for k in ("unclipped_rewards", "clipped_rewards", "discounts")},
        "checkpoint_idx": np.array([1]),
    }


def pictures(rng: np.random.Generator, codec: str, *shape: int) -> list[bytes]:
    from PIL import Image

    found = []
    for _ in range(64):
        small = rng.integers(0, 256, tuple(max(1, n // 8) if i < 2 else n for i, n in enumerate(shape)), np.uint8)
        smooth = codec == "jpeg"  # a camera; a game has few colours and sharp edges
        way = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
        values = np.asarray(Image.fromarray(small).resize((shape[1], shape[0]), way)).astype(np.int16)
        values = values + (rng.integers(-6, 7, values.shape) if smooth else 0)
        file = io.BytesIO()
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(file, codec, **({"quality": 90} if smooth else {}))
        found.append(file.getvalue())
    return found


def generated(data: Path) -> dict[str, Path]:
    """One file of each kind, about ``BYTES`` each before gzip."""
    rng = np.random.default_rng(0)
    kinds = {
        "robot": (robot, pictures(rng, "jpeg", 256, 256, 3), False),
        "states": (states, [], False),
        "counts": (counts, [], False),
        "atari": (atari, pictures(rng, "png", 84, 84), True),
    }
    found = {}
    for name, (make, images, packed) in kinds.items():
        path = found[name] = data / f"{name}.tfrecord{'.gz' if packed else ''}"
        if path.exists():
            continue
        records = [framed(example(make(rng, images))) for _ in range(16)]
        content = b"".join(records) * max(1, BYTES // (2 if packed else 1) // sum(map(len, records)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content, 6) if packed else content)
    return found


# -- what is timed: run in a process of its own


def ours(path: Path) -> int:
    from rlds_cli.archives.formats import tfrecord

    count = 0
    for record in tfrecord.records(path):
        view = memoryview(record.data)
        for feature in tfrecord.parse(record.data).values():
            if feature.kind == "bytes":
                starts, stops = feature.places()
                count += len([view[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
            else:
                count += len(feature.floats() if feature.kind == "float" else feature.integers())
    return count


def peer(path: Path) -> int:
    from tfrecord.reader import tfrecord_loader

    packed = "gzip" if path.suffix == ".gz" else None
    return sum(len(v) for record in tfrecord_loader(str(path), None, compression_type=packed) for v in record.values())


def timed(way: str, path: Path) -> float:
    python = str(PEERS) if way == "peer" else sys.executable
    done = subprocess.run([python, __file__, way, str(path)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def run(way: str, path: Path) -> None:
    work = {"ours": ours, "peer": peer}[way]
    path.read_bytes()  # the page cache is warm for both
    tiny = path.with_name(f"tiny-{way}{path.suffix}")
    tiny.write_bytes(gzip.compress(b"") if path.suffix == ".gz" else b"")
    work(tiny)  # imports
    tiny.unlink()
    start = time.process_time()  # of a processor: other work on the machine does not count
    work(path)
    print(time.process_time() - start)


# -- memory of a conversion


def dataset(data: Path) -> Path:
    """About ``LARGE`` bytes of robot episodes as a TFDS directory, in four shards."""
    directory = data / "large" / "1.0.0"
    if (directory / "features.json").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    images = pictures(rng, "jpeg", 256, 256, 3)
    for i in range(4):
        with (directory / f"large-train.tfrecord-{i:05d}-of-00004").open("wb") as file:
            while file.tell() < LARGE // 4:
                file.write(framed(example(robot(rng, images, 300))))
    (directory / "features.json").write_text(json.dumps(features("jpeg", 256)))
    return directory


def features(codec: str, side: int) -> dict[str, Any]:
    """The ``features.json`` of the episodes of `robot`."""
    shape = {"dimensions": [str(side), str(side), "3"]}
    picture = {"image": {"shape": shape, "dtype": "uint8", "encodingFormat": codec}}

    def tensor(dtype: str, *shape: int) -> dict[str, Any]:
        return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype, "encoding": "none"}}

    def group(inner: dict[str, Any]) -> dict[str, Any]:
        return {"featuresDict": {"features": inner}}

    observation = group({"image": picture, "wrist": picture, "state": tensor("float32", 8)})
    flags = {f"is_{k}": tensor("bool") for k in ("first", "last", "terminal")}
    step = {
        "observation": observation,
        "action": tensor("float32", 7),
        "language_embedding": tensor("float32", 512),
        "language_instruction": {"text": {}},
        "reward": tensor("float32"),
        **flags,
    }
    return group({"steps": {"sequence": {"feature": group(step), "length": "-1"}}})


def conversion(directory: Path) -> Iterator[tuple[str, float]]:
    """Seconds and the most anonymous memory above the imports, in MiB, of a conversion in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "convert", str(directory)], check=True, capture_output=True, text=True
    )
    seconds, above = map(float, done.stdout.split())
    yield "s", seconds
    yield "MiB", above


def convert(directory: Path) -> None:
    import threading

    from checkouts import here
    from results import memory

    from rlds_cli.archives import Archive
    from rlds_cli.archives.tfds import read as openx
    from rlds_cli.base import ids
    from rlds_cli.base.progress import silent
    from rlds_cli.homes import Home
    from rlds_cli.make.convert.archive import Conversion
    from rlds_cli.make.convert.archive import convert as work

    out = directory.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    archive = Archive(directory, tuple(sorted(directory.iterdir())))
    openx.recognise(archive.files)
    before, most, done = memory("RssAnon"), 0.0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, memory("RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    with here():
        work(Conversion(ids.parse("local/large"), "openx", archive), Home(out), jobs=0, progress=silent)
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    shutil.rmtree(out, ignore_errors=True)
    print(seconds, most - before)


def main() -> None:
    from results import DATA, Results

    results = Results("records")
    for name, path in generated(DATA / "tfrecord").items():
        taken: dict[str, list[float]] = {"ours": [], "peer": []}
        for _ in range(ROUNDS):
            for way, seconds in taken.items():
                if way == "ours" or PEERS.exists():
                    seconds.append(timed(way, path))
        size = path.stat().st_size / 2**20
        ours_s = statistics.median(taken["ours"])
        results.add(f"{name}: rlds", size / ours_s, "MiB/s", "checksums checked")
        if taken["peer"]:
            peer_s = statistics.median(taken["peer"])
            results.add(f"{name}: tfrecord", size / peer_s, "MiB/s", "no checksums")
            results.add(f"{name}: rate / peer's rate", peer_s / ours_s, "x", "at least 3 wanted")
    large = dataset(DATA / "tfrecord")
    size = sum(p.stat().st_size for p in large.iterdir()) / 2**20
    found = dict(conversion(large))
    results.add("conversion", size / found["s"], "MiB/s", f"{size / 1024:.1f} GiB, one process")
    results.add("peak anonymous memory without imports", found["MiB"], "MiB", f"less than {MEMORY} wanted")
    results.write()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        convert(Path(sys.argv[2])) if sys.argv[1] == "convert" else run(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
