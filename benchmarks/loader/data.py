"""Datasets of the sizes that the table names, made once under ``.bench-data``."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from results import DATA

import rlds_cli
from rlds_cli.base import ids
from rlds_cli.base.files import arrays
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import RldsError
from rlds_cli.homes import Home
from rlds_cli.store import sealing
from rlds_cli.store.manifest import Counts, Manifest, StoredField
from rlds_cli.store.statistics import Accumulator
from rlds_cli.ted import FLAGS, REWARD, TRUNCATED, Field

HOME = DATA / "loader"
STEPS, EPISODE = 1_000_000, 1000
OBSERVATION, ACTION = 17, 6
FRAME = (64, 64, 3)

HALFCHEETAH = (
    Field("observation", "float32", (OBSERVATION,), "both"),
    Field("action", "float32", (ACTION,)),
    Field(REWARD, "float32", (), "next"),
    *(Field(name, "bool", (), "next") for name in FLAGS),
)


def made(id: str, episodes: Callable[[], Iterable[Mapping[str, Any]]]) -> Dataset:
    try:
        return open_dataset(id, home=HOME)
    except RldsError:
        return rlds_cli.create(id, episodes(), home=HOME)


def halfcheetah(episodes: int = STEPS // EPISODE) -> Dataset:
    """Episodes of 1,000 steps, 17/6 float32; a thousand of them unless said otherwise."""
    name = "local/halfcheetah" if episodes == STEPS // EPISODE else f"local/halfcheetah-{episodes}"
    return made(name, lambda: map(halfcheetah_episode, range(episodes)))


def halfcheetah_episode(number: int) -> dict[str, Any]:
    """One of them."""
    rng = np.random.default_rng(number)
    return {
        "observation": rng.standard_normal((EPISODE + 1, OBSERVATION), np.float32),
        "action": rng.standard_normal((EPISODE, ACTION), np.float32),
        "next": {"reward": rng.standard_normal(EPISODE, np.float32), "truncated": True},
    }


def ant() -> Dataset:
    """As many steps of float64 observations [27] and two more fields, nine in a batch."""

    def episodes() -> Iterator[dict[str, Any]]:
        for k in range(STEPS // EPISODE):
            rng = np.random.default_rng(k)
            yield {
                "observation": rng.standard_normal((EPISODE + 1, 27)),
                "action": rng.standard_normal((EPISODE, 8), np.float32),
                "info": {"qpos": rng.standard_normal((EPISODE, 15)), "qvel": rng.standard_normal((EPISODE, 14))},
                "next": {"reward": rng.standard_normal(EPISODE), "truncated": True},
            }

    return made("local/ant", episodes)


# -- frames

FRAME_EPISODES, FRAME_STEPS = 100, 200


def frames(episode: int) -> np.ndarray:
    """Pictures [T+1, 64, 64, 3] with something moving in them and a little noise, as a camera gives."""
    rng = np.random.default_rng(episode)
    y, x = np.mgrid[0:64, 0:64] / 64
    t = np.arange(FRAME_STEPS + 1)[:, None, None, None] / 25
    waves = np.sin(6 * x[..., None] * rng.random(3) + 4 * y[..., None] * rng.random(3) + t)
    return (127 + 90 * waves + rng.normal(0, 4, (1, 64, 64, 3))).clip(0, 255).astype(np.uint8)


def raw_frames() -> Dataset:
    """20,000 steps of 64x64x3 bytes."""

    def episodes() -> Iterator[dict[str, Any]]:
        for k in range(FRAME_EPISODES):
            rng = np.random.default_rng(k)
            yield {
                "observation": frames(k),
                "action": rng.standard_normal((FRAME_STEPS, ACTION), np.float32),
                "next": {"reward": rng.standard_normal(FRAME_STEPS, np.float32), "truncated": True},
            }

    return made("local/frames", episodes)


def jpeg_frames() -> Dataset:
    """The same pictures, kept encoded."""
    id = "local/jpeg"
    try:
        return open_dataset(id, home=HOME)
    except RldsError:
        pass
    fields = (Field("observation", "uint8", FRAME, "both", "frames", "jpeg"), *HALFCHEETAH[1:])
    data, lengths = [], []
    for k in range(FRAME_EPISODES):
        for picture in frames(k):
            data.append(jpeg(picture))
            lengths.append(len(data[-1]))
    ends = np.cumsum(lengths, dtype=np.int64)
    offsets = np.stack([ends - lengths, ends], 1)

    def write(field: Field, directory: Path, rows: int) -> None:
        if field.kind == "frames":
            arrays.write(directory / "bytes", np.frombuffer(b"".join(data), np.uint8))
            arrays.write(directory / "offsets", offsets)
            arrays.write_group(directory)
        else:
            _random(field, directory, rows)

    return written(id, fields, FRAME_EPISODES, FRAME_STEPS, write)


def jpeg(picture: np.ndarray) -> bytes:
    """One picture, encoded."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


# -- large ones, written past the library: nobody waits for their statistics

BILLION_EPISODES = 1_000_000
STRETCH = slice(BILLION_EPISODES // 2, BILLION_EPISODES // 2 + 1000)  # episodes that hold numbers, not holes
COLD_ROWS, COLD_WINDOW, COLD_WIDTH = 8_000, 32, 192  # thousands of rows; a window of 32 is 24 KiB
COLD_WINDOWS_EPISODES = 5_000
COLD_ROW = 100  # bytes of a packed row: 17 + 6 + 1 floats and two flags, padded


def billion() -> Dataset:
    """1e9 steps in 1e6 episodes; the files are holes but for a stretch in the middle."""

    def write(field: Field, directory: Path, rows: int) -> None:
        shape = (rows, *field.shape)
        width = arrays.row_bytes(shape, field.dtype)
        first, size = STRETCH.start * (EPISODE + 1), (STRETCH.stop - STRETCH.start) * (EPISODE + 1)
        file = arrays.data_file(directory, len(shape))
        file.parent.mkdir(parents=True)
        with file.open("wb") as f:
            f.truncate(rows * width)
            f.seek(first * width)
            f.write(_block(field, size))
        arrays.finish(directory, shape, field.dtype)

    return written("local/1e9-steps", HALFCHEETAH, BILLION_EPISODES, EPISODE, write)


def cold_rows() -> Dataset:
    """Eight million small rows, 0.8 GB."""
    return written("local/cold-rows", HALFCHEETAH, COLD_ROWS, EPISODE, _random)


def cold_windows() -> Dataset:
    """Five million rows of 768 bytes, 3.8 GB."""
    fields = (Field("observation", "float32", (COLD_WIDTH,), "both"), *HALFCHEETAH[1:])
    return written("local/cold-windows", fields, COLD_WINDOWS_EPISODES, EPISODE, _random)


def _random(field: Field, directory: Path, rows: int) -> None:
    """Noise, the same block again and again: no file system here looks into it."""
    shape = (rows, *field.shape)
    block = _block(field, min(rows, 1 << 16))
    size = rows * arrays.row_bytes(shape, field.dtype)
    file = arrays.data_file(directory, len(shape))
    file.parent.mkdir(parents=True)
    with file.open("wb") as f:
        for at in range(0, size, len(block)):
            f.write(block[: size - at])
        os.fsync(f.fileno())
    arrays.finish(directory, shape, field.dtype)


def _block(field: Field, rows: int) -> bytes:
    """Numbers; flags are False."""
    if field.dtype == "bool":
        return bytes(rows)
    return np.random.default_rng(0).standard_normal((rows, *field.shape), np.float32).tobytes()


def written(
    id: str, fields: tuple[Field, ...], episodes: int, length: int, write: Callable[[Field, Path, int], None]
) -> Dataset:
    try:
        return open_dataset(id, home=HOME)
    except RldsError:
        pass
    final = Home(HOME).dataset(ids.parse(id))
    directory, rows = final.with_name(f"{final.name}.unfinished"), episodes * (length + 1)
    for left in (directory, final):  # of a run that was killed, or of another format
        shutil.rmtree(left, ignore_errors=True)
    for field in fields:
        write(field, directory / field.name, rows)
    _write_episodes(directory / "episodes", episodes, length)
    steps = episodes * length
    manifest = Manifest(
        format=Manifest.FORMAT,
        id=id,
        encoding="memmap",
        fields=tuple(
            StoredField(f.name, f.name, f.dtype, f.shape, f.placement, f.kind, f.codec, "0" * 64) for f in fields
        ),
        counts=Counts(rows, episodes, steps, steps, 0, episodes, 0, episodes, 0),
        fingerprint=f"rlds1:{hashlib.sha256(id.encode()).hexdigest()}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rlds_version=rlds_cli.__version__,
        stats={f.name: _stats(f) for f in fields if f.kind == "array"},
    )
    sealing.seal(directory, manifest)
    directory.rename(final)
    return open_dataset(id, home=HOME)


def _stats(field: Field) -> dict[str, Any]:
    """Of the first rows, which are as good as any."""
    accumulator = Accumulator(field.shape)
    values = np.frombuffer(_block(field, 1000), field.dtype).reshape(1000, *field.shape)
    accumulator.add(values)
    return asdict(accumulator.result(values))


def _write_episodes(directory: Path, episodes: int, length: int) -> None:
    numbers = np.zeros((episodes, 2), "<i8")
    numbers[:, 0] = np.arange(episodes)
    columns: dict[str, np.ndarray] = {
        "id": numbers.view(np.uint8),
        "start": np.arange(episodes, dtype=np.int64) * (length + 1),
        "length": np.full(episodes, length, np.int64),
        "num_transitions": np.full(episodes, length, np.int64),
        "num_observed": np.full(episodes, length + 1, np.int64),
        "end": np.full(episodes, TRUNCATED, np.uint8),
        "total_reward": np.zeros(episodes),
        "num_done": np.ones(episodes, np.int64),
        "source": np.zeros(episodes, np.int32),
        "row": np.zeros(episodes, np.int64),
    }
    for name, values in columns.items():
        arrays.write(directory / name, values)
    arrays.write_group(directory)
