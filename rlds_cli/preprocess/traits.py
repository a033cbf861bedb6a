"""What a function says about itself beyond its code: that it is built in, what it reads, which episodes it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

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
