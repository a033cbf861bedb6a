"""Built-in functions by name: ``rlds preprocess ID --fn normalise``, or imported and called.

Each takes one whole episode, changes and returns it; ``--arg`` and ``args=`` set its arguments. If the loader has an
equivalent, prefer that: a copy on disk pays off if other programs read it, or if the work is repeated often.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rlds_cli.preprocess import traits
from rlds_cli.text import closest

# Name -> module of this package.
MODULES: Mapping[str, str] = {
    "normalise": "fields",
    "cast": "fields",
    "return_to_go": "rewards",
    "scale_reward": "rewards",
    "sparsify_reward": "rewards",
    "reward_from_goal": "rewards",
    "ogbench_task": "episodes",
    "resize": "frames",
    "crop": "frames",
    "grayscale": "frames",
    "encode": "frames",
    "select_fields": "fields",
    "rename_fields": "fields",
    "concatenate": "fields",
    "select_episodes": "episodes",
    "top_episodes": "episodes",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a built-in function. If it is ``required``, its ``default`` is None."""

    name: str
    required: bool
    default: Any


@dataclass(frozen=True, slots=True)
class Builtin:
    """A built-in function: a one-line summary, and the equivalent in the loader, if there is one."""

    name: str
    arguments: tuple[Argument, ...]
    summary: str
    loader: str


def get(name: str) -> Callable[..., Any] | None:
    """Return the built-in function of this name, in which ``-`` stands for ``_``; None if there is none."""
    module = MODULES.get(name.replace("-", "_"))
    if module is None:
        return None
    function: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), name.replace("-", "_"))
    return function


def like(name: str) -> str | None:
    """Return the most similar name, if one is similar enough."""
    return closest(name.replace("-", "_"), MODULES)


def catalogue() -> tuple[Builtin, ...]:
    """List all built-in functions, grouped by purpose.

    >>> [b.name for b in catalogue()][:2]
    ['normalise', 'cast']
    """
    return tuple(_describe(name) for name in MODULES)


def _describe(name: str) -> Builtin:
    function = get(name)
    assert function is not None
    _, *parameters = inspect.signature(function).parameters.values()
    arguments = tuple(
        Argument(p.name, p.default is p.empty, None if p.default is p.empty else p.default)
        for p in parameters
        if p.name != traits.SOURCE
    )
    summary = (function.__doc__ or "").partition("\n")[0].replace("``", "")
    return Builtin(name, arguments, summary, traits.of(function).loader)
