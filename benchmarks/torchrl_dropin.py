"""``sample()`` of a dataset through TorchRL's interface, against TorchRL's memory-mapped buffer of the same data.

python benchmarks/torchrl_dropin.py

Both draw with the same sampler and give the same TensorDict. They take turns, so that other work on the machine slows
both, and the figures are the medians of the rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Results
from tensordict import TensorDict
from torchrl.data import (
    ImmutableDatasetWriter,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)

EPISODES, STEPS, BATCH = 1000, 1000, 256  # as large as D4RL's hopper-medium
WARM, ROUNDS, CALLS = 2000, 15, 200
SAMPLERS: dict[str, Callable[[], Any]] = {
    "RandomSampler": RandomSampler,
    "SamplerWithoutReplacement": SamplerWithoutReplacement,
    "SliceSampler": lambda: SliceSampler(slice_len=32, cache_values=True),
}


def episodes() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        yield {
            "observation": rng.normal(size=(STEPS + 1, 11)).astype(np.float32),
            "action": rng.normal(size=(STEPS, 3)).astype(np.float32),
            "next": {
                "reward": rng.normal(size=STEPS).astype(np.float32),
                "terminated": np.zeros(STEPS, bool),
                "truncated": np.arange(STEPS) == STEPS - 1,
            },
        }


def seconds(sample: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        sample()
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    results = Results("torchrl_dropin")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["RLDS_HOME"] = str(Path(scratch) / "home")
        import rlds_cli
        from rlds_cli.interop.torchrl import RldsExperienceReplay

        ds = rlds_cli.create("local/steps", episodes())
        RldsExperienceReplay(ds)[:].to_tensordict().memmap(Path(scratch) / "memmap")
        for name, sampler in SAMPLERS.items():
            ours = RldsExperienceReplay(ds, BATCH, sampler=sampler())
            storage = TensorStorage(TensorDict.load_memmap(Path(scratch) / "memmap"))
            theirs = TensorDictReplayBuffer(
                storage=storage, batch_size=BATCH, sampler=sampler(), writer=ImmutableDatasetWriter()
            )
            torch.manual_seed(0)
            mine = ours.sample()
            torch.manual_seed(0)
            assert bool((mine == theirs.sample()).all())
            for _ in range(WARM):  # until both have touched their files
                ours.sample(), theirs.sample()
            rounds = [(seconds(ours.sample), seconds(theirs.sample)) for _ in range(ROUNDS)]
            a, b = (statistics.median(times) * 1e6 for times in zip(*rounds, strict=True))
            results.add(f"{name}, rlds", a, "µs")
            results.add(f"{name}, TorchRL", b, "µs")
            results.add(f"{name}, times as fast", b / a, "x")
    results.write()


if __name__ == "__main__":
    main()
