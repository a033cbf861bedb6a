"""Windows and samplers written as text, as on a command line: ``Slice(32, after=31)``, ``Shuffled``.

The text is parsed, never evaluated: a name that the loader knows, and literals.
"""

from __future__ import annotations

import ast
from difflib import get_close_matches
from typing import Any, cast

from rlds_cli import loader
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Sampler, Window

_WINDOWS = tuple(n for n in ("Transition", "Slice", "Offsets", "Episode") if n in loader.__all__)
_SAMPLERS = tuple(n for n in ("Uniform", "Shuffled", "Sequential", "Weighted", "Prioritized") if n in loader.__all__)


def window(text: str) -> Window:
    """Read a window.

    Parameters
    ----------
    text : str
        ``Transition(n_step=3)``, ``Slice(32)``; a name alone takes the defaults.

    Raises
    ------
    InvalidArgument
        It is no window, or one with arguments that it does not take.
    """
    return cast(Window, _read("window", text, _WINDOWS))


def sampler(text: str) -> Sampler:
    """Read a sampler: ``Uniform(by="episode")``, ``Shuffled``.

    Raises
    ------
    InvalidArgument
        It is no sampler, or one with arguments that it does not take.
    """
    return cast(Sampler, _read("sampler", text, _SAMPLERS))


def _read(what: str, text: str, known: tuple[str, ...]) -> Any:
    name, positional, named = _call(what, text)
    if name not in known:
        close = get_close_matches(name.capitalize(), known, 1)
        did_you_mean = f" Did you mean {close[0]}?" if close else ""
        raise InvalidArgument(f"{what} {text!r}: there is no {what} {name}.{did_you_mean}", hint=", ".join(known))
    try:
        return getattr(loader, name)(*positional, **named)
    except TypeError as e:
        raise InvalidArgument(f"{what} {text!r}: {str(e).replace('.__init__()', '()')}.") from None


def _call(what: str, text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name and arguments of ``Name``, or of ``Name(1, b=2)``."""
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
