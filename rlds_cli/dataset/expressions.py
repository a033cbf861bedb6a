"""Expressions of ``where=``: Python comparisons of episode columns, which are parsed and never executed.

Every part of an expression is a flag, a number or a text, for each episode or as a constant. Parts of different kinds
are not compared: ``length == 'x'`` is an error and not False. A missing value fulfils only ``!=``, ``not in`` and
``is None``.

A name that is not a word stands in backquotes: ```quality/idle_share` < 0.25``. Without them this would divide one
column by another, so an expression is refused in which a run of tokens is the name of a column.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import reduce
from itertools import pairwise, repeat
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import closest, did_you_mean
from rlds_cli.dataset.coded import Coded, CodedColumns
from rlds_cli.dataset.spelling import EXAMPLE, METHODS, QUOTE, parse, quoted
from rlds_cli.errors import InvalidExpression
from rlds_cli.ted import END_NAMES

Kind = Literal["flag", "number", "text", "missing", "list"]

MOST_CHARACTERS = 1_000_000  # more than 100,000 numbers of episodes
_NUMBER = "episode"
_SYNONYMS = {"return": "total_reward"}
_CLOSED = {"end": tuple(END_NAMES)}  # columns whose values are all known
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LOGICAL: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.BitAnd: np.logical_and,
    ast.BitOr: np.logical_or,
}
_METHODS: dict[str, Callable[[str, str], bool]] = dict(
    zip(
        METHODS,
        (
            str.__contains__,
            str.startswith,
            str.endswith,
            lambda text, pattern: _like(pattern).match(text) is not None,
        ),
        strict=True,
    )
)
_QUANTILE, _OTHER_QUANTILES = "quantile", ("percentile", "median", "nanquantile")
_EXACT = 2**53  # whole numbers below it are exact as float64
_WIDEST = 2.0**127  # whole numbers up to it are computed exactly
_WORDS: dict[Kind, str] = {
    "flag": "a flag",
    "number": "a number",
    "text": "a text",
    "missing": "a missing value",
    "list": "a list",
}
_OF_COLUMN = "as in total_reward > quantile(total_reward, 0.9)"
_PARENTHESES = "& and | need parentheses: (length > 100) & (end == 'cut')"


def episodes_where(
    text: str,
    columns: Mapping[str, Array],
    numbers: IntArray | None = None,
    whole: Mapping[str, Array] | None = None,
) -> BoolArray:
    """Return the mask of episodes that fulfil ``text``, such as ``"total_reward > 3000 and length >= 500"``.

    Names are episode columns. ``episode`` is the number of the episode: ``numbers`` [n], or 0 to n - 1; ``return`` is
    ``total_reward``. The text may hold numbers, strings, True, False and None, comparisons (also chained),
    ``and or not & | ~``, ``+ - * /``, and

    ``length in (100, 200)``
        one of several values; with ``not in`` none of them;
    ``'red' in task``, ``task.contains('red')``
        a text within a text column;
    ``task.startswith('pick')``, ``task.endswith('cube')``, ``task.like('pick%cube')``
        the beginning or the end of a text, or the whole of it, where ``%`` is any text and ``_`` any character;
    ``task is None``, ``task == None``
        an episode without a value;
    ``total_reward > quantile(total_reward, 0.9)``
        a quantile of a column, by linear interpolation as NumPy's: of all episodes of the dataset that have a value,
        ``whole``, also if ``columns`` are those of some of them;
    ```quality/idle_share` < 0.25``
        a column whose name is not a word, in backquotes.

    Raises
    ------
    InvalidExpression
        The text holds anything else, compares values of different kinds, names an unknown column, or has the name of
        a column that is not a word without backquotes.
    """
    if len(text) > MOST_CHARACTERS:
        size = f"The expression has {len(text):,} characters"
        raise InvalidExpression(f"{size}; at most {MOST_CHARACTERS:,} are allowed.", hint="ds.select(episodes=numbers)")
    tree = parse(text, columns)
    episodes = len(next(iter(columns.values())))
    known = _Numbered(columns, np.arange(episodes) if numbers is None else numbers)
    try:
        with np.errstate(all="ignore"):  # a column divided by one with zeros has infinities, which compare as such
            result = _Expression(text, known, columns if whole is None else whole).value(tree)
            if result.kind != "flag" and not (result.kind == "missing" and result.is_column):
                raise InvalidExpression(f'"{text}" is not true or false for each episode.', hint=EXAMPLE)
            return np.broadcast_to(np.asarray(result.values, bool), (episodes,)).copy()
    except ZeroDivisionError as e:
        raise InvalidExpression(f'"{text}" divides by zero.', hint=EXAMPLE) from e
    except RecursionError as e:
        raise InvalidExpression(f'"{text}" is nested too deeply.', hint=EXAMPLE) from e
    except (TypeError, ValueError, OverflowError, np.exceptions.DTypePromotionError) as e:
        raise InvalidExpression(f'"{text}" holds values that cannot be compared: {e}', hint=EXAMPLE) from e


def expression_of(episodes: Sequence[int]) -> str:
    """Return the expression that selects episodes by their numbers, which ascend: ``episode in [2, 5, 8]``.

    Three and more in a row become a range: ``2 <= episode <= 9 or episode in [20, 31]``.
    """
    numbers = np.asarray(episodes, np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    ranges = [f"{run[0]} <= {_NUMBER} <= {run[-1]}" for run in runs if len(run) > 2]
    single = [str(n) for run in runs if len(run) <= 2 for n in run]
    return " or ".join([*ranges, *([f"{_NUMBER} in [{', '.join(single)}]"] if single or not ranges else [])])


def _like(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of SQL's LIKE; `fnmatch` makes expressions that do not backtrack."""
    shell = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return re.compile(translate("".join(shell.get(c, c) for c in pattern)))


class _Numbered(CodedColumns):
    """Episode columns, their synonyms, and the numbers of the episodes unless a column is called ``episode``."""

    def __init__(self, columns: Mapping[str, Array], numbers: IntArray) -> None:
        self._columns, self._numbers = columns, numbers

    def __getitem__(self, name: str) -> Array:
        if name in self._columns:
            return self._columns[name]
        return self._numbers if name == _NUMBER else self._columns[_SYNONYMS[name]]

    def coded(self, name: str) -> Coded | None:
        """Return a column of texts by its values; None for a column of numbers or flags."""
        if name == _NUMBER and name not in self._columns:
            return None
        if isinstance(self._columns, CodedColumns):
            return self._columns.coded(name if name in self._columns else _SYNONYMS[name])
        return CodedColumns.coded(self, name)

    def __contains__(self, name: object) -> bool:
        return name == _NUMBER or name in self._columns or _SYNONYMS.get(str(name)) in self._columns

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((_NUMBER, *self._columns))

    def __len__(self) -> int:
        return len(dict.fromkeys(self))

    def spellings(self) -> list[str]:
        """Return all names that an expression may hold."""
        return [*self, *(name for name in _SYNONYMS if name in self)]


@dataclass(frozen=True, slots=True)
class _Value:
    """A part of an expression.

    ``values`` [n] or a constant; bool, numbers, or texts as objects with "" for missing ones. A list has a tuple of
    its elements. ``closed`` holds all values that a text column may have, if they are known. With ``codes`` [n], a text
    column has its different values and which of them are missing, [m]; an episode has the one at the place of its code.
    """

    node: ast.expr
    kind: Kind
    values: Any
    missing: Any = False
    closed: tuple[str, ...] = ()
    codes: Array | None = None

    @property
    def text(self) -> str:
        """The part as written."""
        return ast.unparse(self.node)

    @property
    def is_column(self) -> bool:
        """True for a value of each episode, False for a constant or a list."""
        return isinstance(self.values, np.ndarray)

    @property
    def is_constant(self) -> bool:
        """True for a value that no column has a part in."""
        return all(v.is_constant for v in self.values) if self.kind == "list" else not self.is_column

    @property
    def is_coded(self) -> bool:
        """True for a column by its different values, and for a list that has one."""
        return any(v.is_coded for v in self.values) if self.kind == "list" else self.codes is not None

    @property
    def spread(self) -> _Value:
        """The part with a value of each episode instead of codes."""
        if self.kind == "list":
            return replace(self, values=tuple(v.spread for v in self.values))
        if self.codes is None:
            return self
        return replace(self, values=self.values[self.codes], missing=self.missing[self.codes], codes=None)

    @property
    def as_number(self) -> _Value:
        """Return a flag as 0 or 1, with NaN where it is missing, and anything else as it is."""
        if self.kind != "flag":
            return self
        whole = self.values.astype(np.int64) if self.is_column else int(self.values)
        return _Value(self.node, "number", np.where(self.missing, np.nan, whole) if np.any(self.missing) else whole)


class _Expression:
    """Evaluates the parts of one expression."""

    def __init__(self, text: str, columns: _Numbered, whole: Mapping[str, Array]) -> None:
        self._text, self._columns, self._whole = text, columns, whole

    def value(self, node: ast.expr) -> _Value:
        """Evaluate a part."""
        match node:
            case ast.Name(id=name):
                return self._column(node, name)
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return _constant(node, value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return _Value(node, "list", tuple(map(self.value, elements)))
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
                return _Value(node, "flag", np.logical_not(self._flag(operand)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _Value(node, "number", _computed(operator.sub, 0, self._number(operand)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                values = _computed(_ARITHMETIC[type(op)], self._number(left), self._number(right))
                return _Value(node, "number", values)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _LOGICAL:
                return _Value(node, "flag", _LOGICAL[type(op)](*(self._flag(n, _PARENTHESES) for n in (left, right))))
            case ast.BoolOp(op=op, values=parts):
                return _Value(node, "flag", reduce(_LOGICAL[type(op)], map(self._flag, parts)))
            case ast.Compare(left=left, ops=ops, comparators=others):
                pairs = zip(ops, pairwise(map(self.value, (left, *others))), strict=True)
                return _Value(node, "flag", reduce(np.logical_and, (self._compare(op, a, b) for op, (a, b) in pairs)))
            case ast.Call(func=ast.Name(id=name), args=[of, share], keywords=[]) if name == _QUANTILE:
                return _Value(node, "number", self._quantile(of, share))
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=[argument], keywords=[]):
                return _Value(node, "flag", self._method(name, self.value(of), self.value(argument)))
        raise self._not_allowed(node)

    def _column(self, node: ast.expr, name: str) -> _Value:
        name = name.strip(QUOTE)
        if name not in self._columns:
            found = closest(name, self._columns.spellings())
            near = "" if found is None else f' Did you mean "{quoted(found)}"?'
            hint = f"a text stands in quotes: '{name}'" if any(name in c for c in _CLOSED.values()) else None
            there = ", ".join(map(quoted, self._columns))
            raise InvalidExpression(f'There is no episode column "{name}".{near} Columns: {there}', hint=hint)
        coded = self._columns.coded(name)
        if coded is None:
            column = self._columns[name]
            return _Value(node, "flag" if column.dtype.kind == "b" else "number", column)
        values = coded.values
        missing = np.array([v is None for v in values], bool)
        if len(values) and not missing.all() and any(isinstance(v, str) for v in values):
            texts = np.where(missing, "", values).astype(object)
            return _Value(node, "text", texts, missing, _CLOSED.get(name, ()), coded.codes)
        column = coded.spread
        missing = missing if coded.codes is None else missing[coded.codes]
        if not len(column):
            return _Value(node, "text", column, missing, _CLOSED.get(name, ()))
        if missing.all():
            return _Value(node, "missing", np.zeros(len(column), bool), missing)
        if any(isinstance(v, bool) for v in values):
            return _Value(node, "flag", column.astype(bool), missing)
        return _Value(node, "number", np.where(missing, np.nan, column), missing)  # whole ones of more than 53 bits

    # -- operands

    def _flag(self, node: ast.expr, hint: str = "") -> Any:
        found = self.value(node)
        if found.kind == "flag" or (found.kind == "missing" and found.is_column):
            return found.values
        if found.is_column and not hint:
            hint = f"{found.text} == '...'" if found.kind == "text" else f"{found.text} > 0"
        elif found.kind == "text" and not hint:
            hint = "end in ('cut', 'truncated') compares with several texts"
        raise self._error(f"{_said(found)}, not true or false", hint or EXAMPLE)

    def _number(self, node: ast.expr) -> Any:
        """Return the values of an operand of arithmetic; ``"a" * 10**9`` would fill the memory."""
        found = self.value(node).as_number
        if found.kind == "missing" and found.is_column:
            return np.full(len(found.values), np.nan)
        if found.kind != "number":
            raise self._error(f"{found.text} is not a number")
        return found.values

    def _quantile(self, of: ast.expr, share: ast.expr) -> float:
        """Return the number below which a share of the values of all episodes lies."""
        q = self.value(share)
        if q.kind != "number" or q.is_column or not 0 <= q.values <= 1:
            raise self._error(f"{q.text} is not a number from 0 to 1, the share of the episodes below", _OF_COLUMN)
        numbers = np.arange(len(next(iter(self._whole.values()))))
        values = _Expression(self._text, _Numbered(self._whole, numbers), self._whole)._number(of)
        if not isinstance(values, np.ndarray):
            raise self._error(f"{ast.unparse(of)} is the same for all episodes", _OF_COLUMN)
        known = values.astype(np.float64)
        known = known[~np.isnan(known)]
        return float(np.quantile(known, float(q.values))) if len(known) else float("nan")

    # -- comparisons

    def _compare(self, op: ast.cmpop, a: _Value, b: _Value) -> Any:
        if a.is_coded or b.is_coded:
            return _by_values(lambda x, y: self._compare(op, x, y), a, b)
        match op:
            case ast.In():
                return self._contained(a, b)
            case ast.NotIn():
                return np.logical_not(self._contained(a, b))
            case ast.Is() if b.kind == "missing" and not b.is_column:
                return self._equal(a, b)
            case ast.IsNot() if b.kind == "missing" and not b.is_column:
                return np.logical_not(self._equal(a, b))
            case ast.Eq():
                return self._equal(a, b)
            case ast.NotEq():
                return np.logical_not(self._equal(a, b))
            case ast.Is() | ast.IsNot():
                raise self._error(f"is compares with None only; write {a.text} == {b.text}")
        a, b = self._comparable(a, b)
        if "missing" in (a.kind, b.kind):
            return np.zeros(np.broadcast(a.values, b.values).shape, bool)
        return _COMPARE[type(op)](a.values, b.values) & ~np.asarray(a.missing | b.missing)

    def _equal(self, a: _Value, b: _Value) -> Any:
        a, b = self._comparable(a, b)
        if a.kind == "missing" and not a.is_column:
            a, b = b, a
        if b.kind == "missing" and not b.is_column:  # compared with None
            return np.isnan(a.values) if a.kind == "number" and _is_float(a.values) else np.asarray(a.missing | False)
        if "missing" in (a.kind, b.kind):
            return np.zeros(np.broadcast(a.values, b.values).shape, bool)
        for one, other in ((a, b), (b, a)):
            self._check_closed(one, other, str.__eq__)
        return (a.values == b.values) & ~np.asarray(a.missing | b.missing)

    def _comparable(self, a: _Value, b: _Value) -> tuple[_Value, _Value]:
        """Return both as values of one kind; flags compare with numbers as 0 and 1."""
        x, y = (a, b) if a.kind == b.kind == "flag" else (a.as_number, b.as_number)
        if "list" in (x.kind, y.kind):
            raise self._mixed(a, b, "length in (100, 200) compares with several values")
        if x.kind == y.kind or "missing" in (x.kind, y.kind):
            return x, y
        column, constant = (b, a) if b.is_column else (a, b)
        hint = EXAMPLE
        if column.kind == "text" and not constant.is_column:
            hint = f"texts stand in quotes: {column.text} == '{constant.text}'"
        elif column.kind == "flag":
            hint = f"{column.text}, or not {column.text}"
        elif not constant.is_column and _reads_as_number(constant.values):
            hint = f"numbers stand without quotes: {column.text} == {constant.values}"
        raise self._mixed(a, b, hint)

    def _contained(self, a: _Value, b: _Value) -> Any:
        if b.kind == "list":
            return self._among(a, b.values)
        if a.kind == "text" and b.kind == "text" and b.is_column:
            return self._method("contains", b, a)
        if b.kind == "missing":
            return np.zeros(np.shape(a.values) or np.shape(b.values), bool)
        if b.kind == "text" and b.is_column:
            raise self._mixed(a, b, f"'{a.text}' in {b.text} finds a text within {b.text}")
        equal = f"{b.text} == {a.text}" if b.is_column and not a.is_column else f"{a.text} == {b.text}"
        several = f"{a.text if a.is_column else b.text} in (..., ...)"
        raise self._error(f"{_said(b)}, and in needs a text column or a list", f"{equal}, or {several}")

    def _among(self, a: _Value, elements: Sequence[_Value]) -> Any:
        """Return the mask of values that equal one of ``elements``; many constants are looked up at once."""
        found = np.zeros(np.shape(a.values), bool)
        constants = list[Any]()
        for element in elements:
            if element.is_column or element.kind in ("missing", "list") or not a.is_column:
                found = found | self._equal(a, element)
                continue
            self._comparable(a, element)
            self._check_closed(a, element, str.__eq__)
            constants.append(element.values)
        if not constants or a.kind == "missing":
            return found
        return found | (_is_one_of(a.as_number.values, constants) & ~np.asarray(a.missing))

    # -- texts

    def _method(self, name: str, of: _Value, argument: _Value) -> Any:
        if of.is_coded or argument.is_coded:
            return _by_values(lambda x, y: self._method(name, x, y), of, argument)
        if name == _QUANTILE:
            raise self._error(f"{name} is not a method", f"{name}({of.text}, {argument.text})")
        if name not in _METHODS:
            what = f'"{self._text}": texts have no method "{name}".{did_you_mean(name.lower(), _METHODS)}'
            raise InvalidExpression(f"{what}  Methods: {', '.join(_METHODS)}")
        if of.kind == "missing":
            return np.zeros(np.shape(of.values), bool)
        if of.kind != "text":
            raise self._error(f"{_said(of)}, and .{name}() is for texts")
        if argument.kind == "list":
            return reduce(np.logical_or, (self._method(name, of, a) for a in argument.values), np.False_)
        if argument.kind not in ("text", "missing"):
            raise self._error(f"{_said(argument)}, and .{name}() needs a text", f"{of.text}.{name}('...')")
        if argument.kind == "missing":
            return np.zeros(np.shape(of.values), bool)
        fits = _METHODS[name]
        self._check_closed(of, argument, fits)
        if of.is_column and not argument.is_column:
            return _fitting(name, of.values.tolist(), argument.values) & ~np.asarray(of.missing)
        pairs = np.broadcast_arrays(*(np.asarray(v.values, object) for v in (of, argument)))
        found = np.array([fits(x, y) for x, y in zip(*(p.ravel() for p in pairs), strict=True)], bool)
        return found.reshape(pairs[0].shape) & ~np.asarray(of.missing | argument.missing)

    def _check_closed(self, column: _Value, constant: _Value, fits: Callable[[str, str], bool]) -> None:
        """Refuse a constant that fits none of the values that a column may have."""
        if not column.closed or constant.is_column or constant.kind != "text":
            return
        if not any(fits(value, constant.values) for value in column.closed):
            what = f"\"{self._text}\": '{constant.values}' fits no value of {column.text}."
            near = did_you_mean(constant.values, column.closed)
            raise InvalidExpression(f"{what}{near}  Values: {', '.join(column.closed)}")

    # -- errors

    def _error(self, what: str, hint: str = EXAMPLE) -> InvalidExpression:
        return InvalidExpression(f'"{self._text}": {what}.', hint=hint)

    def _mixed(self, a: _Value, b: _Value, hint: str) -> InvalidExpression:
        what = f"{_said(a)}, {_said(b)}."
        return InvalidExpression(f'"{self._text}" holds values that cannot be compared: {what}', hint=hint)

    def _not_allowed(self, node: ast.expr) -> InvalidExpression:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[of, *_]) if name in _METHODS:
                return self._error(f"{name} is a method of a text column", f"{ast.unparse(of)}.{name}('...')")
            case ast.Call(func=ast.Name(id=name)) if name in (_QUANTILE, *_OTHER_QUANTILES):
                return self._error(f"{ast.unparse(node)} is not known", _OF_COLUMN)
            case ast.Attribute(value=of, attr="str"):
                return self._error(f"{ast.unparse(node)} is not needed", f"{ast.unparse(of)}.contains('...')")
            case ast.Attribute(value=of, attr=name) | ast.Call(func=ast.Attribute(value=of, attr=name)) if (
                name in _METHODS
            ):
                return self._error(f".{name}() needs one text", f"{ast.unparse(of)}.{name}('...')")
        return self._error(f"{ast.unparse(node)} is not allowed there")


def _fitting(name: str, texts: list[str], argument: str) -> BoolArray:
    """Return the mask of texts [n] for which a method with a constant holds."""
    if name == "like":
        fits = _like(argument).match
        return np.array([fits(text) is not None for text in texts], bool)
    return np.fromiter(map(_METHODS[name], texts, repeat(argument)), bool, len(texts))


def _by_values(compute: Callable[[_Value, _Value], Any], a: _Value, b: _Value) -> Any:
    """Compute with a column of texts: once for each different text, where the other operand is a constant."""
    column, other = (a, b) if a.codes is not None else (b, a)
    if column.codes is None or not other.is_constant:
        return compute(a.spread, b.spread)
    once = replace(column, codes=None)
    found = compute(once, b) if column is a else compute(a, once)
    return np.broadcast_to(found, column.values.shape)[column.codes]


def _said(value: _Value) -> str:
    return f"{value.text} is {_WORDS[value.kind]}"


def _constant(node: ast.expr, value: Any) -> _Value:
    if value is None:
        return _Value(node, "missing", False, True)
    return _Value(node, "flag" if isinstance(value, bool) else "text" if isinstance(value, str) else "number", value)


def _is_float(values: Any) -> bool:
    return np.asarray(values).dtype.kind == "f"


def _reads_as_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(float(value) or True)
    except ValueError:
        return False


def _computed(compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Compute with numbers; whole ones stay exact, since 64 bits would wrap around without a word."""
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return compute(a, b)
    x, y = np.asarray(a), np.asarray(b)
    rough = compute(x.astype(np.float64), y.astype(np.float64))
    if compute is operator.truediv or _is_float(x) or _is_float(y):
        return rough
    greatest = max(float(np.nanmax(np.abs(v.astype(np.float64)), initial=0)) for v in (x, y, rough))
    if greatest < _EXACT and object not in (x.dtype, y.dtype):
        return compute(x.astype(np.int64), y.astype(np.int64))
    return compute(x.astype(object), y.astype(object)) if greatest < _WIDEST else rough


def _is_one_of(values: Array, constants: Sequence[Any]) -> BoolArray:
    """Return the mask of values [n] among constants of their kind; whole numbers are compared exactly."""
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        whole = [int(c) for c in constants if isinstance(c, int) or c.is_integer()]
        whole = [c for c in whole if limits.min <= c <= limits.max]
        return np.isin(values, np.array(whole, values.dtype))
    if values.dtype.kind == "f":
        return np.isin(values, np.array(constants, np.float64))
    wanted = set(constants)
    return np.array([v in wanted for v in values], bool)
