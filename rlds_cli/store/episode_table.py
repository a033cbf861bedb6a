"""Read and check the episode table and the list of sources.

Users add episode columns of their own (task, success, operator, ...): one number, flag or text per episode. They are
stored beside TED's columns and must not have their names: small ones as JSON values in the document of the table, so
that they take no file of their own however many there are, and others as arrays. The fingerprint covers them; each has
a digest in the manifest as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.files import arrays, mapping, trees
from rlds_cli.base.files import json as documents
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.store import layouts, lookups
from rlds_cli.store.lookups import LookedUp
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.paths import component
from rlds_cli.ted import CUT, EPISODE_COLUMNS, TERMINATED, UNFIT, Scalar

_DTYPES = {  # of TED's columns; those of the user's own are in the manifest
    **dict.fromkeys(("start", "length", "num_observed", "num_transitions", "row", "num_done", "num_terminated"), "i8"),
    **dict.fromkeys(("source_episode", "source_step"), "i8"),
    "source": "i4", "end": "u1", "id": "u1", "seed": "u8", "has_seed": "?", "total_reward": "f8",
}  # fmt: skip
_NEEDED = ("start", "length", "num_observed", "num_transitions", "end", "source", "row", "id")
_ID_BYTES = 16
_SPLITS, _MISSING = "split", "missing"
_GROUP = "episode"  # of an episode's columns, among its fields
_HINT = "rlds verify ID shows all damage"
MOST_BYTES = 100  # of a name
_ATTRIBUTE = "rlds_columns"  # of the table's document: the user's columns by name, a value for each episode
_SMALL, _MOST_SMALL = 1 << 20, 4 << 20  # bytes of the text of a column in the document, and of all of them
_PIECE = 1 << 15  # episodes that are checked at a time
_EXACT = 1 << 53  # up to here float64 has every whole number
TEXT = "str"
_WORDS = {
    "bool": "a flag",
    "int": "a whole number",
    "long": "a whole number of more than 53 bits",
    "float": "a number",
    "str": "a text",
}


# -- reading


class Columns(Mapping[str, Array]):
    """The columns of a table that are arrays, by name. Those that are looked up are read when they are used."""

    def __init__(self, columns: Mapping[str, LookedUp | Array]) -> None:
        self._stored, self._columns = columns, dict(columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Array:
        found = self._columns[name]
        if isinstance(found, LookedUp):
            found = self._columns[name] = found.read()
        return found

    def between(self, name: str, first: int, stop: int) -> Array:
        """Return the values of episodes [first, stop), of which those that are looked up are not kept."""
        found = self._columns[name]
        return found.between(first, stop) if isinstance(found, LookedUp) else found[first:stop]

    def let_go(self) -> None:
        """Unmap the pages of the columns that are files of their own, which count as memory in use."""
        for column in self._stored.values():
            if not isinstance(column, LookedUp) and column.nbytes:
                mapping.let_go(column.ctypes.data, column.nbytes)


def read_columns(directory: Path, m: Manifest) -> Columns:
    """Read the columns that are arrays, by name; splits as ``split/NAME``.

    Raises
    ------
    DamagedDataset
        One is missing, or has another type or length.
    """
    try:
        check_names(m.episode_columns, m.id)
        known: lookups.Indices = {}
        columns = _arrays(directory, known)
        if (directory / _SPLITS).exists():
            columns |= {f"{_SPLITS}/{name}": values for name, values in _arrays(directory / _SPLITS, known).items()}
    except InvalidEpisode as e:
        raise DamagedDataset(e.message) from e
    except OSError as e:
        raise _damaged(m, f"cannot be read: {e.strerror}") from e
    for name in _NEEDED:
        if name not in columns:
            raise DamagedDataset(f"{directory} is not the episode table of {m.id}: no {name}.", hint=_HINT)
    for name, values in columns.items():
        kind = "?" if name.startswith(f"{_SPLITS}/") else _DTYPES.get(name, values.dtype)
        shape = (m.counts.episodes, _ID_BYTES) if name == "id" else (m.counts.episodes,)
        if values.shape != shape or values.dtype != np.dtype(kind):
            found = f"{name} is {values.dtype} {list(values.shape)}"
            raise DamagedDataset(f"{directory} is not the episode table of {m.id}: {found}.", hint=_HINT)
    return Columns(columns)


def _arrays(directory: Path, known: lookups.Indices) -> dict[str, LookedUp | Array]:
    found = {unquote(p.name): lookups.opened(p, known) for p in directory.iterdir() if p.is_dir()}
    return {name: column for name, column in found.items() if column is not None}


def check_places(e: Columns, m: Manifest) -> None:
    """Refuse a table whose episodes are not within the rows, share a step, or refer to files that do not exist.

    These are the properties that readers rely on. `integrity.check_table` finds further errors. Episodes may be stored
    in any order, with gaps between them; the last row of one may be the first row of another.

    Raises
    ------
    DamagedDataset
    """
    start, length, observed, counted = (e[name] for name in ("start", "length", "num_observed", "num_transitions"))
    files, in_order, transitions = max(1, int(m.archive.get("files", 1))), True, 0
    for a in range(0, len(start), _PIECE):  # pieces stay in the processor's cache: ten million episodes take 0.1 s
        b = min(a + _PIECE, len(start))
        first, steps = start[a:b], length[a:b]
        if len(first) and not _within(first, steps, m.counts.rows):
            raise _damaged(m, f"its episodes are not within the {m.counts.rows:,} rows")
        transitions += int(counted[a:b].sum())
        if not (_is_bit(observed[a:b] - steps) and _is_bit(steps - counted[a:b])):
            raise _damaged(m, "num_observed or num_transitions do not fit length")
        following = start[a + 1 : b + 1]
        in_order &= bool((following >= (first + steps)[: len(following)]).all())
        ends, sources = e.between("end", a, b), e.between("source", a, b)
        if not TERMINATED <= ends.min() <= ends.max() <= CUT:
            raise _damaged(m, "end holds an unknown value")
        if not 0 <= sources.min() <= sources.max() < files:
            raise _damaged(m, f"source names files beyond the {files:,}")
    if not in_order:
        order = np.argsort(start, kind="stable")
        if (start[order][1:] < (start + length)[order][:-1]).any():
            raise _damaged(m, "its episodes share steps")
    if transitions != m.counts.transitions:
        raise _damaged(m, f"its transitions are not the {m.counts.transitions:,} of the manifest")


def _within(first: IntArray, steps: IntArray, rows: int) -> bool:
    """Return whether episodes have their final rows among so many."""
    return int(first.min()) >= 0 and int(steps.min()) >= 0 and bool((first < rows - steps).all())


def _is_bit(values: IntArray) -> bool:
    """Return whether all values are 0 or 1."""
    return int(np.bitwise_or.reduce(values)) in (0, 1)


def _damaged(m: Manifest, what: str) -> DamagedDataset:
    return DamagedDataset(f"The episode table of {m.id}: {what}.", hint=_HINT)


def read_texts(directory: Path, count: int) -> list[str]:
    """Read a column of texts, one per episode; raises DamagedDataset."""
    found = lookups.read_strings(directory)
    if len(found) != count:
        raise DamagedDataset(f"{directory} has {len(found):,} texts; {count:,} expected.", hint=_HINT)
    return found


def read_missing(directory: Path, columns: Mapping[str, Array]) -> BoolArray:
    """Return the mask of episodes without a value in a user's column; all False without a mask on disk."""
    count = len(columns["start"])
    if not directory.exists():
        return np.zeros(count, bool)
    found = lookups.read(directory)
    if found.shape != (count,) or found.dtype != bool:
        raise DamagedDataset(f"{directory} is {found.dtype} {list(found.shape)}; bool {[count]} expected.", hint=_HINT)
    return found


def read_sources(directory: Path) -> tuple[dict[str, Any], ...]:
    """Read the list of the archive's files.

    Raises
    ------
    DamagedDataset
        A file has another kind of description, or a name that leads out of the archive.
    """
    return tuple(source_of(directory, text) for text in layouts.read_strings(directory))


def source_of(directory: Path, text: str | bytes) -> dict[str, Any]:
    """Read the description of a file; raises as `read_sources`."""
    try:
        found = documents.loads(text)
        file = PurePosixPath(found["file"])
        fits = not file.is_absolute() and ".." not in file.parts and "\0" not in found["file"]
        texts = all(isinstance(found.get(key), str | None) for key in ("url", "sha256", "revision"))
        sized = isinstance(found.get("size"), int | None) and not isinstance(found.get("size"), bool)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise DamagedDataset(f"{directory}: {text[:80]!r} does not describe a file: {e}.", hint=_HINT) from e
    if not (fits and texts and sized):
        raise DamagedDataset(f"{directory}: {text[:80]!r} does not describe a file of an archive.", hint=_HINT)
    return dict(found)


# -- the user's own columns


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A stored column: ``values`` [episodes], and ``missing`` [episodes], True for episodes without a value."""

    dtype: str
    values: Array | list[str | None]
    missing: BoolArray

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
        """Return the column of some episodes, as `typed` makes it."""
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
    """Return values of a column as `typed` stores them: as int64 unless one needs uint64."""
    if values.dtype != np.uint64 or (values > np.uint64(np.iinfo(np.int64).max)).any():
        return values
    return values.astype(np.int64)


def differing(a: StoredColumn | None, b: StoredColumn | None, episodes: int) -> BoolArray:
    """Return the episodes [episodes] whose values differ; None is a column without a value. Types are compared, too."""
    one, other = (np.ones(episodes, bool) if c is None else c.missing for c in (a, b))
    if a is None or b is None or a.dtype != b.dtype:
        return ~(one & other)
    found: BoolArray = (one != other) | (a.comparable() != b.comparable())
    return found


def is_equal(a: StoredColumn | None, b: StoredColumn | None, episodes: int) -> bool:
    """Return whether columns have the same type and values, or both are None."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and not differing(a, b, episodes).any()


def check_names(names: Iterable[str], where: str) -> None:
    """Refuse names of TED's own columns, names that no directory can have, and names that differ only in case.

    Names with a backquote or a line break cannot be written in expressions. Those with ``@`` are reserved for the
    places of fields with a clock of their own (docs/format.md).

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
            raise InvalidEpisode(f'{where}: episode columns "{seen[name.lower()]}" and "{name}" differ in case only.')
        seen[name.lower()] = name


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
    fields |= {f"{_GROUP}/{column}": value for column, value in about.items() if is_field(column, value)}
    about = {column: value for column, value in about.items() if f"{_GROUP}/{column}" not in fields}
    check_names(about, name)
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

    Raises
    ------
    InvalidEpisode
        The value is not a number, flag or text, or a text that UTF-8 cannot hold.
    """
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


def scalars(values: Sequence[Any], name: str, where: str) -> list[Scalar]:
    """Convert values to Python scalars; see `scalar`."""
    if set(map(type, values)) <= {bool, int, float, str, type(None)}:
        _check_text("".join(v for v in values if isinstance(v, str)), name, where)
        return list(values)
    return [scalar(v, name, where) for v in values]


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


def typed(values: Sequence[Scalar], name: str) -> StoredColumn:
    """Return the stored column: bool, int64 (uint64 if values need it), float64 or texts.

    Raises
    ------
    InvalidEpisode
        Values of several types, or a whole number of more than 64 bits, or of more than 53 beside fractions.
    """
    missing = np.array([v is None for v in values], bool)
    what = _kind(values, name)
    if what == "str":
        return StoredColumn(TEXT, [None if v is None else str(v) for v in values], missing)
    if what in ("int", "long"):
        whole = [v for v in values if isinstance(v, int)]
        dtype = "uint64" if max(whole) > np.iinfo(np.int64).max else "int64"
        limits = np.iinfo(dtype)
        if min(whole) < limits.min or max(whole) > limits.max:
            raise InvalidEpisode(f'the episode column "{name}" has whole numbers of more than 64 bits.')
    else:
        dtype = {"bool": "bool", "float": "float64"}[what]
    filler = np.nan if what == "float" else 0
    return StoredColumn(dtype, np.array([filler if v is None else v for v in values], dtype), missing)


def all_typed(extra: Mapping[str, Sequence[Scalar]]) -> dict[str, StoredColumn]:
    """Return all columns by name, with their names checked."""
    check_names(extra, "the episode table")
    return {name: typed(values, name) for name, values in extra.items()}


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
