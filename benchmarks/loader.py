"""The loader: a million steps of HalfCheetah's size, one thread, against peers in the same run.

    python benchmarks/loader.py

Batches of 256 transitions (166 bytes each) and of 32 slices of 64 steps, contiguous float32 tensors unless said.
``packed take`` is one ``np.take`` of the same bytes from a single array: what memory allows. Runs alternate; the best
of each counts, and the ratio is to TorchRL where it is installed.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "RL_LOGGING_LEVEL": "WARNING"}

import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from results import DATA, Results, memory

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.loader import Loader, Normalize, Shuffled, Slice, Transition, Uniform

STEPS, EPISODE, BATCH, SLICES, LENGTH = 1_000_000, 1000, 256, 32, 64
ROUNDS, SECONDS = 9, 0.2


def episodes() -> Iterator[dict[str, object]]:
    for k in range(STEPS // EPISODE):
        rng = np.random.default_rng(k)
        yield {
            "observation": rng.standard_normal((EPISODE + 1, 17), np.float32),
            "action": rng.standard_normal((EPISODE, 6), np.float32),
            "next": {"reward": rng.standard_normal(EPISODE, np.float32), "truncated": True},
        }


def dataset() -> rlds_cli.Dataset:
    home = DATA / "loader"
    try:
        return rlds_cli.open_dataset("local/bench", cache_dir=home)
    except RldsError:
        return rlds_cli.create("local/bench", episodes(), cache_dir=home)


Case = Callable[[], object]


def ours(ds: rlds_cli.Dataset, size: int = BATCH, **options: object) -> Case:
    batches = iter(Loader(ds, size, **options))
    return lambda: next(batches)


def numpy_dict(arrays: dict[str, np.ndarray]) -> Case:
    """What a careful script does by hand: arrays in memory, one fancy index per field."""
    rng = np.random.default_rng(0)

    def batch() -> dict[str, torch.Tensor]:
        index = rng.integers(STEPS, size=BATCH)
        return {name: torch.from_numpy(values[index]) for name, values in arrays.items()}

    return batch


def packed_take(arrays: dict[str, np.ndarray]) -> Case:
    width = sum(values.dtype.itemsize * values.shape[1] for values in arrays.values())
    packed = np.ones((STEPS, -(-width // 8)), np.int64)
    rng = np.random.default_rng(0)
    return lambda: packed.take(rng.integers(STEPS, size=BATCH), axis=0)


def torchrl(arrays: dict[str, np.ndarray], scratch: Path) -> dict[str, Case]:
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import RandomSampler, SliceSampler

    td = TensorDict({}, [STEPS])
    for name, values in arrays.items():
        td[tuple(name.split("/"))] = torch.from_numpy(values)

    def filled(name: str, size: int, sampler: object) -> Case:
        storage = LazyMemmapStorage(STEPS, scratch_dir=scratch / name)
        made = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=size)
        made.extend(td)
        return made.sample

    sliced = SliceSampler(slice_len=LENGTH, end_key=("next", "done"), cache_values=True)
    return {
        "transitions": filled("transitions", BATCH, RandomSampler()),
        "slices": filled("slices", SLICES * LENGTH, sliced),
    }


def best(cases: dict[str, Case]) -> dict[str, float]:
    """Microseconds per call: cases take turns, the best round of each counts."""
    for case in cases.values():
        for _ in range(100):
            case()
    seconds = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, case in cases.items():
            calls, start = 0, time.perf_counter()
            while time.perf_counter() - start < SECONDS:
                case()
                calls += 1
            seconds[name] = min(seconds[name], (time.perf_counter() - start) / calls)
    return {name: s * 1e6 for name, s in seconds.items()}


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = Results("loader")
    ds = dataset()
    before = memory("RssAnon")
    transitions = {
        "ours": ours(ds),
        "ours, NumPy arrays": ours(ds, backend="numpy"),
        "ours, shuffled": ours(ds, sampler=Shuffled(), steps=10**9),
        "ours, uniform over episodes": ours(ds, sampler=Uniform(by="episode")),
        "ours, n-step 3": ours(ds, window=Transition(3)),
        "ours, normalised": ours(ds, transform=Normalize(ds)),
    }
    slices = {
        "ours, slices": ours(ds, SLICES, window=Slice(LENGTH)),
        "ours, slices padded": ours(ds, SLICES, window=Slice(LENGTH, after=LENGTH - 1)),
    }
    for case in (*transitions.values(), *slices.values()):
        case()
    results.add("anonymous memory of eight loaders", memory("RssAnon") - before, "MiB")
    arrays = ds.to_numpy()
    transitions |= {"NumPy dict, fancy index per field": numpy_dict(arrays), "packed take": packed_take(arrays)}
    scratch = DATA / "loader-torchrl"
    try:
        if find_spec("torchrl"):
            peers = torchrl(arrays, scratch)
            transitions["TorchRL, memmap"], slices["TorchRL, slices"] = peers["transitions"], peers["slices"]
        report(results, best(transitions), "TorchRL, memmap", f"batches of {BATCH} transitions")
        report(results, best(slices), "TorchRL, slices", f"batches of {SLICES} slices of {LENGTH}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    results.write()


def report(results: Results, figures: dict[str, float], peer: str, what: str) -> None:
    print(f"-- {what}")
    for name, microseconds in figures.items():
        ratio = f"{figures[peer] / microseconds:.1f} x TorchRL" if peer in figures and name != peer else ""
        results.add(name, microseconds, "µs", ratio)


if __name__ == "__main__":
    main()
