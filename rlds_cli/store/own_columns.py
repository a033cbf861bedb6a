"""The user's own episode columns: their values, and how they are stored beside TED's columns.

One number, flag or text per episode (task, success, operator, ...). They must not have the names of TED's columns.
Small ones are JSON values in the document of the table, so that they take no file of their own however many there are,
and others are arrays. The fingerprint covers them; each has a digest in the manifest as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays, trees
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.store import layouts
from rlds_cli.store.paths import component
from rlds_cli.ted import EPISODE_COLUMNS, UNFIT, Scalar, Subtasks

_MISSING = "missing"
_GROUP = "episode"  # of an episode's columns, among its fields
_HINT = "rlds verify ID shows all damage"
MOST_BYTES = 100  # of a name
_ATTRIBUTE = "rlds_columns"  # of the table's document: the user's columns by name, a value for each episode
_SMALL, _MOST_SMALL = 1 << 20, 4 << 20  # bytes of the text of a column in the document, and of all of them
_EXACT = 1 << 53  # up to here float64 has every whole number
TEXT = "str"
_WORDS = {
    "bool": "a flag",
    "int": "a whole number",
    "long": "a whole number of more than 53 bits",
    "float": "a number",
    "str": "a text",
}


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A stored column: ``values`` [episodes], and ``missing`` [episodes], True for episodes without a value."""

    dtype: str
    values: Array | list[str | None]
    missing: BoolArray

    @classmethod
    def of(cls, values: Sequence[Scalar], name: str) -> StoredColumn:
        """Return the column of values: bool, int64 (uint64 if values need it), float64 or texts.

        Raises
        ------
        InvalidEpisode
            Values of several types, or a whole number of more than 64 bits, or of more than 53 beside fractions.
        """
        missing = np.array([v is None for v in values], bool)
        what = _kind(values, name)
        if what == "str":
            return cls(TEXT, [None if v is None else str(v) for v in values], missing)
        if what in ("int", "long"):
            whole = [v for v in values if isinstance(v, int)]
            dtype = "uint64" if max(whole) > np.iinfo(np.int64).max else "int64"
            limits = np.iinfo(dtype)
            if min(whole) < limits.min or max(whole) > limits.max:
                raise InvalidEpisode(f'the episode column "{name}" has whole numbers of more than 64 bits.')
        else:
            dtype = {"bool": "bool", "float": "float64"}[what]
        filler = np.nan if what == "float" else 0
        return cls(dtype, np.array([filler if v is None else v for v in values], dtype), missing)

    @staticmethod
    def plain(values: Sequence[Any], name: str, where: str) -> list[Scalar]:
        """Convert values to Python scalars; see `scalar`."""
        plain = set(map(type, values)) <= {bool, int, float, str, type(None)}
        if plain and name != Subtasks.COLUMN:
            _check_text("".join(v for v in values if isinstance(v, str)), name, where)
            return list(values)
        return [scalar(v, name, where) for v in values]

    @staticmethod
    def check_names(names: Iterable[str], where: str) -> None:
        """Refuse names of TED's own columns, names that no directory can have, and names that differ only in case.

        Names with a backquote or a line break cannot be written in expressions. Those with ``@`` are reserved for the
        places of fields with a clock of their own (docs/reference/format.md).

        Raises
        ------
        InvalidEpisode
        """
        seen: dict[str, str] = {}
        for name in names:
            if not isinstance(name, str) or not name or not _is_component(name):
                raise InvalidEpisode(f"{where}: an episode column cannot be called {str(name)[:MOST_BYTES]!r}.")
            if name.lower() in EPISODE_COLUMNS or name.lower().startswith("split/"):
                raise InvalidEpisode(
                    f'{where}: "{name}" is an episode column of TED itself.', hint=f'another name, such as "my_{name}"'
                )
            if found := UNFIT.search(name):
                why = "names with @ are reserved" if found[0] == "@" else "expressions could not name it"
                raise InvalidEpisode(
                    f'{where}: an episode column cannot be called "{name}": {why}.',
                    hint=f'another name, such as "{UNFIT.sub("_", name)}"',
                )
            if name.lower() in seen:
                one = seen[name.lower()]
                raise InvalidEpisode(f'{where}: episode columns "{one}" and "{name}" differ in case only.')
            seen[name.lower()] = name

    @staticmethod
    def differing(a: StoredColumn | None, b: StoredColumn | None, episodes: int) -> BoolArray:
        """Return the episodes [episodes] whose values differ; None is a column without a value. Types are compared."""
        one, other = (np.ones(episodes, bool) if c is None else c.missing for c in (a, b))
        if a is None or b is None or a.dtype != b.dtype:
            return ~(one & other)
        found: BoolArray = (one != other) | (a.comparable() != b.comparable())
        return found

    def scalar(self, k: int) -> Scalar:
        """Return the value of episode ``k``, or None if it has none."""
        value = None if self.missing[k] else self.values[k]
        return value.item() if isinstance(value, np.generic) else value

    def scalars(self) -> list[Scalar]:
        """Return one value per episode, None for episodes without one."""
        if isinstance(self.values, list):
            return list(self.values)
        return [None if m else v for v, m in zip(self.values.tolist(), self.missing.tolist(), strict=True)]

    def take(self, index: IntArray) -> StoredColumn:
        """Return the column of some episodes, as `of` makes it."""
        if isinstance(self.values, list):
            return StoredColumn(self.dtype, [self.values[k] for k in index.tolist()], self.missing[index])
        values = narrowed(self.values[index])
        return StoredColumn(values.dtype.name, values, self.missing[index])

    def comparable(self) -> Array:
        """Return values that are equal where those of episodes are, by their bytes: -0.0 is not 0.0, NaN is NaN."""
        if isinstance(self.values, list):
            return np.array(self.values, object)
        values = np.where(self.missing, np.zeros((), self.values.dtype), self.values)
        return values.view(f"u{values.dtype.itemsize}")

    def shown(self) -> Array:
        """Return the column for users: texts as objects; missing values as None, or as NaN in numbers (float64).

        Whole numbers of which a float64 has not all digits are objects, too, where some are missing.
        """
        if isinstance(self.values, list):
            return np.array(self.values, object)
        if not self.missing.any():
            return self.values
        if self.dtype == "bool" or (self.dtype != "float64" and not self._fits_floats):  # NaN would count as True
            return np.array(self.scalars(), object)
        return np.where(self.missing, np.nan, self.values.astype(np.float64))

    @property
    def _fits_floats(self) -> bool:
        values = self.values[~self.missing] if not isinstance(self.values, list) else np.zeros(0)
        return not len(values) or -_EXACT <= int(values.min()) <= int(values.max()) <= _EXACT


def narrowed(values: Array) -> Array:
    """Return values of a column as `StoredColumn.of` stores them: as int64 unless one needs uint64."""
    if values.dtype != np.uint64 or (values > np.uint64(np.iinfo(np.int64).max)).any():
        return values
    return values.astype(np.int64)


def _is_component(name: str) -> bool:
    """Return whether the name comes back from that of its directory, and is short enough."""
    try:
        return name == unquote(component(name)) and len(name.encode()) <= MOST_BYTES
    except UnicodeEncodeError:
        return False


def split_columns(
    item: Any, name: str, is_field: Callable[[str, Any], bool] = lambda column, value: False
) -> tuple[dict[Any, Any], dict[str, Scalar]]:
    """Split an episode into its fields and the episode columns in its key ``"episode"``, one value each.

    ``is_field(name, value)`` says which of these are fields all the same, called ``episode/NAME``.

    Raises
    ------
    InvalidEpisode
        A column has the name of one of TED's own, or a value that is not a number, flag or text.
    """
    fields, about = {}, {}
    for key, value in item.items():
        first, *rest = key if isinstance(key, tuple) else str(key).split("/")
        if first == _GROUP and rest:
            about["/".join(rest)] = value
        elif first == _GROUP and hasattr(value, "items"):
            about |= dict(value.items())
        else:
            fields[key] = value
    of_steps = {column: value for column, value in about.items() if column != Subtasks.COLUMN}
    fields |= {f"{_GROUP}/{column}": value for column, value in of_steps.items() if is_field(column, value)}
    about = {column: value for column, value in about.items() if f"{_GROUP}/{column}" not in fields}
    StoredColumn.check_names(about, name)
    for column, value in about.items():
        _check_bytes(value, column, name)
    return fields, {column: scalar(value, column, name) for column, value in about.items()}


def _check_bytes(value: Any, column: str, name: str) -> None:
    """Refuse bytes that are not text: an image, for example."""
    try:
        _ = value.decode() if isinstance(value, bytes) else None
    except UnicodeDecodeError as e:
        raise InvalidEpisode(
            f'{name}: the episode column "{column}" holds {len(value):,} bytes that are not text.',
            hint="images belong in a field, with one for each step",
        ) from e


def scalar(value: Any, name: str, where: str) -> Scalar:
    """Convert one value to a Python scalar; NumPy scalars, and arrays and tensors of one element, are accepted.

    Intervals of `Subtasks` become their text.

    Raises
    ------
    InvalidEpisode
        The value is not a number, flag or text, or a text that UTF-8 cannot hold.
    """
    if name == Subtasks.COLUMN and value is not None:
        value = str(Subtasks.of(value, where))
    if hasattr(value, "item") and np.size(value) == 1:  # NumPy's, torch's
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        _check_text(value, name, where)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidEpisode(
        f'{where}: the episode column "{name}" is a {type(value).__name__}; one number, flag or text is needed.',
        hint="values per step belong in a field; JSON keeps a structure as a text",
    )


def _check_text(value: str, name: str, where: str) -> None:
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise InvalidEpisode(
            f'{where}: a text of the episode column "{name}" is not valid Unicode: {value[e.start : e.start + 40]!r}.'
        ) from e


def kind_of(value: Scalar) -> str:
    """Return the type of a value: ``bool``, ``int``, ``long`` (more than 53 bits), ``float`` or ``str``."""
    return "long" if type(value) is int and not -_EXACT <= value <= _EXACT else type(value).__name__


def joint_kind(known: str | None, value: Scalar, name: str, where: str) -> str:
    """Return the type of a column of type ``known`` once it holds ``value`` too, see `kind_of`.

    Whole numbers fit into a column of floats, unless they have more than 53 bits.

    Raises
    ------
    InvalidEpisode
        No type holds both.
    """
    new = kind_of(value)
    if known in (None, new):
        return new
    for pair in (("int", "float"), ("int", "long")):
        if {known, new} == set(pair):
            return pair[1]
    raise InvalidEpisode(
        f'{where}: the episode column "{name}" is {_WORDS[new]} here, {_WORDS[str(known)]} before.',
        hint="texts keep all digits" if {known, new} == {"long", "float"} else None,
    )


class ColumnKinds:
    """The types of episode columns, as far as their values so far say; see `kind_of`."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def add(self, values: Mapping[str, Scalar], where: str) -> None:
        """Take the values of one more episode; raises InvalidEpisode as `joint_kind`."""
        for name, value in values.items():
            if value is not None:
                self._known[name] = joint_kind(self._known.get(name), value, name, where)


def _kind(values: Sequence[Scalar], name: str) -> str:
    """Return the type that holds all values; ``float`` without any."""
    kinds = set(map(type, values)) - {type(None)}
    if len(kinds) == 1:
        return kinds.pop().__name__
    found: str | None = None
    for k, value in enumerate(values):
        if value is not None:
            found = joint_kind(found, value, name, f"episode {k}")
    return found or "float"


def all_typed(extra: Mapping[str, Sequence[Scalar]]) -> dict[str, StoredColumn]:
    """Return all columns by name, with their names checked."""
    StoredColumn.check_names(extra, "the episode table")
    return {name: StoredColumn.of(values, name) for name, values in extra.items()}


# -- the user's own columns on disk


def write_own(directory: Path, own: Mapping[str, StoredColumn], apart: Collection[str] = ()) -> None:
    """Write the document of the table, with the user's columns: small ones in it, others as arrays beside it.

    An array has a mask of its missing values if it has any. Columns that are ``apart`` have their arrays already.
    """
    small, room = dict[str, list[Any]](), _MOST_SMALL
    for name, column in own.items():
        if name in apart:
            continue
        values = _plain_values(column)
        size = len(json.dumps(values)) if len(values) <= _SMALL else _SMALL + 1
        if size <= min(_SMALL, room) and _is_same(column, _of_values(values, column.dtype)):
            small[name], room = values, room - size
        else:
            _write_apart(directory, name, column)
    (directory / "zarr.json").unlink(missing_ok=True)  # it may be another dataset's, too
    arrays.write_group(directory, {_ATTRIBUTE: small} if small else None, lines=not small)


def _write_apart(directory: Path, name: str, column: StoredColumn) -> None:
    if isinstance(column.values, list):
        arrays.write_strings(directory / component(name), [v or "" for v in column.values])
    else:
        arrays.write(directory / component(name), column.values)
    if column.missing.any():
        arrays.write(directory / _MISSING / component(name), column.missing)
        (directory / _MISSING / "zarr.json").unlink(missing_ok=True)  # it may be another dataset's, too
        arrays.write_group(directory / _MISSING)


def remove_own(directory: Path, name: str) -> None:
    """Remove the arrays of a column, if it has any, from a directory that is being made."""
    for place in (directory / component(name), directory / _MISSING / component(name)):
        trees.discard(place)


def is_apart(directory: Path, name: str) -> bool:
    """Return whether a column of the user's own has arrays."""
    return (directory / component(name)).is_dir()


def read_small(directory: Path) -> dict[str, Any]:
    """Read the columns in the document of the table, as lists of JSON values; raises DamagedDataset."""
    found = layouts.attributes(directory).get(_ATTRIBUTE, {})
    if not isinstance(found, dict):
        raise DamagedDataset(f"{directory / 'zarr.json'}: {_ATTRIBUTE} is a {type(found).__name__}.", hint=_HINT)
    return found


def column_of(values: Any, dtype: str, count: int, where: str) -> StoredColumn:
    """Return the column that `read_small` read; raises DamagedDataset for values of another type or number."""
    try:
        if not isinstance(values, list) or len(values) != count:
            raise ValueError(f"{count:,} values expected")
        return _of_values(values, dtype)
    except (ValueError, TypeError, OverflowError) as e:
        raise DamagedDataset(f"{where} is not a column of {dtype}: {e}.", hint=_HINT) from e


def _plain_values(column: StoredColumn) -> list[Any]:
    """Return a column as JSON values: null for a missing one, and what JSON has no number for as a text."""
    if column.dtype != "float64":
        return column.scalars()
    return [
        v if v is None or math.isfinite(v) else "NaN" if v != v else "Infinity" if v > 0 else "-Infinity"
        for v in column.scalars()
        if v is None or isinstance(v, float)
    ]


def _of_values(values: list[Any], dtype: str) -> StoredColumn:
    """Return the column of JSON values; raises ValueError, or its like, for values of another type."""
    missing = np.array([v is None for v in values], bool)
    kinds: dict[str, set[type]] = {TEXT: {str}, "bool": {bool}, "float64": {float, str}}
    if not set(map(type, values)) <= kinds.get(dtype, {int}) | {type(None)}:
        raise ValueError("a value of another type")
    if dtype == TEXT:
        return StoredColumn(TEXT, values, missing)
    if dtype == "float64" and not {v for v in values if isinstance(v, str)} <= {"NaN", "Infinity", "-Infinity"}:
        raise ValueError("a text")
    filler = np.nan if dtype == "float64" else 0
    return StoredColumn(dtype, np.array([filler if v is None else v for v in values], dtype), missing)


def _is_same(a: StoredColumn, b: StoredColumn) -> bool:
    """Return whether two columns have the same bytes."""
    if isinstance(a.values, list) or isinstance(b.values, list):
        return a.values == b.values and np.array_equal(a.missing, b.missing)
    return a.values.tobytes() == b.values.tobytes() and np.array_equal(a.missing, b.missing)
