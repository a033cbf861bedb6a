"""What a function says about itself beyond its code: that it is built in, what it reads, which episodes it takes.

Arguments of built-in functions, compared with what their signatures say.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from rlds_cli.errors import InvalidArgument

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

SOURCE = "source"  # a parameter of this name, without a default, is given the dataset
_TRAITS = "__rlds_traits__"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a function will do to a dataset, known before it is called.

    Parameters
    ----------
    dataset : Dataset
        The episodes that it takes.
    reads : tuple of str, optional
        Names of the fields that it is given, as ``fields=``; None for all.
    carried : mapping, optional
        Of the fields that it is not given, those that the result has: the name there by the name in the source. None
        for all of them, under their own names.
    decoded : tuple of str
        Frames that become arrays also where they come back as they were.
    """

    dataset: Dataset
    reads: tuple[str, ...] | None = None
    carried: Mapping[str, str] | None = None
    decoded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traits:
    """Of a built-in function: its ``version``, counted up when it makes other bytes, and how a ``loader`` does it.

    ``prepare(dataset, **arguments)`` checks the arguments and says what will be done, in a `Prepared`.
    """

    version: int = 0
    loader: str = ""
    prepare: Callable[..., Prepared] | None = None


def builtin(*, version: int, prepare: Callable[..., Prepared], loader: str = "") -> Callable[[F], F]:
    """Mark a function of whole episodes as built in; a decorator."""

    def mark(function: F) -> F:
        setattr(function, _TRAITS, Traits(version, loader, prepare))
        return function

    return mark


def of(function: Callable[..., Any]) -> Traits:
    """The traits of a function; those of a user's own say nothing."""
    traits = getattr(getattr(function, "func", function), _TRAITS, None)
    return traits if isinstance(traits, Traits) else Traits()


def complete(function: Callable[..., Any], dataset: Dataset, args: Mapping[str, Any]) -> dict[str, Any]:
    """``args``, and the dataset where the function asks for it.

    Raises
    ------
    TypeError
        It cannot be called with them.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some built into Python
        return dict(args)
    given = {**args, SOURCE: dataset} if SOURCE not in args and _asks(signature) else dict(args)
    signature.bind(None, **given)
    return given


def _asks(signature: inspect.Signature) -> bool:
    wanted = signature.parameters.get(SOURCE)
    if wanted is None or next(iter(signature.parameters)) == SOURCE:
        return False
    return wanted.default is wanted.empty and wanted.kind in (wanted.KEYWORD_ONLY, wanted.POSITIONAL_OR_KEYWORD)


def prepare(function: Callable[..., Any], dataset: Dataset, args: Mapping[str, Any]) -> Prepared:
    """What a function will do with ``dataset``; of a user's own is assumed that it takes all of it.

    Raises
    ------
    RldsError
        A built-in function cannot do that; the message says why.
    """
    hook = of(function).prepare
    if hook is None:
        return Prepared(dataset)
    bound = inspect.signature(function).bind(None, **complete(function, dataset, args))
    bound.apply_defaults()
    _, *given = bound.arguments.items()
    return hook(dataset, **{name: value for name, value in given if name != SOURCE})


_KINDS: Mapping[Any, tuple[type, str]] = {
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    str: (str, "a text"),
}


def check(function: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArgument where a built-in function is given what its annotations do not allow."""
    if not of(function).version:
        return
    hints = get_type_hints(getattr(function, "func", function))
    for name, value in args.items():
        if name in hints and name != SOURCE and not _allowed(value, hints[name]):
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
