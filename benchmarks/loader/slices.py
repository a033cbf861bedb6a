"""Batches of 32 slices of 64 steps."""

from __future__ import annotations

from loader import data, kernels, peers
from loader.cases import Builders, Case, Group, Row, batches

SLICES, LENGTH = 32, 64


def rlds() -> Builders:
    from rlds_cli.loader import Slice

    ds = data.halfcheetah()
    return {
        "slices": lambda: Case(batches(ds, SLICES, window=Slice(LENGTH))),
        "slices, padded": lambda: Case(batches(ds, SLICES, window=Slice(LENGTH, after=LENGTH - 1))),
        "slices, NumPy arrays": lambda: Case(batches(ds, SLICES, window=Slice(LENGTH), backend="numpy")),
    }


def torchrl() -> Builders:
    from torchrl.data.replay_buffers.samplers import SliceSampler

    def sliced(cached: bool) -> Case:
        sampler = SliceSampler(slice_len=LENGTH, end_key=("next", "done"), cache_values=cached)
        return Case(peers.torchrl_memmap(data.halfcheetah().to_numpy(), SLICES * LENGTH, sampler).sample)

    return {"SliceSampler, cached": lambda: sliced(True), "SliceSampler": lambda: sliced(False)}


def rlox() -> Builders:
    def trajectories() -> Case:
        buffer, seeds = peers.rlox(data.halfcheetah().to_numpy()), peers.seeds()
        return Case(lambda: buffer.sample_trajectories(SLICES, LENGTH, next(seeds)))

    def sequences() -> Case:
        buffer, seeds = peers.rlox_sequences(data.halfcheetah().to_numpy()), peers.seeds()
        return Case(lambda: buffer.sample_sequences(SLICES, LENGTH, next(seeds)))

    return {"sample_trajectories": trajectories, "sample_sequences": sequences}


def flashbax() -> Builders:
    return {"trajectory buffer": lambda: Case(peers.flashbax_batches(data.halfcheetah().to_numpy(), SLICES, LENGTH))}


def limit() -> Builders:
    def columns() -> list[kernels.Column]:
        return [(values, 0) for values in data.halfcheetah().to_numpy().values()]

    return {
        "C memcpy": lambda: Case(kernels.windows(columns(), SLICES, LENGTH, fresh=True)),
        "C memcpy, outputs used again": lambda: Case(kernels.windows(columns(), SLICES, LENGTH)),
    }


OURS = "rlds: slices"
GROUP = Group(
    "batches of 32 slices of 64",
    {"rlds": rlds, "torchrl": torchrl, "rlox": rlox, "flashbax": flashbax, "limit": limit},
    (
        Row("slices", OURS, "torchrl: SliceSampler, cached", 18),
        Row("", OURS, "torchrl: SliceSampler", None),
        Row("", OURS, "rlox: sample_trajectories", 1.1),
        Row("", OURS, "rlox: sample_sequences", 1.1),
        Row("", OURS, "flashbax: trajectory buffer", None),
        Row("", OURS, "limit: C memcpy", 1.2, "at most"),
        Row("", OURS, "limit: C memcpy, outputs used again", None, "at most"),
        Row("slices, padded", "rlds: slices, padded", "torchrl: SliceSampler, cached", None),
    ),
)
