"""Interfaces of other libraries, for scripts written for them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds_cli.interop import d3rlpy as d3rlpy
    from rlds_cli.interop import d4rl as d4rl
    from rlds_cli.interop import minari as minari
    from rlds_cli.interop import record as record
    from rlds_cli.interop import torchrl as torchrl

__all__ = ["d3rlpy", "d4rl", "minari", "record", "torchrl"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.{name}")
