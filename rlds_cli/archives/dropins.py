"""Interfaces of other libraries, for scripts written for them: `rlds_cli.interop`, with a module for each."""

from typing import Any

from rlds_cli.archives.libraries import DROPINS

__path__: list[str] = []  # `rlds_cli.interop.NAME` is an alias, see `rlds_cli.aliases`
_NAMES = ("record", *DROPINS)


def __dir__() -> list[str]:
    return sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"rlds_cli.interop.{name}")
