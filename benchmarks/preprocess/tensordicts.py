"""What is applied to TensorDicts."""

from __future__ import annotations

from typing import Any

from preprocess.functions import MEAN, STD


def normalise_tensordict(td: Any) -> Any:
    """The same as TorchRL's users write it."""
    import torch

    mean, std = ({n: torch.from_numpy(v) for n, v in x.items()} for x in (MEAN, STD))
    new = td.exclude("observation", ("next", "observation"))
    for at in (("observation",), ("next", "observation")):
        o = td.get(at)
        new.set(at, torch.cat([(o.get(n) - mean[n]) / std[n] for n in mean], -1))
    return new
