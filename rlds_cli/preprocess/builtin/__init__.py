"""Built-in functions by name: ``rlds preprocess ID --fn normalise``, or imported and called; and how one is declared.

Each takes one whole episode, changes and returns it; ``--arg`` and ``args=`` set its arguments. If the loader has an
equivalent, prefer that: a copy on disk pays off if other programs read it, or if the work is repeated often. The
decorator `builtin` gives a function its version, and a hook that says which fields and episodes it needs.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from rlds_cli.base.text import closest
from rlds_cli.errors import InvalidArgument

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

F = TypeVar("F", bound=Callable[..., Any])

SOURCE = "source"  # a parameter of this name without a default receives the dataset
_TRAITS = "__rlds_traits__"
_KINDS: Mapping[Any, tuple[type, str]] = {
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    str: (str, "a text"),
}
# Name -> module of this package.
MODULES: Mapping[str, str] = {
    "normalise": "fields",
    "cast": "fields",
    "return_to_go": "rewards",
    "scale_reward": "rewards",
    "sparsify_reward": "rewards",
    "reward_from_goal": "rewards",
    "ogbench_task": "rewards",
    "resize": "frames",
    "crop": "frames",
    "grayscale": "frames",
    "encode": "frames",
    "select_fields": "fields",
    "rename_fields": "fields",
    "concatenate": "fields",
    "select_episodes": "fields",
    "top_episodes": "fields",
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
        if p.name != SOURCE
    )
    summary = (function.__doc__ or "").partition("\n")[0].replace("``", "")
    return Builtin(name, arguments, summary, traits_of(function).loader)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The input and output of a built-in function, known before it is called.

    Parameters
    ----------
    dataset : Dataset
        The episodes to process.
    reads : tuple of str, optional
        Names of the fields that it receives, as ``fields=``; None for all.
    carried : mapping, optional
        Fields to carry over without reading them: name in the source to name in the result. None for all, under their
        own names.
    decoded : tuple of str
        Frames to store as arrays even if they are unchanged.
    """

    dataset: Dataset
    reads: tuple[str, ...] | None = None
    carried: Mapping[str, str] | None = None
    decoded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traits:
    """The ``version`` of a built-in function, raised when its output changes, and its equivalent in a ``loader``.

    ``prepare(dataset, **arguments)`` checks the arguments and returns a `Prepared`.
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


def traits_of(function: Callable[..., Any]) -> Traits:
    """Return the traits of a function; empty for a user's function."""
    traits = getattr(getattr(function, "func", function), _TRAITS, None)
    return traits if isinstance(traits, Traits) else Traits()


def complete(function: Callable[..., Any], dataset: Dataset, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``args``, with the dataset added if the function has a parameter ``source``.

    Raises
    ------
    TypeError
        The function cannot be called with them.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions built into Python have no signature
        return dict(args)
    given, asked = dict(args), signature.parameters.get(SOURCE)
    first = next(iter(signature.parameters.values()), None)
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if asked is not None and asked is not first and asked.default is asked.empty and asked.kind in by_name:
        given.setdefault(SOURCE, dataset)
    signature.bind(None, **given)
    return given


def prepare(function: Callable[..., Any], dataset: Dataset, args: Mapping[str, Any]) -> Prepared:
    """Return the input and output of a function for ``dataset``; a user's function receives all of it.

    Raises
    ------
    RldsError
        A built-in function cannot process the dataset; the message says why.
    """
    hook = traits_of(function).prepare
    if hook is None:
        return Prepared(dataset)
    bound = inspect.signature(function).bind(None, **complete(function, dataset, args))
    bound.apply_defaults()
    _, *given = bound.arguments.items()
    return hook(dataset, **{name: value for name, value in given if name != SOURCE})


def check(function: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArgument if an argument of a built-in function does not match its annotation."""
    if not traits_of(function).version:
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
        return isinstance(value, str)  # the function checks the values itself
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
    """Describe in words which values an annotation allows."""
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
