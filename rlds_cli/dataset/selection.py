"""Select episodes and transitions: the episode columns, statistics of a selection, and ``where=`` expressions.

An expression is a Python comparison of episode columns, which is parsed and never executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlds_cli.errors import InvalidExpression, UnknownField
from rlds_cli.store import statistics
from rlds_cli.store.manifest import Stats
from rlds_cli.ted import END_NAMES, Array, BoolArray, IntArray
from rlds_cli.text import did_you_mean

if TYPE_CHECKING:
    from rlds_cli.store.opening import Store

_TEXT = ("group", "options")
_SPLIT = "split/"
_ORDER = ("start", "length", "num_transitions", "num_observed", "total_reward", "end", "num_done", "source", "seed")
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


# -- columns and statistics


class EpisodeColumns(Mapping[str, Array]):
    """Episode columns by name, each [num_episodes]; ``len()`` is the number of episodes.

    ``end`` is text: ``terminated``, ``truncated`` or ``cut``. Named splits are bool columns under their own names,
    and as ``split/NAME`` where a column has that name. Columns of the user's own (``task``, ``success``) are bool,
    int64, float64, or texts as objects; where an episode has no value it is None, and NaN in numbers (float64 then).
    """

    def __init__(self, store: Store, index: IntArray | None) -> None:
        self._store = store
        self._index = index

    def __len__(self) -> int:
        return self._store.manifest.counts.episodes if self._index is None else len(self._index)

    @property
    def index(self) -> IntArray:
        """Numbers of the selected episodes in the whole dataset."""
        return np.arange(len(self)) if self._index is None else self._index

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(sorted(n.removeprefix(_SPLIT) for n in self._store.episodes if n.startswith(_SPLIT)))

    def __iter__(self) -> Iterator[str]:
        stored = {n: None for n in (*self._store.episodes, *self._store.own_columns) if not n.startswith(_SPLIT)}
        yield from sorted(stored, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))
        yield from (_SPLIT + n if n in stored or n in _TEXT else n for n in self.splits)

    def __repr__(self) -> str:
        return f"<{len(self):,} episodes: {', '.join(self)}>"

    def __contains__(self, name: object) -> bool:
        return name in set(self) or name in _TEXT

    def __getitem__(self, name: str) -> Array:
        stored = self._store.episodes
        if name in _TEXT:
            column: Array = np.array(self._store.episode_strings(name), object)
        elif name in self._store.own_columns:
            column = self._store.own_column(name).shown()
        elif name in stored:
            column = np.array(END_NAMES)[stored["end"]] if name == "end" else stored[name]
        elif name in self.splits:
            column = stored[_SPLIT + name]
        else:
            raise UnknownField(f'no episode column "{name}" in {self._store.manifest.id}.  Columns: {", ".join(self)}')
        return column if self._index is None else column[self._index]


class StoredStats(dict[str, Stats]):
    """Statistics over all steps, from the manifest."""

    def __init__(self, stats: Mapping[str, Stats], fields: Iterable[str], id: str) -> None:
        super().__init__(stats)
        self._fields, self._id = tuple(fields), id

    def __missing__(self, name: str) -> NoReturn:
        raise _no_stats(name, self, self._fields, self._id)


class SelectedStats(Mapping[str, Stats]):
    """Statistics over the steps of selected episodes, computed per field on first use."""

    def __init__(self, store: Store, episodes: EpisodeColumns) -> None:
        self._store, self._episodes = store, episodes
        self._known: dict[str, Stats] = {}

    def __len__(self) -> int:
        return len(self._store.manifest.stats)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.manifest.stats)

    def __getitem__(self, name: str) -> Stats:
        if name not in self._known:
            if name not in self._store.manifest.stats:
                raise _no_stats(name, self, self._store.fields, self._store.manifest.id)
            self._known[name] = self._compute(name)
        return self._known[name]

    def _compute(self, name: str) -> Stats:
        e = self._episodes
        return statistics.of_episodes(self._store.rows(name), e["start"], e["length"])


def no_field(name: str, fields: Iterable[str], id: str) -> UnknownField:
    """Return the error for an unknown field, which lists the dataset's fields."""
    there = sorted(fields)
    near = did_you_mean(name, there, 0.5) or did_you_mean(name, (n for n in there if n.endswith(f"/{name}")), 0)
    return UnknownField(f'no field "{name}" in {id}.{near}  Fields: {", ".join(there)}')


def _no_stats(name: str, there: Iterable[str], fields: Iterable[str], id: str) -> UnknownField:
    if name in fields:
        return UnknownField(f"{name} of {id} has no statistics: only fields of numbers have them.")
    return no_field(str(name), there, id)


# -- expressions of where=


def episodes_where(text: str, columns: Mapping[str, Array], numbers: IntArray | None = None) -> BoolArray:
    """Return the mask of episodes that fulfil ``text``, such as ``"total_reward > 3000 and length >= 500"``.

    Names are episode columns, and ``episode`` is the number of the episode: ``numbers`` [n], or 0 to n - 1. The text
    may hold numbers, strings, True and False, comparisons (also chained, and ``in`` a tuple), ``and or not & |`` and
    ``+ - * /``.

    Raises
    ------
    InvalidExpression
        The text holds anything else.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidExpression(f"The expression has {len(text):,} characters; at most {_MAX_LENGTH:,} are allowed.")
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
        raise InvalidExpression(f'"{text}" holds values that cannot be compared: {e}', hint=_example()) from e
    if result.dtype == object and all(v is None or isinstance(v, bool) for v in result.flat):
        result = result.astype(bool)  # flags, some of which are missing
    if result.dtype != bool or result.shape not in ((episodes,), ()):
        raise InvalidExpression(f'"{text}" is not true or false for each episode.', hint=_example())
    return np.broadcast_to(result, (episodes,)).copy()


class _Numbered(Mapping[str, Array]):
    """Episode columns, and the numbers of the episodes unless a column is called ``episode``."""

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
    """Return the value of an operand of arithmetic; texts are refused, since ``"a" * 10**9`` would fill the memory."""
    value = _value(node, text, columns)
    kind = np.asarray(value).dtype.kind
    is_text = kind not in "biufO" or (kind == "O" and any(isinstance(v, str) for v in np.asarray(value).flat))
    if isinstance(value, list) or is_text:
        raise InvalidExpression(f'"{text}": {ast.unparse(node)} is not a number.', hint=_example())
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
    near = did_you_mean(name, columns)
    raise InvalidExpression(f'There is no episode column "{name}".{near}  Columns: {", ".join(columns)}')


# -- numbers of episodes


def numbers(given: npt.NDArray[Any], count: int, id: str) -> IntArray:
    """Return transition numbers, given as an array of numbers or as one bool for each of ``count`` transitions."""
    if given.ndim != 1 or (given.size and given.dtype.kind not in "biu"):
        if given.dtype.kind == "U":
            name = "/".join(given.ravel().tolist())
            raise IndexError(
                f'transitions are chosen by number, and "{name}" by ds.column("{name}") or ds[:]["{name}"]'
            )
        raise IndexError(f"transitions are chosen by integers or bools [n], not by {given.dtype} {list(given.shape)}")
    if given.dtype != bool:
        return given.astype(np.int64)
    if len(given) != count:
        raise IndexError(f"{len(given):,} bools for the {count:,} transitions of {id}")
    return np.flatnonzero(given)


def chosen(given: npt.NDArray[Any] | Sequence[int]) -> npt.NDArray[Any]:
    """Return numbers or flags as an index; an empty list becomes an empty index."""
    index = np.asarray(given)
    return index if index.size else index.astype(np.int64)


def within(index: int | np.integer[Any], count: int, what: str) -> int:
    """Return a number from 0 on, given one that may count from the end."""
    number = operator.index(index)
    if not -count <= number < count:
        raise IndexError(f"no number {number:,} of the {count:,} {what}")
    return number % count
