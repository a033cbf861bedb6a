"""The functions of a pipeline, each with its unit, its kind of arrays and its share of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import arguments, functions, task
from rlds_cli.preprocess.functions import Function

Functions = Sequence[Callable[..., Any] | str]
Several = str | None | Sequence[str | None]  # one for all functions, or one for each


@dataclass(frozen=True, slots=True)
class Stage:
    """One function of a pipeline; ``unit`` and ``span`` as its decorator says unless given."""

    function: Function
    unit: str
    span: tuple[int, int]
    arrays: str
    args: Mapping[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """What its result depends on, but for what it is given."""
        return task.identity(self.function, self.args, self.unit, self.span, self.arrays)


def stages(
    fns: Functions,
    *,
    unit: Several,
    span: tuple[int | None, int | None],
    arrays: Several,
    args: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[Stage, ...]:
    """Find the functions, and give each what is its.

    Parameters
    ----------
    unit, arrays : str or sequence of str
        One for all, or one for each.
    args : mapping or sequence of mappings
        One mapping for each; or one for all, of which each function gets what it takes by name. A name with the
        function's name or number (from 1) before it, ``norm.eps`` or ``2.eps``, is for that one alone.

    Raises
    ------
    PreprocessError
        There are no functions; one is not found; there is not one of each; or an argument is taken by none.
    """
    if not fns:
        raise PreprocessError("There is no function in the list.", hint="a pipeline is a list of functions")
    found = [functions.find(fn) for fn in fns]
    made = []
    for f, kind, what, given in zip(
        found, _each("unit", unit, found), _each("arrays", arrays, found), _shares(args, found), strict=True
    ):
        assert f.call is not None
        arguments.check(f.call, given)
        own, reach = task.unit_of(f, kind, span if (kind or f.unit) == "window" else (None, None))
        made.append(Stage(f, own, reach, what or "numpy", given))
    if span != (None, None) and not any(s.unit == "window" for s in made):
        raise PreprocessError("history= and future= are for unit window, which no function has.", hint="unit=window")
    return tuple(made)


@contextmanager
def importable(made: Sequence[Stage]) -> Iterator[None]:
    """The modules of all functions can be imported meanwhile."""
    with ExitStack() as held:
        for stage in made:
            held.enter_context(functions.importable(stage.function.path))
        yield


def _each(name: str, given: Several, found: Sequence[Function]) -> Sequence[str | None]:
    if given is None or isinstance(given, str):
        return [given] * len(found)
    if len(given) not in (1, len(found)):
        raise PreprocessError(
            f"{len(found)} functions and {len(given)} of {name}.", hint="one for all, or one for each"
        )
    return list(given) * (len(found) // len(given))


def _shares(
    args: Mapping[str, Any] | Sequence[Mapping[str, Any]], found: Sequence[Function]
) -> Sequence[dict[str, Any]]:
    if not isinstance(args, Mapping):
        if len(args) != len(found):
            raise PreprocessError(f"{len(found)} functions and {len(args)} mappings of arguments.")
        return [dict(a) for a in args]
    shares: list[dict[str, Any]] = [{} for _ in found]
    for key, value in args.items():
        which, _, name = key.rpartition(".")
        takers = [i for i, f in enumerate(found) if _meant(which, i, f) and (which or _takes(f, name))]
        if not takers:
            names = ", ".join(f"{i + 1}. {f.name}" for i, f in enumerate(found))
            raise PreprocessError(
                f"No function takes the argument {key}: {names}.",
                hint="FUNCTION.NAME or NUMBER.NAME is for one of them",
            )
        for i in takers:
            shares[i][name] = value
    return shares


def _meant(which: str, number: int, f: Function) -> bool:
    return which in ("", str(number + 1), f.name)


def _takes(f: Function, name: str) -> bool:
    assert f.call is not None
    try:
        parameters = inspect.signature(f.call).parameters
    except (TypeError, ValueError):
        return True
    first = next(iter(parameters), None)
    return (name in parameters and name != first) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
