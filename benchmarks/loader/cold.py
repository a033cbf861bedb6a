"""Files dropped from the page cache: what data larger than memory is like.

Every round opens the files anew, after they were dropped; that they are gone is checked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from loader import data, peers
from loader.cases import Builders, Call, Case, Group, Row, batches
from loader.memory import below, cool, read_ahead
from rlds_cli.base.files import arrays

SECONDS = 1.0
WINDOWS, SMALL = 256, 256
LENGTH = data.COLD_WINDOW
BYTES = LENGTH * data.COLD_WIDTH * 4
BLOCK = 1 << 16  # rows


def _files(dataset: Any) -> list[Path]:
    """Of a dataset and of what is packed of it; the episode table is small and stays."""
    packed = (data.HOME / "packed").glob(f"{dataset.fingerprint.partition(':')[2][:12]}-*")
    fields = [f for name in dataset.schema for f in below(dataset.path / dataset.store.table.path_of(name))]
    return [*fields, *packed]


def _column(dataset: Any, name: str) -> Path:
    """The file that holds the rows of a field."""
    return arrays.data_file(dataset.path / dataset.store.table.path_of(name), 1 + len(dataset.schema[name].shape))


def _cold(open_: Callable[[], Any], size: int, unit: str, **options: Any) -> Case:
    batches(open_(), size, cached=False, **options)()  # what is packed once is packed now

    def before() -> Call:
        cool(_files(open_()))
        return batches(open_(), size, cached=False, **options)

    return Case(each=size, unit=unit, before=before, seconds=SECONDS)


def rlds() -> Builders:
    from rlds_cli.loader import Shuffled, Slice

    windows = {"window": Slice(LENGTH), "fields": ("observation",)}

    def after_advice() -> Case:
        """Warm again, in a loader that has seen the disk."""

        def before() -> Call:
            cool(_files(data.cold_rows()))
            call = batches(data.cold_rows(), SMALL, cached=False)
            for _ in range(200):
                call()
            _warm(_files(data.cold_rows()))
            for _ in range(2000):
                call()
            return call

        return Case(each=SMALL, unit="rows/s", before=before, seconds=SECONDS)

    def always_warm() -> Case:
        def before() -> Call:
            _warm(_files(data.cold_rows()))
            call = batches(data.cold_rows(), SMALL, cached=False)
            for _ in range(2000):
                call()
            return call

        return Case(each=SMALL, unit="rows/s", before=before, seconds=SECONDS)

    return {
        "windows": lambda: _cold(data.cold_windows, WINDOWS, "windows/s", **windows),
        "small rows": lambda: _cold(data.cold_rows, SMALL, "rows/s"),
        "small rows, block-shuffled": lambda: _cold(
            data.cold_rows, SMALL, "rows/s", sampler=Shuffled(block=BLOCK), steps=1 << 40
        ),
        "small rows, warm after advice": after_advice,
        "small rows, always warm": always_warm,
    }


def _warm(files: list[Path]) -> None:
    for file in files:
        with file.open("rb") as f:
            while f.read(1 << 24):
                pass


def torchrl() -> Builders:
    import torch
    from tensordict import MemoryMappedTensor, TensorDict
    from torchrl.data.replay_buffers.samplers import RandomSampler, SliceSampler

    def column(dataset: Any, name: str) -> Any:
        """The file of the store itself: its rows stand from the first byte on."""
        field = dataset.schema[name]
        shape = (dataset.num_rows, *field.shape)
        return MemoryMappedTensor.from_filename(_column(dataset, name), getattr(torch, field.dtype), shape)

    def windows() -> Case:
        def before() -> Call:
            ds = data.cold_windows()
            cool(_files(ds))
            td = TensorDict({"observation": column(ds, "observation")}, [ds.num_rows])
            ends = torch.zeros(ds.num_rows, dtype=torch.bool)
            ends[torch.from_numpy(ds.episodes["start"] + ds.episodes["length"])] = True
            sampler = SliceSampler(slice_len=LENGTH, ends=ends, cache_values=True)
            buffer = peers.torchrl_over(td, WINDOWS // 8 * LENGTH, sampler)
            return buffer.sample

        return Case(each=WINDOWS // 8, unit="windows/s", before=before, seconds=SECONDS)

    def rows() -> Case:
        ds = data.cold_rows()
        after = data.HOME / "torchrl" / "next-observation"
        if not after.exists():
            after.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_column(ds, "observation"), after)

        def before() -> Call:
            cool([*_files(ds), after])
            td = TensorDict({}, [ds.num_rows])
            for name in ("observation", "action", "next/terminated", "next/truncated"):
                td[tuple(name.split("/"))] = column(ds, name)
            td["next", "reward"] = column(ds, "next/reward")
            td["next", "observation"] = MemoryMappedTensor.from_filename(
                after, torch.float32, (ds.num_rows, data.OBSERVATION)
            )
            return peers.torchrl_over(td, SMALL, RandomSampler()).sample

        return Case(each=SMALL, unit="rows/s", before=before, seconds=SECONDS)

    return {"windows": windows, "small rows": rows}


def pread() -> Builders:
    """The same ranges at random, read by threads that do nothing else."""

    def case(threads: int, dataset: Callable[[], Any], bytes_: int, row: int, unit: str) -> Case:
        ds = dataset()
        packed = [f for f in _files(ds) if f.parent.name == "packed"]
        file = packed[0] if packed else _column(ds, "observation")
        starts = ds.num_rows - LENGTH

        def before() -> Call:
            cool(_files(ds))
            return _reading(file, threads, starts, row, bytes_)

        return Case(each=WINDOWS, unit=unit, before=before, seconds=SECONDS)

    small = 2 * data.COLD_ROW  # of a transition: this row and the next
    made: dict[str, Any] = {}
    for threads in (16, 64):
        made[f"windows, {threads} threads"] = lambda t=threads: case(
            t, data.cold_windows, BYTES, 4 * data.COLD_WIDTH, "windows/s"
        )
        made[f"small rows, {threads} threads"] = lambda t=threads: case(
            t, data.cold_rows, small, data.COLD_ROW, "rows/s"
        )
    return made


def _reading(file: Path, threads: int, starts: int, row: int, size: int) -> Call:
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    pool = ThreadPoolExecutor(threads)
    rng = np.random.default_rng()

    def some(offsets: list[int]) -> None:
        for offset in offsets:
            os.pread(descriptor, size, offset)

    def calls() -> Iterator[None]:
        try:
            while True:
                offsets = (rng.integers(starts, size=WINDOWS) * row).tolist()
                list(pool.map(some, (offsets[i::threads] for i in range(threads))))
                yield
        finally:
            pool.shutdown()
            os.close(descriptor)

    iterator = calls()
    return lambda: next(iterator)


def note() -> str:
    return (
        f"read_ahead_kb {read_ahead(data.HOME)}; files are dropped from the page cache before every"
        f" round of {SECONDS:g} s. For readers that do not advise against it, read-ahead loads many of them again."
    )


GROUP = Group(
    "cold files: windows of 24 KiB, and small rows",
    {"rlds": rlds, "torchrl": torchrl, "pread": pread},
    (
        Row("windows of 24 KiB", "rlds: windows", "torchrl: windows", 30),
        Row("", "rlds: windows", "pread: windows, 16 threads", 0.7),
        Row("", "rlds: windows", "pread: windows, 64 threads", None),
        Row("small rows", "rlds: small rows", "torchrl: small rows", 30),
        Row("", "rlds: small rows", "pread: small rows, 16 threads", 0.7),
        Row("small rows, block-shuffled", "rlds: small rows, block-shuffled", None, 500_000),
        Row("warm after advice", "rlds: small rows, warm after advice", "rlds: small rows, always warm", 0.95),
    ),
    only_once=True,
    note=note,
)
