"""Batches of 256 transitions of 64x64x3 bytes: raw and warm, and JPEG-encoded."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from loader import data, kernels, peers
from loader.cases import Builders, Case, Group, Row, batches

SIZE, THREADS = 256, 2
WINDOWS, WINDOW = 32, 8


def rlds() -> Builders:
    from rlds_cli.loader import Slice

    def encoded(threads: int) -> Case:
        return Case(
            batches(data.jpeg_frames(), SIZE, fields=("observation",), prefetch=threads), each=SIZE, unit="frames/s"
        )

    windows = {"window": Slice(WINDOW), "fields": ("observation",)}
    return {
        "raw": lambda: Case(batches(data.raw_frames(), SIZE)),
        "raw, windows of 8": lambda: Case(batches(data.raw_frames(), WINDOWS, **windows)),
        "JPEG, 2 threads": lambda: encoded(THREADS),
        "JPEG, no threads": lambda: encoded(0),
    }


def torchrl() -> Builders:
    from torchrl.data.replay_buffers.samplers import RandomSampler

    def raw() -> Case:
        return Case(peers.torchrl_memmap(data.raw_frames().to_numpy(), SIZE, RandomSampler()).sample)

    return {"raw, memmap": raw}


def lance() -> Builders:
    """The same windows as rows of a Lance dataset, which knows nothing of episodes: their first rows are drawn here."""
    import lance as la
    import pyarrow as pa

    def windows() -> Case:
        ds = data.raw_frames()
        pictures = ds.column("observation")
        size, length = pictures[0].size, int(ds.episodes["length"][0])
        kind = pa.schema([("observation", pa.list_(pa.uint8(), size))])

        def parts() -> Iterator[pa.RecordBatch]:
            for at in range(0, len(pictures), 1024):
                values = pa.array(np.asarray(pictures[at : at + 1024]).reshape(-1))
                yield pa.record_batch([pa.FixedSizeListArray.from_arrays(values, size)], kind)

        place = peers.scratch() / "frames.lance"
        la.write_dataset(pa.RecordBatchReader.from_batches(kind, parts()), place)
        opened, rng = la.dataset(place), np.random.default_rng(0)
        episodes = len(ds.episodes["length"])

        def call() -> object:
            first = rng.integers(episodes, size=WINDOWS) * (length + 1) + rng.integers(length - WINDOW, size=WINDOWS)
            rows = (first[:, None] + np.arange(WINDOW)).reshape(-1)
            found = opened.take(rows, columns=["observation"])["observation"].combine_chunks()
            return found.values.to_numpy().reshape(WINDOWS, WINDOW, *pictures.shape[1:])

        return Case(call)

    return {"raw, windows of 8": windows}


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
    content, offsets = ds.store.frames("observation").data, ds.store.rows("observation")
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
    {"rlds": rlds, "torchrl": torchrl, "lance": lance, "limit": limit},
    (
        Row("raw", "rlds: raw", "torchrl: raw, memmap", 5),
        Row("", "rlds: raw", "limit: C memcpy, outputs used again", 1.3, "at most"),
        Row("", "rlds: raw", "limit: C memcpy", None, "at most"),
        Row("raw, windows of 8", "rlds: raw, windows of 8", "lance: raw, windows of 8", None),
        Row("JPEG, 2 threads", "rlds: JPEG, 2 threads", "limit: Pillow, 2 threads", 0.85),
    ),
    only_once=True,
)
