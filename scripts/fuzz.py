"""Feed damaged files to every parser of binary data that is our own: nothing but errors of rlds may come out.

Usage: python scripts/fuzz.py [TARGET...] [--minutes N] [--seed N]        default: all targets, five minutes together

Valid bytes are changed at random: bits, runs, lengths, cuts, splices of two. A crash, an error of another kind, a
warning, or more than 1 GiB of memory ends the run, and leaves the input in ``fuzz-TARGET.bin``; give that file instead
of a target's name to run it again.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import lzma
import random
import resource
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np
from PIL import Image

from rlds_cli import mp4
from rlds_cli.archives import Archive, example, gen_dgrl, image_header, npz, openx, rlu_atari, tar, tfrecord, unpacking
from rlds_cli.archives.openx import features
from rlds_cli.errors import RldsError

MEMORY = 1 << 30
INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1)


@dataclass(frozen=True)
class Target:
    """A parser: valid inputs, and what is done with others."""

    seeds: tuple[bytes, ...]
    run: Callable[[bytes], object]


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
    for feature in example.parse(content).values():
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


def _features(content: bytes) -> None:
    _in_file("features.json", content, features.load)
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
        with unpacking.open_unpacked(path) as stream:
            for member in tar.members(stream):
                while member.read():
                    pass

    _in_file("x.tar", content, use)


def _mp4(codec: str, frames: int) -> bytes:
    """A video of 16x16 pixels, as `av` writes it."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=10)
        stream.height = stream.width = 16
        stream.pix_fmt = "yuv420p"
        for k in range(frames):
            picture = np.full((16, 16, 3), 20 * k, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    content = file.getvalue()
    return content[content.index(b"moov") - 4 :] + content[: content.index(b"moov") - 4]  # the tables first


def _tables(content: bytes) -> None:
    def use(path: Path) -> None:
        track = mp4.read(path)
        assert (track.start >= 0).all() and (track.start + track.size <= len(content)).all()
        assert len(track.seconds) == track.shown.sum()
        assert all(0 <= track.begin(k) < len(track.size) for k in track.frames[:100])

    _in_file("x.mp4", content, use)


TARGETS = {
    "mp4": Target((_mp4("mpeg4", 6), _mp4("libx264", 4)), _tables),
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
    "image": Target((_image("png", 4, 5, 3), _image("jpeg", 16, 9, 3), _image("jpeg", 8, 8)), _headers),
}


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


_CHANGES = (_flip, _flip, _overwrite, _lengthen, _remove, _repeat, _splice)


def attempt(target: Target, content: bytes) -> str:
    """``read`` or ``refused``; raises whatever else comes out."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            target.run(content)
        except RldsError:
            return "refused"
    return "read"


def fuzz(name: str, *, seconds: float = 1e9, rounds: int = 1 << 60, seed: int = 0) -> dict[str, int]:
    """How many inputs of a target were read and refused; what fails is kept in ``fuzz-NAME.bin``."""
    target, rng, end = TARGETS[name], random.Random(f"{name}-{seed}"), time.monotonic() + seconds
    counts = {"read": 0, "refused": 0}
    while rounds and time.monotonic() < end:
        content, rounds = mutated(target.seeds, rng), rounds - 1
        try:
            counts[attempt(target, content)] += 1
        except BaseException:
            Path(f"fuzz-{name}.bin").write_bytes(content)
            raise
    return counts


def main() -> None:
    """Run the targets one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    asked = parser.parse_args()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    for name in asked.targets:
        if name not in TARGETS:
            kept = Path(name)
            print(f"{name}: {attempt(TARGETS[kept.stem.removeprefix('fuzz-')], kept.read_bytes())}")
            continue
        counts = fuzz(name, seconds=60 * asked.minutes / len(asked.targets), seed=asked.seed)
        print(f"{name:10} seed {asked.seed}: {counts['read']:,} read, {counts['refused']:,} refused", flush=True)


if __name__ == "__main__":
    sys.exit(main())
