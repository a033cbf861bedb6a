"""Expressions of ``where=``: Python comparisons of episode columns, which are parsed and never executed.

Every part of an expression is a flag, a number or a text, for each episode or as a constant. Parts of different kinds
are not compared: ``length == 'x'`` is an error and not False. A missing value fulfils only ``!=``, ``not in`` and
``is None``.

A name that is not a word stands in backquotes: ```quality/idle_share` < 0.25``. Without them this would divide one
column by another, so an expression is refused in which a run of tokens is the name of a column.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import closest, did_you_mean
from rlds_cli.errors import InvalidExpression
from rlds_cli.ted import END_NAMES

Kind = Literal["flag", "number", "text", "missing", "list"]

MOST_CHARACTERS = 1_000_000  # more than 100,000 numbers of episodes
_NUMBER = "episode"
_SYNONYMS = {"return": "total_reward"}
_CLOSED = {"end": tuple(END_NAMES)}  # columns whose values are all known
_GRAMMAR = {"and", "or", "not", "in", "is", "True", "False", "None", "if", "else", "for", "lambda", "async", "await"}
_RESERVED = frozenset(keyword.kwlist) - _GRAMMAR  # no expression of columns needs them, so that they may name columns
_QUOTE = "`"
_TOKEN = re.compile(
    r"""(?P<quoted>`[^`]*`?)
      | (?P<string>[rRbBuUfF]{0,2}(?:'{3}.*?'{3} | "{3}.*?"{3} | '(?:\\.|[^'\\])*'? | "(?:\\.|[^"\\])*"?))
      | (?P<word>[^\W\d]\w*)
      | (?P<blank>\s+)
      | \d\w* | .
    """,
    re.VERBOSE | re.DOTALL,
)
_NEEDS_TOKENS = re.compile(rf"[`#]|[^\x00-\x7f]|\b(?:{'|'.join(sorted(_RESERVED))})\b")
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
_METHODS: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda text, part: part in text,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "like": lambda text, pattern: _like(pattern).match(text) is not None,
}
_METHOD_AS_WORD = re.compile(rf"(\w+)\s+(?:not\s+)?({'|'.join(_METHODS)})\s+(['\"])", re.IGNORECASE)
_OTHER_SPELLINGS = (
    (re.compile(r"&&|\|\||\b(?:AND|OR|NOT)\b"), "conditions are joined by and, or and not"),
    (re.compile(r"<>"), "values that differ are compared with !="),
    (re.compile(r"(?<![=<>!])=(?!=)"), "equal values are compared with =="),
    (re.compile(r"^\s*[<>=!*/]|^\s*$"), "a shell runs what stands in backquotes, unless all of it is in '...'"),
)
_EXACT = 2**53  # whole numbers below it are exact as float64
_WIDEST = 2.0**127  # whole numbers up to it are computed exactly
_WORDS: dict[Kind, str] = {
    "flag": "a flag",
    "number": "a number",
    "text": "a text",
    "missing": "a missing value",
    "list": "a list",
}
_PARENTHESES = "& and | need parentheses: (length > 100) & (end == 'cut')"
_EXAMPLE = 'as in "total_reward > 3000 and length >= 500"'
_IN_BACKQUOTES = "the name of a column that is not a word stands in backquotes: `my column` > 3"


def episodes_where(text: str, columns: Mapping[str, Array], numbers: IntArray | None = None) -> BoolArray:
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
    tree = _parse(text, columns)
    episodes = len(next(iter(columns.values())))
    known = _Numbered(columns, np.arange(episodes) if numbers is None else numbers)
    try:
        with np.errstate(all="ignore"):  # a column divided by one with zeros has infinities, which compare as such
            result = _Expression(text, known).value(tree)
            if result.kind != "flag" and not (result.kind == "missing" and result.is_column):
                raise InvalidExpression(f'"{text}" is not true or false for each episode.', hint=_EXAMPLE)
            return np.broadcast_to(np.asarray(result.values, bool), (episodes,)).copy()
    except ZeroDivisionError as e:
        raise InvalidExpression(f'"{text}" divides by zero.', hint=_EXAMPLE) from e
    except RecursionError as e:
        raise InvalidExpression(f'"{text}" is nested too deeply.', hint=_EXAMPLE) from e
    except (TypeError, ValueError, OverflowError, np.exceptions.DTypePromotionError) as e:
        raise InvalidExpression(f'"{text}" holds values that cannot be compared: {e}', hint=_EXAMPLE) from e


def expression_of(episodes: Sequence[int]) -> str:
    """Return the expression that selects episodes by their numbers, which ascend: ``episode in [2, 5, 8]``.

    Three and more in a row become a range: ``2 <= episode <= 9 or episode in [20, 31]``.
    """
    numbers = np.asarray(episodes, np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    ranges = [f"{run[0]} <= {_NUMBER} <= {run[-1]}" for run in runs if len(run) > 2]
    single = [str(n) for run in runs if len(run) <= 2 for n in run]
    return " or ".join([*ranges, *([f"{_NUMBER} in [{', '.join(single)}]"] if single or not ranges else [])])


def quoted(name: str) -> str:
    """Return the name of a column as an expression has it: in backquotes unless it is a word."""
    return name if _is_word(name) else f"{_QUOTE}{name}{_QUOTE}"


def _is_word(name: str) -> bool:
    """Return whether Python's parser takes a name for a name, and returns it as it is."""
    return name.isidentifier() and name not in _GRAMMAR and unicodedata.normalize("NFKC", name) == name


def _parse(text: str, columns: Iterable[str]) -> ast.expr:
    """Return the tree of an expression, in which each name stands as `quoted` spells it."""
    odd = [name for name in columns if not _is_word(name)]
    spelled, names = _with_words(text.strip(), odd) if odd or _NEEDS_TOKENS.search(text) else (text.strip(), {})
    try:
        tree = ast.parse(spelled, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        why = e.msg if isinstance(e, SyntaxError) else str(e) or "it is nested too deeply"
        raise InvalidExpression(f'"{text}" is not an expression: {why}', hint=_spelling(text)) from e
    for node in ast.walk(tree) if names else ():
        if isinstance(node, ast.Name):
            node.id = quoted(names.get(node.id, node.id))
        elif isinstance(node, ast.Attribute):
            node.attr = names.get(node.attr, node.attr)
    return tree


def _with_words(text: str, odd: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Replace names that Python's parser would not return as they are, outside of strings, by words.

    Returns the text, and the names by these words. ``odd`` holds the columns whose names are not words.
    """
    tokens = [(str(m.lastgroup or ""), m[0]) for m in _TOKEN.finditer(text)]
    _check_tokens(text, tokens)
    _check_undivided(text, tokens, odd)
    prefix = "_name"
    while prefix in text:
        prefix += "_"
    names, spelled = dict[str, str](), list[str]()
    for kind, token in tokens:
        name = token[1:-1] if kind == "quoted" else token
        if kind == "quoted" or (kind == "word" and name not in _GRAMMAR and (name in _RESERVED or not _is_word(name))):
            word = f"{prefix}{len(names)}"
            names[word] = name
            spelled.append(f" {word} ")
        else:
            spelled.append(token)
    return "".join(spelled).strip(), names


def _check_tokens(text: str, tokens: Sequence[tuple[str, str]]) -> None:
    """Refuse backquotes without a name, and what the parser would leave out as a comment."""
    for kind, token in tokens:
        if kind == "quoted" and not (len(token) > 2 and token.endswith(_QUOTE)):
            what = "there is no name between backquotes" if token == 2 * _QUOTE else "a backquote is not closed"
            raise InvalidExpression(f'"{text}" is not an expression: {what}', hint=_IN_BACKQUOTES)
        if token == "#":
            raise InvalidExpression(f'"{text}" is not an expression: # begins nothing', hint=_IN_BACKQUOTES)


def _check_undivided(text: str, tokens: Sequence[tuple[str, str]], odd: Sequence[str]) -> None:
    """Refuse several tokens that are the name of a column if blanks are left out: they compute something else."""
    seen = [token for kind, token in tokens if kind != "blank"]
    begins = {at: k for k, at in enumerate(accumulate(map(len, seen), initial=0))}
    joined = "".join(seen)
    for name in odd:
        squeezed = "".join(name.split())
        if not any(c.isidentifier() for c in squeezed):
            continue  # a number, which is a constant
        at = joined.find(squeezed)
        while at >= 0:
            if begins.get(at + len(squeezed), 0) > begins.get(at, len(seen)) + 1:
                raise InvalidExpression(
                    f'"{text}": the name of the episode column {quoted(name)} needs backquotes.',
                    hint=f"{quoted(name)}, in a shell within '...'; parts in parentheses are computed with",
                )
            at = joined.find(squeezed, at + 1)


def _spelling(text: str) -> str:
    """Return a hint on the spelling of an expression that cannot be parsed."""
    found = _METHOD_AS_WORD.search(text)
    if found:
        return f"{found[1]}.{found[2].lower()}({found[3]}...{found[3]})"
    return next((hint for spelling, hint in _OTHER_SPELLINGS if spelling.search(text)), _EXAMPLE)


def _like(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of SQL's LIKE; `fnmatch` makes expressions that do not backtrack."""
    shell = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return re.compile(translate("".join(shell.get(c, c) for c in pattern)))


class _Numbered(Mapping[str, Array]):
    """Episode columns, their synonyms, and the numbers of the episodes unless a column is called ``episode``."""

    def __init__(self, columns: Mapping[str, Array], numbers: IntArray) -> None:
        self._columns, self._numbers = columns, numbers

    def __getitem__(self, name: str) -> Array:
        if name in self._columns:
            return self._columns[name]
        return self._numbers if name == _NUMBER else self._columns[_SYNONYMS[name]]

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
    its elements. ``closed`` holds all values that a text column may have, if they are known.
    """

    node: ast.expr
    kind: Kind
    values: Any
    missing: Any = False
    closed: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The part as written."""
        return ast.unparse(self.node)

    @property
    def is_column(self) -> bool:
        """True for a value of each episode, False for a constant or a list."""
        return isinstance(self.values, np.ndarray)

    @property
    def as_number(self) -> _Value:
        """Return a flag as 0 or 1, with NaN where it is missing, and anything else as it is."""
        if self.kind != "flag":
            return self
        whole = self.values.astype(np.int64) if self.is_column else int(self.values)
        return _Value(self.node, "number", np.where(self.missing, np.nan, whole) if np.any(self.missing) else whole)


class _Expression:
    """Evaluates the parts of one expression."""

    def __init__(self, text: str, columns: _Numbered) -> None:
        self._text, self._columns = text, columns

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
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=[argument], keywords=[]):
                return _Value(node, "flag", self._method(name, self.value(of), self.value(argument)))
        raise self._not_allowed(node)

    def _column(self, node: ast.expr, name: str) -> _Value:
        name = name.strip(_QUOTE)
        if name not in self._columns:
            found = closest(name, self._columns.spellings())
            near = "" if found is None else f' Did you mean "{quoted(found)}"?'
            hint = f"a text stands in quotes: '{name}'" if any(name in c for c in _CLOSED.values()) else None
            there = ", ".join(map(quoted, self._columns))
            raise InvalidExpression(f'There is no episode column "{name}".{near}  Columns: {there}', hint=hint)
        column = self._columns[name]
        if column.dtype.kind == "b":
            return _Value(node, "flag", column)
        if column.dtype.kind in "iuf":
            return _Value(node, "number", column)
        missing = np.array([v is None for v in column], bool) if column.dtype == object else np.zeros(len(column), bool)
        if len(column) and missing.all():
            return _Value(node, "missing", np.zeros(len(column), bool), missing)
        if any(isinstance(v, bool) for v in column):
            return _Value(node, "flag", column.astype(bool), missing)
        if any(isinstance(v, int) for v in column):  # of more than 53 bits; Python compares them exactly
            return _Value(node, "number", np.where(missing, np.nan, column), missing)
        return _Value(node, "text", np.where(missing, "", column).astype(object), missing, _CLOSED.get(name, ()))

    # -- operands

    def _flag(self, node: ast.expr, hint: str = "") -> Any:
        found = self.value(node)
        if found.kind == "flag" or (found.kind == "missing" and found.is_column):
            return found.values
        if found.is_column and not hint:
            hint = f"{found.text} == '...'" if found.kind == "text" else f"{found.text} > 0"
        elif found.kind == "text" and not hint:
            hint = "end in ('cut', 'truncated') compares with several texts"
        raise self._error(f"{_said(found)}, not true or false", hint or _EXAMPLE)

    def _number(self, node: ast.expr) -> Any:
        """Return the values of an operand of arithmetic; ``"a" * 10**9`` would fill the memory."""
        found = self.value(node).as_number
        if found.kind == "missing" and found.is_column:
            return np.full(len(found.values), np.nan)
        if found.kind != "number":
            raise self._error(f"{found.text} is not a number")
        return found.values

    # -- comparisons

    def _compare(self, op: ast.cmpop, a: _Value, b: _Value) -> Any:
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
        hint = _EXAMPLE
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

    def _error(self, what: str, hint: str = _EXAMPLE) -> InvalidExpression:
        return InvalidExpression(f'"{self._text}": {what}.', hint=hint)

    def _mixed(self, a: _Value, b: _Value, hint: str) -> InvalidExpression:
        what = f"{_said(a)}, {_said(b)}."
        return InvalidExpression(f'"{self._text}" holds values that cannot be compared: {what}', hint=hint)

    def _not_allowed(self, node: ast.expr) -> InvalidExpression:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[of, *_]) if name in _METHODS:
                return self._error(f"{name} is a method of a text column", f"{ast.unparse(of)}.{name}('...')")
            case ast.Attribute(value=of, attr="str"):
                return self._error(f"{ast.unparse(node)} is not needed", f"{ast.unparse(of)}.contains('...')")
            case ast.Attribute(value=of, attr=name) | ast.Call(func=ast.Attribute(value=of, attr=name)) if (
                name in _METHODS
            ):
                return self._error(f".{name}() needs one text", f"{ast.unparse(of)}.{name}('...')")
        return self._error(f"{ast.unparse(node)} is not allowed there")


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
