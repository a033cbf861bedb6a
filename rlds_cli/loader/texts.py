"""Windows and samplers as text, as on a command line: ``Slice(32)``, ``Uniform``."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.samplers import Sampler
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.windows import Episode, Slice, Transition, Window

_WINDOWS = {kind.__name__: kind for kind in (Episode, Offsets, Slice, Transition)}


def parse_window(text: str) -> Window:
    """Read a window.

    Parameters
    ----------
    text : str
        ``Transition(n_step=3)``, ``Slice(32)``; a name alone takes the defaults.

    Raises
    ------
    InvalidArgument
        The text is not a window, or has arguments that the window does not take.
    """
    window: Window = _read("window", text, _WINDOWS)
    return window


def parse_sampler(text: str) -> Sampler:
    """Read a sampler: ``Uniform(by="episode")``, ``Shuffled``.

    Raises
    ------
    InvalidArgument
        The text is not a sampler, or has arguments that the sampler does not take.
    """
    from rlds_cli import loader  # whose face has the samplers

    public = {name: getattr(loader, name) for name in loader.__all__}
    samplers = {name: kind for name, kind in public.items() if is_dataclass(kind) and hasattr(kind, "over")}
    sampler: Sampler = _read("sampler", text, samplers)
    return sampler


def _read(what: str, text: str, known: Mapping[str, Any]) -> Any:
    name, positional, named = _call(what, text)
    if name not in known:
        near = did_you_mean(name.capitalize(), known)
        raise InvalidArgument(f"{what} {text!r}: there is no {what} {name}.{near}", hint=", ".join(known))
    try:
        return known[name](*positional, **named)
    except TypeError as e:
        raise InvalidArgument(f"{what} {text!r}: {str(e).replace('.__init__()', '()')}.") from None


def _call(what: str, text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Parse ``Name`` or ``Name(1, b=2)`` into a name and arguments."""
    wrong = InvalidArgument(
        f"{what} {text!r} is not a name with numbers, texts, lists or mappings.", hint='as in "Slice(32, after=31)"'
    )
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise wrong from None
    if isinstance(node, ast.Name):
        return node.id, [], {}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise wrong
    if any(k.arg is None for k in node.keywords):
        raise wrong
    try:
        named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        return node.func.id, [ast.literal_eval(a) for a in node.args], named
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise wrong from None
