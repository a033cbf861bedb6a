"""The face of a room: an ``__init__`` that lists what other rooms use, and imports each name when it is first used.

::

    if TYPE_CHECKING:
        from rlds_cli.homes.homes import Home
        from rlds_cli.homes import exclusive, writing

    __all__ = ["Home", "exclusive", "writing"]

    lazy(__name__, {"homes": "Home", "locks": "exclusive writing"})

A name of a face is never that of a module of the room: importing the module would put it in the name's place.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def lazy(room: str, modules: Mapping[str, str]) -> None:
    """Let a package import its names when they are first used.

    Parameters
    ----------
    room : str
        ``__name__`` of the package.
    modules : mapping
        Modules, relative to the package (``.store.frames`` is in the room beside it), and the names of each, separated
        by spaces.
    """
    face = sys.modules[room]
    homes = {name: f".{module}" for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name], room), name)
        setattr(face, name, value)
        return value

    vars(face).update(__getattr__=load, __dir__=lambda: sorted(homes))
