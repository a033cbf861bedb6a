"""Prioritised batches of 256, and new priorities for each."""

from __future__ import annotations

import numpy as np

from loader import data, peers
from loader.cases import Builders, Case, Group, Row

SIZE = 256
PRIORITY = np.random.default_rng(0).random(SIZE) + 1e-3


def rlds() -> Builders:
    from rlds_cli.loader import Loader, Prioritized

    def case(backend: str, **options: object) -> Case:
        loader = Loader(data.halfcheetah(), SIZE, sampler=Prioritized(**options), backend=backend)
        batches = iter(loader)

        def step() -> object:
            batch = next(batches)
            loader.update_priorities(batch, PRIORITY)
            return batch

        return Case(step)

    return {
        "sample and update": lambda: case("torch"),
        "sample and update, lag 8": lambda: case("torch", lag=8),
        "sample and update, NumPy arrays": lambda: case("numpy"),
    }


def torchrl() -> Builders:
    import torch
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    def case() -> Case:
        buffer = peers.torchrl_memmap(data.halfcheetah().to_numpy(), SIZE, PrioritizedSampler(data.STEPS, 0.6, 0.4))
        priority = torch.from_numpy(PRIORITY).float()

        def step() -> object:
            batch = buffer.sample()
            buffer.update_priority(batch["index"], priority)
            return batch

        return Case(step)

    return {"PrioritizedSampler": case}


def cpprb() -> Builders:
    def case() -> Case:
        buffer = peers.cpprb(data.halfcheetah().to_numpy(), prioritized=True)

        def step() -> object:
            batch = buffer.sample(SIZE, 0.4)
            buffer.update_priorities(batch["indexes"], PRIORITY)
            return batch

        return Case(step)

    return {"PrioritizedReplayBuffer": case}


def tianshou() -> Builders:
    def case() -> Case:
        buffer = peers.tianshou(data.halfcheetah().to_numpy(), prioritized=True)

        def step() -> object:
            batch, index = buffer.sample(SIZE)
            buffer.update_weight(index, PRIORITY)
            return batch

        return Case(step)

    return {"PrioritizedReplayBuffer": case}


def note() -> str:
    return (
        "TorchRL keeps its priorities in a compiled extension that does not load with torch 2.13. An older torch is"
        " published on PyPI with CUDA alone, several GB, so that it is not timed here."
    )


OURS = "rlds: sample and update"
GROUP = Group(
    "prioritised: a batch of 256 and its update",
    {"rlds": rlds, "torchrl": torchrl, "cpprb": cpprb, "tianshou": tianshou},
    (
        Row("prioritised, sample and update", OURS, None, 260, "at most"),
        Row("", OURS, "cpprb: PrioritizedReplayBuffer", 2.8),
        Row("", OURS, "tianshou: PrioritizedReplayBuffer", 1.8),
        Row("", OURS, "torchrl: PrioritizedSampler", None),
        Row("with lag 8", "rlds: sample and update, lag 8", "cpprb: PrioritizedReplayBuffer", None),
    ),
    note=note,
)
