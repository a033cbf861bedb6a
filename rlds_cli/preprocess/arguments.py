"""Arguments of built-in functions, compared with what their signatures say."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess import traits

_KINDS: Mapping[Any, tuple[type, str]] = {
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    str: (str, "a text"),
}


def check(function: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArgument where a built-in function is given what its annotations do not allow."""
    if not traits.of(function).version:
        return
    hints = get_type_hints(getattr(function, "func", function))
    for name, value in args.items():
        if name in hints and name != traits.SOURCE and not _allowed(value, hints[name]):
            called = getattr(getattr(function, "func", function), "__name__", "")
            text = isinstance(value, Real) and _allowed("", hints[name])
            hint = f"as a text: --arg '{name}=\"{value}\"'" if text else None
            raise InvalidArgument(f"{called}: {name}={value!r} is not {_said(hints[name])}.", hint=hint)


def _allowed(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_allowed(value, h) for h in inner)
    if origin is Literal:
        return isinstance(value, str)  # which ones there are the function itself says
    if origin is Sequence:
        return isinstance(value, list | tuple | np.ndarray) and all(_allowed(v, inner[0]) for v in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _allowed(k, inner[0]) and _allowed(v, inner[1]) for k, v in value.items()
        )
    if hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint in _KINDS:
        return isinstance(value, _KINDS[hint][0]) and not isinstance(value, bool)
    return True


def _said(hint: Any) -> str:
    """What an annotation allows, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        literal = [value for h in inner if get_origin(h) is Literal for value in get_args(h)]
        others = [_said(h) for h in inner if h is not type(None) and get_origin(h) is not Literal]
        return " or ".join([*([f"one of {', '.join(map(str, literal))}"] if literal else []), *others])
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is Sequence:
        return f"a list, each {_said(inner[0])}"
    if origin is Mapping:
        return "a mapping of texts to texts"
    return "true or false" if hint is bool else _KINDS[hint][1] if hint in _KINDS else str(hint)
