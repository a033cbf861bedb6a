"""Each transition once per epoch; and float64 observations, nine fields, cast to float32."""

from __future__ import annotations

from loader import data, peers
from loader.cases import Builders, Call, Case, Group, Row, batches

SIZE = 256
NINE = ("info/qpos", "info/qvel")


def rlds() -> Builders:
    from rlds_cli.loader import Shuffled

    return {
        "shuffled": lambda: Case(batches(data.halfcheetah(), SIZE, sampler=Shuffled(), steps=1 << 40)),
        "nine fields, float64 to float32": lambda: Case(batches(data.ant(), SIZE, fields=[..., *NINE])),
        "nine fields, float64 kept": lambda: Case(batches(data.ant(), SIZE, fields=[..., *NINE], dtype=None)),
    }


def _nine() -> dict[str, object]:
    ds = data.ant()
    return ds.to_numpy() | ds.to_numpy(fields=NINE)


def torchrl() -> Builders:
    from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement

    def cast() -> Call:
        import torch

        buffer = peers.torchrl_memmap(_nine(), SIZE, RandomSampler())
        return lambda: buffer.sample().apply(lambda x: x.float() if x.dtype == torch.float64 else x)

    arrays = data.halfcheetah().to_numpy()
    return {
        "memmap, without replacement": lambda: Case(
            peers.torchrl_memmap(arrays, SIZE, SamplerWithoutReplacement()).sample
        ),
        "nine fields, cast": lambda: Case(cast()),
    }


def limit() -> Builders:
    return {
        "packed take": lambda: Case(peers.packed_take(data.halfcheetah().to_numpy(), SIZE)),
        "packed take of nine float32 fields": lambda: Case(peers.packed_take(_floats(), SIZE)),
    }


def _floats() -> dict[str, object]:
    return {name: x.astype("float32") if x.dtype == "float64" else x for name, x in _nine().items()}


GROUP = Group(
    "the same shuffled; float64 observations [27], nine fields, cast to float32",
    {"rlds": rlds, "torchrl": torchrl, "limit": limit},
    (
        Row("shuffled", "rlds: shuffled", "torchrl: memmap, without replacement", 12),
        Row("", "rlds: shuffled", "limit: packed take", None, "at most"),
        Row("nine fields, cast", "rlds: nine fields, float64 to float32", "torchrl: nine fields, cast", 9),
        Row("", "rlds: nine fields, float64 to float32", "limit: packed take of nine float32 fields", None, "at most"),
    ),
)
