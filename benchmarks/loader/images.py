"""Batches of 256 transitions of 64x64x3 bytes: raw and warm, and JPEG-encoded."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from loader import data, kernels, peers
from loader.cases import Builders, Case, Group, Row, batches

SIZE, THREADS = 256, 2


def rlds() -> Builders:
    def encoded(threads: int) -> Case:
        return Case(
            batches(data.jpeg_frames(), SIZE, fields=("observation",), prefetch=threads), each=SIZE, unit="frames/s"
        )

    return {
        "raw": lambda: Case(batches(data.raw_frames(), SIZE)),
        "JPEG, 2 threads": lambda: encoded(THREADS),
        "JPEG, no threads": lambda: encoded(0),
    }


def torchrl() -> Builders:
    from torchrl.data.replay_buffers.samplers import RandomSampler

    def raw() -> Case:
        return Case(peers.torchrl_memmap(data.raw_frames().to_numpy(), SIZE, RandomSampler()).sample)

    return {"raw, memmap": raw}


def limit() -> Builders:
    def windows(fresh: bool) -> Case:
        ds = data.raw_frames()
        pictures = ds.column("observation")
        others = [(ds.column(name), 0) for name in ds.schema if name != "observation"]
        return Case(kernels.windows([(pictures, 0), (pictures, 1), *others], SIZE, 1, fresh=fresh))

    return {
        "C memcpy": lambda: windows(fresh=True),
        "C memcpy, outputs used again": lambda: windows(fresh=False),
        "Pillow, 2 threads": _decoding,
    }


def _decoding() -> Case:
    """What the decoder gives, on random frames, with nothing around it."""
    from PIL import Image

    ds = data.jpeg_frames()
    content, offsets = ds.store.frame_bytes("observation"), ds.store.frame_offsets("observation")
    pool, rng = ThreadPoolExecutor(THREADS), np.random.default_rng(0)

    def decode(rows: list[int]) -> list[np.ndarray]:
        pictures = (content[a:b].tobytes() for a, b in offsets[rows].tolist())
        return [np.asarray(Image.open(io.BytesIO(p))) for p in pictures]

    def call() -> object:
        rows = rng.integers(ds.num_rows, size=SIZE).tolist()
        return list(pool.map(decode, (rows[i::THREADS] for i in range(THREADS))))

    return Case(call, each=SIZE, unit="frames/s")


GROUP = Group(
    "images of 64x64x3, batches of 256",
    {"rlds": rlds, "torchrl": torchrl, "limit": limit},
    (
        Row("raw", "rlds: raw", "torchrl: raw, memmap", 5),
        Row("", "rlds: raw", "limit: C memcpy, outputs used again", 1.3, "at most"),
        Row("", "rlds: raw", "limit: C memcpy", None, "at most"),
        Row("JPEG, 2 threads", "rlds: JPEG, 2 threads", "limit: Pillow, 2 threads", 0.85),
    ),
    only_once=True,
)
