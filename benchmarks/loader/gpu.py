"""Batches on a GPU: one copy of each; or all of the data there, and sampled there; or frames, beside training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from loader import data, peers
from loader.cases import Builders, Call, Case, Group, Row, batches

SIZE, LARGE, FRAMES = 256, 4096, 64
STEP = 5e-3  # seconds of a step of training
_TREE = "torchrl: PrioritizedSampler, CUDA"


def _on_device(call: Callable[[], Any]) -> Call:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device")

    def synchronised() -> object:
        made = call()
        torch.cuda.synchronize()
        return made

    return synchronised


def rlds() -> Builders:
    def case(size: int, **options: Any) -> Case:
        _on_device(lambda: None)
        return Case(_on_device(batches(data.halfcheetah(), size, device="cuda", **options)))

    def prioritised() -> Case:
        import torch

        from rlds_cli.loader import Loader, Prioritized

        _on_device(lambda: None)
        loader = Loader(data.halfcheetah(), LARGE, sampler=Prioritized(), device="cuda", memory="device")
        given, priority = iter(loader), torch.rand(LARGE, device="cuda") + 1e-3

        def step() -> object:
            batch = next(given)
            loader.update_priorities(batch, priority)
            return batch

        return Case(_on_device(step))

    def beside_training(dataset: Callable[[], Any]) -> Case:
        _on_device(lambda: None)
        call = batches(dataset(), FRAMES, fields=("observation",), device="cuda")

        def step() -> object:
            batch = call()
            time.sleep(STEP)
            return batch

        return Case(step)

    return {
        "copied, 256": lambda: case(SIZE),
        "copied, 4096": lambda: case(LARGE),
        "resident, 4096": lambda: case(LARGE, memory="device"),
        "resident, prioritised, 4096": prioritised,
        "raw images, steps of 5 ms": lambda: beside_training(data.raw_frames),
        "JPEG images, steps of 5 ms": lambda: beside_training(data.jpeg_frames),
    }


def torchrl() -> Builders:
    def prioritised() -> Case:
        import torch
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        _on_device(lambda: None)
        sampler = PrioritizedSampler(data.STEPS, 0.6, 0.4, device="cuda")
        storage = LazyTensorStorage(data.STEPS, device="cuda")
        buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=LARGE)
        buffer.extend(peers.tensordict(data.halfcheetah().to_numpy()).to("cuda"))
        priority = torch.rand(LARGE, device="cuda") + 1e-3

        def step() -> object:
            batch = buffer.sample()
            buffer.update_priority(batch["index"], priority)
            return batch

        return Case(_on_device(step))

    return {"PrioritizedSampler, CUDA": prioritised}


def bare() -> Builders:
    def copied() -> Case:
        import torch

        _on_device(lambda: None)
        block = torch.ones(SIZE, 42).pin_memory()
        return Case(_on_device(lambda: block.to("cuda", non_blocking=True)))

    def selected() -> Case:
        import torch

        _on_device(lambda: None)
        columns = [torch.from_numpy(x).cuda() for x in data.halfcheetah().to_numpy().values()]

        def call() -> object:
            index = torch.randint(data.STEPS, (LARGE,), device="cuda")
            return [c.index_select(0, index) for c in columns]

        return Case(_on_device(call))

    def training() -> Case:
        _on_device(lambda: None)
        return Case(lambda: time.sleep(STEP))

    return {"one pinned copy, 256": copied, "index_select, 4096": selected, "steps of 5 ms": training}


GROUP = Group(
    "GPU",
    {"rlds": rlds, "torchrl": torchrl, "bare": bare},
    (
        Row("copied batches of 256", "rlds: copied, 256", "bare: one pinned copy, 256", None, "at most"),
        Row("resident, batches of 4096", "rlds: resident, 4096", "bare: index_select, 4096", 1.2, "at most"),
        Row("raw images beside training", "rlds: raw images, steps of 5 ms", "bare: steps of 5 ms", 1.02, "at most"),
        Row("JPEG images beside training", "rlds: JPEG images, steps of 5 ms", "bare: steps of 5 ms", 1.02, "at most"),
        Row("prioritised, 4096 and their update", "rlds: resident, prioritised, 4096", _TREE, 1.5),
    ),
    only_once=True,
)
