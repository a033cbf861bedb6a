"""Inputs of functions whose fields are read when they are used: frames, texts and large rows.

A `LazyBatch` holds a `LazyArray` for each such field, and returns the values themselves when it is indexed::

    episode["camera"]                     uint8 [T+1, H, W, C], decoded at the first access
    {**episode, "action": action}         the LazyArray of the camera, which nothing has decoded
    {n: v[a:b] for n, v in ...items()}    LazyArrays of some of the rows, which nothing has decoded

A function that returns a LazyArray as it is keeps the stored bytes of these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.text import did_you_mean, split_name
from rlds_cli.dataset import Batch, Dataset, Tasks
from rlds_cli.errors import UnknownField
from rlds_cli.ted import TASK, TASK_AT, LazyColumn, Scalar, Subtasks

if TYPE_CHECKING:
    from rlds_cli.store import Store

EPISODE = "episode"
_BY_NUMBER = ("number", "start")
ALL = slice(None)
_ABSENT = object()


class LazyArray(LazyColumn):
    """An array that is read when its values are used; its shape and dtype are known before.

    It stands for its values in expressions and in functions of NumPy and torch. A slice of rows is lazy too.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        Of the stored values: object for text.
    read : callable
        Returns the stored values, read-only; the same ones each time.
    convert : callable
        Copies the stored values: to an array, or with `tensor` to a tensor of torch.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        read: Callable[[], Array],
        convert: Callable[[Array], Any] = np.array,
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._read, self._convert = read, convert
        self._values: Any = None
        self._base, self._index = self, ALL
        self._rows = range(shape[0])

    def _part(self, index: Any, shape: tuple[int, ...], rows: range) -> LazyArray:
        base = self._base
        part = LazyArray((1,), self.dtype, base._read, base._convert)
        part.shape, part._base, part._index, part._rows = shape, base, index, rows
        return part

    # -- what a runner asks

    @property
    def is_read(self) -> bool:
        """True if the function has used the values, and may have changed them."""
        return self._base._values is not None

    def is_of(self, field: object) -> bool:
        """Return whether these are rows of a field of the input, and the function has not used the values."""
        return isinstance(field, LazyArray) and self._base._read is field._base._read and not self.is_read

    @property
    def values(self) -> Any:
        """The values in memory of their own, which the function may change."""
        base = self._base
        if base._values is None:
            base._values = base._convert(base._read())
        return base._values[self._index] if base is not self else base._values

    @property
    def source(self) -> Array:
        """The values of the source, read-only."""
        return self._base._read()[self._index]

    @property
    def rows(self) -> slice:
        """The rows of the source; ``slice(None)`` for all."""
        if self._rows == range(self._base.shape[0]):
            return ALL
        return slice(self._rows.start, self._rows.stop, self._rows.step)

    def frozen(self) -> LazyArray:
        """Return the same values, which the function may not change."""
        return LazyArray(self.shape, self.dtype, self._read, frozen)

    def at(self, i: int) -> LazyArray:
        """Return row ``i``, of which no row is read either."""
        return self._part(i, self.shape[1:], range(i, i + 1))

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) of the source, see `LazyColumn`."""
        return self.source[start:stop]

    # -- what an array has

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.size * self.dtype.itemsize

    def copy(self) -> Any:
        """Return the values in other memory; a LazyArray as long as nothing has read them."""
        if self.is_read:
            values = self.values
            return values.copy() if isinstance(values, np.ndarray) else values.clone()
        base = self._base
        return LazyArray(base.shape, base.dtype, base._read, base._convert)._part(self._index, self.shape, self._rows)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Any:
        return self.copy()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and self.ndim and (key.step is None or key.step > 0) and not self.is_read:
            rows = self._rows[key]
            return self._part(slice(rows.start, rows.stop, rows.step), (len(rows), *self.shape[1:]), rows)
        return self.values[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[key] = value_of(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.values, dtype) if copy else np.asarray(self.values, dtype)

    def __reduce__(self) -> tuple[object, ...]:
        return value_of, (self.values,)

    def __repr__(self) -> str:
        return repr(self.values) if self.is_read else f"<{self.dtype} {list(self.shape)}, not read>"

    def __getattr__(self, name: str) -> Any:
        if not hasattr(_tensor_class() if self._base._convert is tensor else np.ndarray, name):
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")
        return getattr(self.values, name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*_resolved(args), **_resolved(kwargs or {}))


def tensor(values: Array) -> Any:
    """Copy an array to a tensor of torch."""
    import torch

    return torch.as_tensor(values.copy())


def frozen(values: Array) -> Array:
    """Return a read-only view."""
    view = values.view()
    view.flags.writeable = False
    return view


def _tensor_class() -> type:
    import torch

    return torch.Tensor


def _resolved(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(map(_resolved, x))
    return {k: _resolved(v) for k, v in x.items()} if isinstance(x, dict) else value_of(x)


def _operator(name: str) -> Callable[..., Any]:
    def method(self: LazyArray, *args: Any) -> Any:
        return getattr(self.values, name)(*map(value_of, args))

    return method


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod"
_OTHERS = "neg pos abs invert eq ne lt le gt ge bool int float index contains"
for _name in [*(f"{side}{n}" for n in _BINARY.split() for side in ("", "r", "i")), *_OTHERS.split()]:
    setattr(LazyArray, f"__{_name}__", _operator(f"__{_name}__"))


def value_of(x: Any) -> Any:
    """Return the values of a LazyArray; anything else as it is."""
    return x.values if isinstance(x, LazyArray) else x


# -- columns of the episode table


class StoredColumns:
    """The columns of the episode table of a source, each read once.

    ``by_number`` is True once something was read that an episode has another one of in another version: its number, or
    its first row.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._table = store, Dataset(store).episodes
        self._known: dict[str, Array] = {}
        self.by_number = False

    @cached_property
    def stored(self) -> frozenset[str]:
        """Names of the columns in the table."""
        return frozenset(self._table)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns: ``stored`` ones, and ``number``, that of the episode in the source."""
        return tuple(dict.fromkeys(["number", *self._table, "group", "options", "seed"]))

    def of_episode(self, number: int, steps: int | None = None) -> Mapping[str, Any]:
        """Return the columns of an episode: a number, flag or text each, None for none; the id has 32 hex digits.

        ``steps`` is the number of its steps, where a batch has all of them.
        """
        return _Columns(self, lambda name: self._scalar(name, number), steps)

    def of_steps(self, numbers: IntArray) -> Mapping[str, Any]:
        """Return the columns of the episodes ``numbers`` [B]: floats [B, 1], others [B]."""
        return _Columns(self, lambda name: self._rows(name, numbers))

    def _scalar(self, name: str, number: int) -> Scalar:
        self.by_number |= name in _BY_NUMBER
        if name == "number":
            return number
        if name in self._store.own_columns:
            return self._store.own_column(name).scalar(number)
        value = self._column(name)[number]
        if name == "id":
            return bytes(value).hex()
        found: Scalar = value.item() if isinstance(value, np.generic) else value
        return None if found == "" else found  # of `group` and `options`

    def _rows(self, name: str, numbers: IntArray) -> Array:
        self.by_number |= name in _BY_NUMBER
        values = numbers.copy() if name == "number" else self._column(name)[numbers]
        return values[:, None] if values.dtype.kind == "f" else values

    def _column(self, name: str) -> Array:
        if name not in self._known:
            self._known[name] = self._seeds() if name == "seed" else self._table[name]
        return self._known[name]

    def _seeds(self) -> Array:
        """Return the seeds, None for episodes without one."""
        e, count = self._store.episodes, len(self._table)
        has = e.get("has_seed", np.zeros(count, bool))
        seeds = zip(e.get("seed", has).tolist(), has.tolist(), strict=True)
        return np.array([seed if known else None for seed, known in seeds], object)

    def subtask_of(self, columns: Mapping[str, Any], steps: int | None) -> Any:
        """Return the sub-task of each step of a whole episode; _ABSENT where nothing says so."""
        if steps is None or not Tasks(self._store).has_subtasks:
            return _ABSENT
        told = columns[Subtasks.COLUMN]
        return Subtasks.of([] if told is None else told, "an episode").at(np.arange(steps))

    def task_of(self, batch: Batch, columns: Mapping[str, Any], steps: int | None) -> Any:
        """Return what is to be done at the steps of a batch with these columns; _ABSENT where nothing says so."""
        if TASK_AT in self._store.fields:
            return value_of(dict.get(batch, TASK_AT, _ABSENT))
        if not Tasks(self._store).is_column:
            return _ABSENT
        return columns[TASK] if steps is None else np.full(steps, columns[TASK], object)

    def unknown(self, name: str) -> UnknownField:
        """Return the error for a column that the table does not have."""
        there = ", ".join(self.names)
        near = did_you_mean(name, self.names)
        return UnknownField(f'no episode column "{name}" in {self._store.manifest.id}.{near} Columns: {there}')


class _Columns(Mapping[str, Any]):
    def __init__(self, of: StoredColumns, read: Callable[[str], Any], steps: int | None = None) -> None:
        self._of, self._read, self._steps = of, read, steps

    def told(self, name: str, batch: Batch) -> Any:
        """Return the texts ``task`` or ``subtask`` of the steps of a batch; _ABSENT where nothing says so."""
        if name == Subtasks.FIELD:
            return self._of.subtask_of(self, self._steps)
        return self._of.task_of(batch, self, self._steps)

    def __getitem__(self, name: str) -> Any:
        if name not in self._of.names:
            raise self._of.unknown(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._of.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._of.names)

    def __len__(self) -> int:
        return len(self._of.names)


class EpisodeInfo(Mapping[str, Any]):
    """The columns of an episode in the input of a function; those that the function sets are columns of the result."""

    def __init__(self, batch: Batch, stored: Mapping[str, Any]) -> None:
        self._batch, self._stored = batch, stored

    @property
    def _written(self) -> Batch:
        return dict.get(self._batch, EPISODE) or Batch()

    def __getitem__(self, name: str) -> Any:
        found = self._written.get(name, _ABSENT)
        return self._stored[name] if found is _ABSENT else found

    def __setitem__(self, name: str, value: Any) -> None:
        self._batch[f"{EPISODE}/{name}"] = value

    def __contains__(self, name: object) -> bool:
        return name in self._stored or name in self._written

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._stored, *self._written.names()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"<columns of the episode: {', '.join(self)}>"


class EpisodeBatch(Batch):
    """A batch that knows the columns of its episode.

    They are reached as ``batch["episode/task"]`` and ``batch["episode"]["task"]``, and are not among the items of the
    batch until one is set, so that a function that goes through all fields does not meet them. ``batch["task"]`` is
    what is to be done at the steps, also where that is a column.
    """

    __slots__ = ("columns",)

    columns: Mapping[str, Any]

    def __missing__(self, key: Any) -> Any:
        column = self._column(key)
        return super().__missing__(key) if column is _ABSENT else column

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of ``key``, a name, a name with ``/`` or a tuple, else ``default``."""
        column = self._column(key)
        return super().get(key, default) if column is _ABSENT else column

    def __contains__(self, key: object) -> bool:
        named: Any = key if isinstance(key, str | tuple) else ()
        return Batch.get(self, named, _ABSENT) is not _ABSENT

    def _column(self, key: Any) -> Any:
        """Return the columns of the episode, or the one that ``key`` names; _ABSENT for the name of a field."""
        named = isinstance(key, str) or (isinstance(key, tuple) and all(isinstance(part, str) for part in key))
        parts = split_name(key) if named else ()
        columns = getattr(self, "columns", None)
        told = parts in ((TASK,), (Subtasks.FIELD,)) and dict.get(self, parts[0], _ABSENT) is _ABSENT
        if told and isinstance(columns, _Columns):
            return columns.told(parts[0], self)
        if parts[:1] != (EPISODE,) or not isinstance(dict.get(self, EPISODE, {}), dict):
            return _ABSENT
        info, name = EpisodeInfo(self, getattr(self, "columns", {})), "/".join(parts[1:])
        return info[name] if name else info

    def copy(self) -> Batch:
        """Return another batch that holds the same arrays."""
        return self._in_same(type(self)((k, v.copy() if isinstance(v, Batch) else v) for k, v in self.items()))

    def __copy__(self) -> Batch:
        return self._in_same(type(self)(self))

    def _in_same(self, other: EpisodeBatch) -> EpisodeBatch:
        columns = getattr(self, "columns", None)
        return other if columns is None else in_episode(other, columns)


def in_episode(batch: EpisodeBatch, columns: Mapping[str, Any]) -> EpisodeBatch:
    """Set the columns of a batch's episode, and return the batch itself."""
    batch.columns = columns
    return batch


class LazyBatch(EpisodeBatch):
    """A batch whose fields are read when they are used: it holds a LazyArray for each of them."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        found = dict.get(self, key, _ABSENT)
        if found is _ABSENT or key == EPISODE:
            column = self._column(key)
            found = column if column is not _ABSENT else self.__missing__(key) if found is _ABSENT else found
        return value_of(found)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of ``key``, a name, a name with ``/`` or a tuple, else ``default``."""
        return value_of(super().get(key, default))

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """Return a batch of the same names with ``function`` applied to every value, see `Batch.map`."""
        return super().map(lambda x: function(value_of(x)))
