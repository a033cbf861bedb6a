"""Batches of 256 transitions drawn with replacement: a million steps, 17/6 float32."""

from __future__ import annotations

import numpy as np

from loader import data, kernels, peers
from loader.cases import Builders, Case, Group, Row, batches

SIZE, AT_ONCE = 256, 56


def rlds() -> Builders:
    ds = data.halfcheetah()
    return {
        "contiguous": lambda: Case(batches(ds, SIZE)),
        "NumPy arrays": lambda: Case(batches(ds, SIZE, backend="numpy")),
        "normalised": lambda: Case(_normalised()),
    }


def _normalised() -> object:
    from rlds_cli.loader import Normalize

    ds = data.halfcheetah()
    return batches(ds, SIZE, transform=Normalize(ds))


def torchrl() -> Builders:
    from torchrl.data.replay_buffers.samplers import RandomSampler

    arrays = data.halfcheetah().to_numpy()
    return {
        "memmap": lambda: Case(peers.torchrl_memmap(arrays, SIZE, RandomSampler()).sample),
        "memmap, prefetch 2": lambda: Case(peers.torchrl_memmap(arrays, SIZE, RandomSampler(), prefetch=2).sample),
    }


def tensordict() -> Builders:
    import torch

    def indexed() -> Case:
        td = peers.tensordict(data.halfcheetah().to_numpy()).memmap_(prefix=peers.scratch())
        return Case(lambda: td[torch.randint(data.STEPS, (SIZE,))])

    return {"memmap, indexed": indexed}


def cpprb() -> Builders:
    def uniform() -> Case:
        buffer = peers.cpprb(data.halfcheetah().to_numpy())
        return Case(lambda: buffer.sample(SIZE))

    return {"ReplayBuffer": uniform}


def tianshou() -> Builders:
    def uniform() -> Case:
        buffer = peers.tianshou(data.halfcheetah().to_numpy())
        return Case(lambda: buffer.sample(SIZE))

    return {"ReplayBuffer": uniform}


def rlox() -> Builders:
    def uniform() -> Case:
        buffer, seeds = peers.rlox(data.halfcheetah().to_numpy()), peers.seeds()
        return Case(lambda: buffer.sample(SIZE, next(seeds)))

    return {"OfflineDatasetBuffer": uniform}


def flashbax() -> Builders:
    return {"trajectory buffer": lambda: Case(peers.flashbax_batches(data.halfcheetah().to_numpy(), SIZE))}


def by_hand() -> Builders:
    return {
        "NumPy dict, take": lambda: Case(peers.take(data.halfcheetah().to_numpy(), SIZE)),
        "NumPy dict, fancy index": lambda: Case(peers.fancy(data.halfcheetah().to_numpy(), SIZE)),
    }


def limit() -> Builders:
    def columns() -> Case:
        arrays = data.halfcheetah().to_numpy()
        return Case(kernels.rows([(values, 0) for values in arrays.values()], SIZE, AT_ONCE))

    def records() -> Case:
        content = np.ones((data.STEPS, 168), np.uint8)
        return Case(kernels.records(content, (68, 68, 24, 4, 1, 1, 1), SIZE, AT_ONCE))

    return {
        "packed take": lambda: Case(peers.packed_take(data.halfcheetah().to_numpy(), SIZE)),
        "C, columns, 56 batches a call": columns,
        "C, packed records, 56 batches a call": records,
    }


CONTIGUOUS = "rlds: contiguous"
GROUP = Group(
    "batches of 256 transitions, uniform",
    {
        "rlds": rlds,
        "torchrl": torchrl,
        "tensordict": tensordict,
        "cpprb": cpprb,
        "tianshou": tianshou,
        "rlox": rlox,
        "flashbax": flashbax,
        "by hand": by_hand,
        "limit": limit,
    },
    (
        Row("transitions, contiguous", CONTIGUOUS, "torchrl: memmap", 12),
        Row("", CONTIGUOUS, "tensordict: memmap, indexed", None),
        Row("", CONTIGUOUS, "cpprb: ReplayBuffer", 2.7),
        Row("", CONTIGUOUS, "tianshou: ReplayBuffer", 2.7),
        Row("", CONTIGUOUS, "rlox: OfflineDatasetBuffer", 1.3),
        Row("", CONTIGUOUS, "flashbax: trajectory buffer", None),
        Row("", CONTIGUOUS, "by hand: NumPy dict, take", 1),
        Row("", CONTIGUOUS, "limit: packed take", 1.4, "at most"),
        Row("", CONTIGUOUS, "limit: C, columns, 56 batches a call", None, "at most"),
    ),
)
