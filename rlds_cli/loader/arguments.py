"""The arguments of a `Loader` beside the dataset, the batch size and the backend, for type checkers.

They know by the backend what a batch holds: `Loader` has an overload for each, which takes these arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from rlds_cli.loader.build import Transform
from rlds_cli.loader.fields.fields import Chosen
from rlds_cli.loader.opening import LiveArgument
from rlds_cli.loader.samplers import Sampler
from rlds_cli.loader.samplers.uniform import WarmUp
from rlds_cli.loader.windows.windows import Window

Scalars = Literal["B1", "B"]


class Arguments(TypedDict, total=False):
    """Keyword arguments, see `Loader`."""

    window: Window
    sampler: Sampler
    fields: Chosen | None
    transform: Transform | Sequence[Transform]
    dtype: str | None
    device: Any
    scalars: Scalars
    seed: int
    steps: int | None
    rank: int | None
    world_size: int | None
    memory: str | int | None
    live: LiveArgument
    warm_up: WarmUp | None
    prefetch: int | None
