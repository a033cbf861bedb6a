"""``where=``: Python comparisons of episode columns, parsed and never executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from rlds_cli.errors import InvalidExpression
from rlds_cli.ted import Array, BoolArray, IntArray

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMBINE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_MAX_LENGTH = 1000
_NUMBER = "episode"


def episodes_where(text: str, columns: Mapping[str, Array], numbers: IntArray | None = None) -> BoolArray:
    """Which episodes fulfil ``text``, such as ``"total_reward > 3000 and length >= 500"``.

    Names are episode columns, and ``episode`` is the number of the episode: ``numbers`` [n], or 0 to n - 1. There are
    numbers, strings, True and False, the comparisons (also chained, and ``in`` a tuple), ``and or not & |`` and
    ``+ - * /``.

    Raises
    ------
    InvalidExpression
        For anything else; the text is parsed, never executed.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidExpression(f"An expression of {len(text):,} characters; at most {_MAX_LENGTH:,}.")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as e:
        why = e.msg if isinstance(e, SyntaxError) else e
        raise InvalidExpression(f'"{text}" is not an expression: {why}', hint=_example()) from e
    episodes = len(next(iter(columns.values())))
    known = _Numbered(columns, np.arange(episodes) if numbers is None else numbers)
    try:
        result = np.asarray(_value(tree, text, known))
    except (TypeError, np.exceptions.DTypePromotionError) as e:
        raise InvalidExpression(f'"{text}" compares what cannot be compared: {e}', hint=_example()) from e
    if result.dtype == object and all(v is None or isinstance(v, bool) for v in result.flat):
        result = result.astype(bool)  # flags, some of which are missing
    if result.dtype != bool or result.shape not in ((episodes,), ()):
        raise InvalidExpression(f'"{text}" does not say yes or no for each episode.', hint=_example())
    return np.broadcast_to(result, (episodes,)).copy()


class _Numbered(Mapping[str, Array]):
    """Columns, and the numbers of the episodes where no column has their name."""

    def __init__(self, columns: Mapping[str, Array], numbers: IntArray) -> None:
        self._columns, self._numbers = columns, numbers

    def __getitem__(self, name: str) -> Array:
        return self._numbers if name == _NUMBER and name not in self._columns else self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name == _NUMBER or name in self._columns

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((_NUMBER, *self._columns))

    def __len__(self) -> int:
        return len(dict.fromkeys(self))


def _example() -> str:
    return 'as in "total_reward > 3000 and length >= 500"'


def _value(node: ast.expr, text: str, columns: Mapping[str, Array]) -> Any:
    match node:
        case ast.Name(id=name):
            return _column(name, columns)
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return [_value(e, text, columns) for e in elements]
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            return ~np.asarray(_value(operand, text, columns), bool)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, text, columns)
        case ast.BoolOp(op=op, values=values):
            parts = [np.asarray(_value(v, text, columns), bool) for v in values]
            return (np.logical_and if isinstance(op, ast.And) else np.logical_or).reduce(parts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMBINE:
            return _COMBINE[type(op)](_value(left, text, columns), _value(right, text, columns))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(v, text, columns) for v in (left, *others)]
            return np.logical_and.reduce([_compare(o, a, b) for o, a, b in zip(ops, values, values[1:], strict=False)])
    raise InvalidExpression(f'"{text}": {ast.unparse(node)} is not allowed there.', hint=_example())


def _compare(op: ast.cmpop, a: Any, b: Any) -> Any:
    if isinstance(op, ast.In):
        return np.isin(a, b)
    if isinstance(op, ast.NotIn):
        return ~np.isin(a, b)
    if type(op) not in _COMPARE:
        raise InvalidExpression(f"{type(op).__name__} is not a comparison of values.", hint=_example())
    return _COMPARE[type(op)](a, b)


def _column(name: str, columns: Mapping[str, Array]) -> Array:
    if name in columns:
        return columns[name]
    close = get_close_matches(name, columns, 1)
    did_you_mean = f' Did you mean "{close[0]}"?' if close else ""
    raise InvalidExpression(f'There is no episode column "{name}".{did_you_mean}  Columns: {", ".join(columns)}')
