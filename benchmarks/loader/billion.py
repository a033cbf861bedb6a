"""A thousand million steps in a million episodes, in files that are holes but for a stretch in the middle."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from loader import data
from loader.cases import Builders, Case, Figure, Group, Row, batches
from loader.memory import MIB, memory

SIZE, SLICES, LENGTH = 256, 32, 64


def alone() -> Builders:
    """In a process of its own, for its memory."""

    def anonymous() -> Figure:
        import torch

        torch.zeros(1)
        batches(data.halfcheetah(), SIZE)()  # what the loader imports
        before = memory()
        call = batches(data.billion(), SIZE)
        for _ in range(7):
            call()
        grown = (memory().beyond(before).anonymous or 0) / MIB
        return Figure(lambda: grown if call else 0.0, "MiB", rounds=1)

    return {"anonymous memory": anonymous}


def rlds() -> Builders:
    from rlds_cli.loader import Shuffled, Slice, Uniform

    def opened() -> Figure:
        def measure() -> float:
            start = time.perf_counter()
            batches(data.billion(), SIZE)()
            return time.perf_counter() - start

        return Figure(measure, "s")

    def resident() -> Any:
        """All million episodes of the index, all their rows in the stretch that holds numbers."""
        stretch = np.arange(data.STRETCH.start, data.STRETCH.stop)
        return data.billion().select(episodes=np.resize(stretch, data.BILLION_EPISODES))

    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "uniform": (SIZE, {"sampler": Uniform()}),
        "shuffled": (SIZE, {"sampler": Shuffled(), "steps": 1 << 40}),
        "slices": (SLICES, {"window": Slice(LENGTH)}),
    }
    index = {"fields": ("step",), "backend": "numpy"}
    made: dict[str, Any] = {"open, first batch": opened}
    for name, (size, options) in ways.items():
        made[f"{name}, 1e6 steps"] = lambda s=size, o=options: Case(batches(data.halfcheetah(), s, **o))
        made[f"{name}, 1e9 steps"] = lambda s=size, o=options: Case(batches(resident(), s, **o))
    for name in ("uniform", "shuffled"):
        options = ways[name][1] | index
        made[f"index maths, {name}, 1e6 steps"] = lambda o=options: Case(batches(data.halfcheetah(), SIZE, **o))
        made[f"index maths, {name}, 1e9 steps"] = lambda o=options: Case(batches(data.billion(), SIZE, **o))
    return made


def _index(name: str) -> tuple[Row, Row]:
    figure = f"rlds: index maths, {name}, 1e9 steps"
    return (
        Row(f"index maths, {name}", figure, f"rlds: index maths, {name}, 1e6 steps", 3, "at most"),
        Row("", figure, None, 10, "at most"),
    )


GROUP = Group(
    "1e9 steps, 1e6 episodes",
    {"rlds alone": alone, "rlds": rlds},
    (
        Row("open, and the first batch", "rlds: open, first batch", None, 1, "at most"),
        Row("RssAnon without the imports", "rlds alone: anonymous memory", None, 100, "at most"),
        *_index("uniform"),
        *_index("shuffled"),
        *(
            Row(f"batch, {way}, resident rows", f"rlds: {way}, 1e9 steps", f"rlds: {way}, 1e6 steps", 1.5, "at most")
            for way in ("uniform", "shuffled", "slices")
        ),
    ),
)
