"""Prioritised batches of 256, and new priorities for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from loader import data, peers
from loader.cases import Builders, Case, Group, Row

SIZE, SLICES, LENGTH = 256, 32, 64
PRIORITY = np.random.default_rng(0).random(SIZE) + 1e-3


def rlds() -> Builders:
    from rlds_cli.loader import Loader, Prioritized, Slice

    def case(sampler: Prioritized, size: int = SIZE, **options: Any) -> Case:
        loader = Loader(data.halfcheetah(), size, sampler=sampler, **options)
        batches = iter(loader)

        def step() -> object:
            batch = next(batches)
            loader.update_priorities(batch, PRIORITY[:size])
            return batch

        return Case(step)

    return {
        "sample and update": lambda: case(Prioritized()),
        "sample and update, lag 8": lambda: case(Prioritized(lag=8)),
        "sample and update, NumPy arrays": lambda: case(Prioritized(), backend="numpy"),
        "slices": lambda: case(Prioritized(), SLICES, window=Slice(LENGTH)),
    }


def torchrl() -> Builders:
    import torch
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler, PrioritizedSliceSampler

    def case() -> Case:
        buffer = peers.torchrl_memmap(data.halfcheetah().to_numpy(), SIZE, PrioritizedSampler(data.STEPS, 0.6, 0.4))
        priority = torch.from_numpy(PRIORITY).float()

        def step() -> object:
            batch = buffer.sample()
            buffer.update_priority(batch["index"], priority)
            return batch

        return Case(step)

    def sliced() -> Case:
        sampler = PrioritizedSliceSampler(
            data.STEPS, 0.6, 0.4, slice_len=LENGTH, end_key=("next", "done"), cache_values=True
        )
        buffer = peers.torchrl_memmap(data.halfcheetah().to_numpy(), SLICES * LENGTH, sampler)
        priority = torch.from_numpy(PRIORITY[:SLICES].repeat(LENGTH)).float()

        def step() -> object:
            batch = buffer.sample()
            buffer.update_priority(batch["index"], priority)
            return batch

        return Case(step)

    return {"PrioritizedSampler": case, "PrioritizedSliceSampler": sliced}


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


def flashbax() -> Builders:
    import jax
    import jax.numpy as jnp

    def case(size: int, length: int) -> Case:
        state, sample, weigh = peers.flashbax(data.halfcheetah().to_numpy(), size, length, prioritized=True)
        keys = iter(jax.random.split(jax.random.key(0), 1 << 16))
        priority = jnp.asarray(PRIORITY[:size], jnp.float32)

        def step() -> object:
            nonlocal state
            batch = sample(state, next(keys))
            state = weigh(state, batch.indices, priority)
            return jax.block_until_ready(batch)

        return Case(step)

    return {"prioritised": lambda: case(SIZE, 1), "prioritised slices": lambda: case(SLICES, LENGTH)}


OURS = "rlds: sample and update"
GROUP = Group(
    "prioritised: a batch of 256 and its update",
    {"rlds": rlds, "torchrl": torchrl, "cpprb": cpprb, "tianshou": tianshou, "flashbax": flashbax},
    (
        Row("prioritised, sample and update", OURS, None, 260, "at most"),
        Row("", OURS, "cpprb: PrioritizedReplayBuffer", 2.8),
        Row("", OURS, "tianshou: PrioritizedReplayBuffer", 2.2),
        Row("", OURS, "torchrl: PrioritizedSampler", None),
        Row("", OURS, "flashbax: prioritised", None),
        Row("32 slices of 64", "rlds: slices", "torchrl: PrioritizedSliceSampler", None),
        Row("", "rlds: slices", "flashbax: prioritised slices", None),
        Row("with lag 8", "rlds: sample and update, lag 8", "cpprb: PrioritizedReplayBuffer", None),
    ),
)
