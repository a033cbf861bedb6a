"""``where=``: Python comparisons of episode columns, parsed and never executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import reduce
from itertools import pairwise
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
}
_COMBINE_FLAGS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_LOGICAL: dict[type[ast.boolop], Callable[[Any, Any], Any]] = {ast.And: np.logical_and, ast.Or: np.logical_or}

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
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        why = e.msg if isinstance(e, SyntaxError) else str(e) or "it is nested too deeply"
        raise InvalidExpression(f'"{text}" is not an expression: {why}', hint=_example()) from e
    episodes = len(next(iter(columns.values())))
    known = _Numbered(columns, np.arange(episodes) if numbers is None else numbers)
    try:
        with np.errstate(all="ignore"):  # a column divided by one with zeros has infinities, which compare as such
            result = np.asarray(_value(tree, text, known))
    except ZeroDivisionError as e:
        raise InvalidExpression(f'"{text}" divides by zero.', hint=_example()) from e
    except RecursionError as e:
        raise InvalidExpression(f'"{text}" is nested too deeply.', hint=_example()) from e
    except (TypeError, ValueError, OverflowError, np.exceptions.DTypePromotionError) as e:
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
            return -_number(operand, text, columns)
        case ast.BoolOp(op=op, values=values):
            return reduce(_LOGICAL[type(op)], (np.asarray(_value(v, text, columns), bool) for v in values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMBINE:
            return _COMBINE[type(op)](_number(left, text, columns), _number(right, text, columns))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMBINE_FLAGS:
            return _COMBINE_FLAGS[type(op)](_value(left, text, columns), _value(right, text, columns))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(v, text, columns) for v in (left, *others)]
            return reduce(np.logical_and, (_compare(o, a, b) for o, (a, b) in zip(ops, pairwise(values), strict=True)))
    raise InvalidExpression(f'"{text}": {ast.unparse(node)} is not allowed there.', hint=_example())


def _number(node: ast.expr, text: str, columns: Mapping[str, Array]) -> Any:
    """The value of an operand of arithmetic: a text times a number would be as long as anybody likes."""
    value = _value(node, text, columns)
    kind = np.asarray(value).dtype.kind
    is_text = kind not in "biufO" or (kind == "O" and any(isinstance(v, str) for v in np.asarray(value).flat))
    if isinstance(value, list) or is_text:
        raise InvalidExpression(f'"{text}": {ast.unparse(node)} is no number.', hint=_example())
    return value


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
