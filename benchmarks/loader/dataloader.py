"""Through PyTorch's DataLoader, as Lightning and others read."""

from __future__ import annotations

from typing import Any

import numpy as np

from loader import data, peers
from loader.cases import Builders, Call, Case, Group, Row, batches

SIZE = 256


def rlds() -> Builders:
    def through(workers: int) -> Case:
        from torch.utils.data import DataLoader

        from rlds_cli.loader import Loader

        loader = Loader(data.halfcheetah(), SIZE)
        iterator = iter(DataLoader(loader.as_torch(), batch_size=None, num_workers=workers))
        return Case(lambda: next(iterator))

    return {
        "plain iterator": lambda: Case(batches(data.halfcheetah(), SIZE)),
        "as_torch, no workers": lambda: through(0),
        "as_torch, 2 workers": lambda: through(2),
    }


class Items:
    """A map-style dataset over mapped arrays: one transition at a time."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return data.STEPS

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        return {name: torch.from_numpy(np.array(values[index])) for name, values in self.arrays.items()}


class Batches(Items):
    """The same, a batch at a time: what a careful script does."""

    def __getitem__(self, index: Any) -> dict[str, Any]:
        import torch

        return {name: torch.from_numpy(values[np.asarray(index)]) for name, values in self.arrays.items()}


def _arrays() -> dict[str, np.ndarray]:
    return peers.mapped(lambda: data.halfcheetah().to_numpy(), data.HOME / "arrays")


def by_hand() -> Builders:
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    def endless(loader: Any) -> Call:
        def calls() -> Any:
            while True:
                yield from loader

        iterator = calls()
        return lambda: next(iterator)

    def items(workers: int) -> Case:
        return Case(endless(DataLoader(Items(_arrays()), SIZE, shuffle=True, num_workers=workers)))

    def whole(workers: int) -> Case:
        sampler = BatchSampler(RandomSampler(range(data.STEPS)), SIZE, drop_last=True)
        return Case(endless(DataLoader(Batches(_arrays()), None, sampler=sampler, num_workers=workers)))

    return {
        "map-style, no workers": lambda: items(0),
        "map-style, 2 workers": lambda: items(2),
        "map-style by batches, no workers": lambda: whole(0),
        "map-style by batches, 2 workers": lambda: whole(2),
    }


GROUP = Group(
    "PyTorch's DataLoader, batches of 256 transitions",
    {"rlds": rlds, "by hand": by_hand},
    (
        Row("as_torch(), no workers", "rlds: as_torch, no workers", "rlds: plain iterator", 2, "at most"),
        Row("", "rlds: as_torch, no workers", "by hand: map-style, no workers", None),
        Row("as_torch(), 2 workers", "rlds: as_torch, 2 workers", "by hand: map-style, 2 workers", 4),
        Row("", "rlds: as_torch, 2 workers", "by hand: map-style by batches, 2 workers", None),
    ),
    only_once=True,
)
