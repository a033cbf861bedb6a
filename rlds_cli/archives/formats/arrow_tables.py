"""Read Arrow record batches forward, as columns of numbers, flags, texts and lists of one length.

Parquet, Arrow files, CSV and JSON lines are all read through this module. Members of a struct are columns of their own,
their names joined by ``/``; a struct of ``bytes`` and ``path`` is one column, of the bytes. A row without a value is an
error unless ``fill`` is set: then it reads as 0. A missing float is always NaN, and a missing text None. The column
``missing:NAME`` marks rows without a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.archives.formats.text_numbers import Mixed
from rlds_cli.base.array_types import Array
from rlds_cli.base.packages import pyarrow as pyarrow
from rlds_cli.errors import CorruptArchive, UnknownLayout

MISSING = "missing:"
MAX_COLUMN = 64 << 20
_SCHEMAS = 1 << 8  # that are remembered: thousands of files have the same one
Batches = Callable[[Sequence[str] | None, int], Iterator[Any]]


class ArrowFile:
    """The columns of an open file.

    Parameters
    ----------
    path : Path
        The file, for messages.
    schema : pyarrow.Schema
    num_rows : int
    batches : callable
        Yields the record batches of some top-level columns (None: of all) from a row on, in the order of the rows.
    fill : bool
        Read rows without a value as 0.

    Attributes
    ----------
    columns : dict of str to (shape, dtype)
        Shape with the rows first. ``left_out`` maps columns of other kinds to their types.
    """

    def __init__(self, path: Path, schema: Any, num_rows: int, batches: Batches, *, fill: bool = False) -> None:
        self.path, self.num_rows, self.batches, self.fill = path, num_rows, batches, fill
        self.schema = schema
        self.columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self.left_out: dict[str, str] = {}
        self.mixed: Mapping[str, Mixed] = {}  # texts of a column that holds numbers, too
        self.tops: dict[str, str] = {}  # top-level column of each column
        self.paths: set[str] = set()  # structs of ``bytes`` and ``path`` that are read as paths
        self.filled: set[str] = set()  # columns that are read as if ``fill`` were set
        self.unread: Mapping[str, str] = {}  # columns that are left out, with the reason
        self.described: Mapping[str, str] = {}  # texts about the table, by name
        if not num_rows:
            return
        found = {leaf.name: leaf for leaf in _all_leaves(schema)}
        self.tops = {name: leaf.top for name, leaf in found.items()}
        examples = self._examples([name for name, leaf in found.items() if leaf.is_list])
        for name, leaf in found.items():
            shape, dtype = (num_rows,), leaf.dtype
            example = examples.get(name)
            if example is not None and is_known(example.type):
                values, _ = self.values(name, example, None)
                shape, dtype = (num_rows, *values.shape[1:]), values.dtype
            if dtype is None:
                self.left_out[name] = str(leaf.kind)
            else:
                self.columns[name] = (shape, dtype)

    def _examples(self, names: Collection[str]) -> dict[str, Any]:
        """Return one row of each column of lists, for their length; None where no row has a list."""
        found: dict[str, Any] = dict.fromkeys(names)
        for batch in self.batches(None, 0) if names else ():
            flat = flatten(batch)
            for name in [n for n, column in found.items() if column is None]:
                if flat[name].null_count < len(flat[name]):
                    at = int(np.argmin(flat[name].is_null().to_numpy(zero_copy_only=False)))
                    found[name] = flat[name].slice(at, 1)
            if None not in found.values():
                break
        return found

    @property
    def unfit(self) -> Mapping[str, str]:
        """Columns of values that no field can hold, with their types."""
        return self.left_out

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of all columns."""
        return sum(math.prod(shape[1:]) * dtype.itemsize for shape, dtype in self.columns.values())

    def rows(self, names: Collection[str]) -> ArrowRows:
        """Read the rows of some columns, among them ``missing:NAME``."""
        return ArrowRows(self, sorted(names))

    def read_paths(self, name: str) -> bool:
        """Read a struct of ``bytes`` and ``path`` as its paths, if its first row has a path; return whether it has."""
        if name not in self.tops or not self._is_struct_of_images(name):
            return False
        kept = self.columns[name]
        self.paths.add(name)
        self.columns[name] = (kept[0], np.dtype(object))
        if self.rows([name]).read(0, 1)[name][0]:
            return True
        self.paths.discard(name)
        self.columns[name] = kept
        return False

    def _is_struct_of_images(self, name: str) -> bool:
        batch = next(self.batches([self.tops[name]], 0), None)
        return batch is not None and is_image(flatten(batch)[name].type)

    def array(self, name: str, *, most: int = MAX_COLUMN) -> Array:
        """Read a whole column of at most ``most`` bytes."""
        shape, dtype = self.columns[name]
        if math.prod(shape) * dtype.itemsize > most:
            raise CorruptArchive(f"{self.path.name}: {name} has more than {most:,} bytes.")
        return self.rows([name]).read(0, shape[0])[name]

    def values(self, name: str, column: Any, shape: tuple[int, ...] | None) -> tuple[Array, Array]:
        """Read the values [n, ...] of a column of a batch, and which rows have none, bool [n].

        ``shape`` is the expected shape of a row; None accepts any.
        """
        import pyarrow as pa

        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        missing = column.is_null().to_numpy(zero_copy_only=False)
        if is_image(column.type):
            column = pyarrow("compute").compute.struct_field(column, "path" if name in self.paths else "bytes")
        if _is_binary(column.type):
            return np.array(column.to_pylist(), object), missing
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        filled = self.fill or name in self.filled
        if missing.any() and not (filled or text or pa.types.is_floating(column.type)):
            raise UnknownLayout(
                f"{self.path.name}: {name} has {int(missing.sum()):,} rows without a value.",
                hint="only the last row of an episode may lack its action, reward and flags: it then holds the "
                "final observation",
            )
        if text:
            return np.array(column.to_pylist(), object), missing
        present = column.drop_null() if missing.any() and _is_list(column.type) else column
        values = self._numbers(name, present)
        if shape is not None and len(present) and values.shape[1:] != shape:
            raise UnknownLayout(
                f"{self.path.name}: {name} has rows of {list(values.shape[1:])}; others have {list(shape)}."
            )
        if len(present) == len(column):
            return values, missing
        width = values.shape[1:] if len(present) else shape or ()
        out = np.full((len(column), *width), np.nan if values.dtype.kind == "f" else 0, values.dtype)
        out[~missing] = values.reshape(-1, *width)
        return out, missing

    def _numbers(self, name: str, column: Any) -> Array:
        """The numbers of a column, whose rows are single numbers or lists of one length."""
        import pyarrow as pa

        width, rows = [], len(column)
        while _is_list(column.type):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False) if len(column) else np.zeros(0, np.int64)
            if len(lengths) and (column.null_count or (lengths != lengths[0]).any()):
                raise UnknownLayout(
                    f"{self.path.name}: {name} has rows of different lengths.",
                    hint="a row is a step; if it is an episode or a batch of steps: write a row for each step, with a "
                    "column of episode ids, or pass the episodes to rlds_cli.create",
                )
            width.append(int(lengths[0]) if len(lengths) else 0)
            column = column.flatten()
        if column.null_count and not pa.types.is_floating(column.type):
            if width:
                raise UnknownLayout(f"{self.path.name}: {name} has lists with elements that have no value.")
            column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
        return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(rows, *width)


class ArrowRows:
    """Rows of several columns, read forward; the rows of the last call can be read again."""

    def __init__(self, source: ArrowFile, names: Sequence[str]) -> None:
        self._source, self._names = source, names
        self._read = sorted({n.removeprefix(MISSING) for n in names})
        self._tops = sorted({source.tops[n] for n in self._read})
        self._batches: Iterator[Any] | None = None if names else iter(())
        self._start = 0
        self._kept = {n: self._none(*self._kind(n)) for n in names}

    @staticmethod
    def _none(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return no rows of a column."""
        return np.empty((0, *shape[1:]), object if dtype.kind == "V" else dtype)

    def _kind(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        if name.startswith(MISSING):
            return (self._source.num_rows,), np.dtype(bool)
        return self._source.columns[name]

    def __enter__(self) -> ArrowRows:
        return self

    def __exit__(self, *exc: Any) -> None:
        return None

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Read rows ``start`` to ``stop`` of every column; rows before ``start`` cannot be read again.

        Raises
        ------
        CorruptArchive
            The file is damaged.
        UnknownLayout
            Rows have different shapes, or no value.
        """
        if start < self._start:
            raise ValueError(f"row {start} was read already: reading has come to row {self._start}.")
        have = self._start + len(next(iter(self._kept.values()), ()))
        if self._batches is None:
            self._batches, self._start, have = self._source.batches(self._tops, start), start, start
        elif start > have:  # rows that nobody reads are not kept
            self._batches = from_row(self._batches, start - have)
            self._kept, self._start, have = {n: v[:0] for n, v in self._kept.items()}, start, start
        blocks = {n: [v] for n, v in self._kept.items()}
        with reading(self._source.path):
            while self._names and have < stop and (batch := next(self._batches, None)) is not None:
                for name, values in self._values(batch).items():
                    blocks[name].append(values)
                have += len(batch)
        joined = {n: np.concatenate(v) if len(v) > 1 else v[0] for n, v in blocks.items()}
        self._kept = {n: v[start - self._start :] for n, v in joined.items()}
        self._start = start
        return {n: v[: stop - start] for n, v in self._kept.items()}

    def _values(self, batch: Any) -> dict[str, Array]:
        flat, out = flatten(batch), {}
        for name in self._read:
            shape, dtype = self._source.columns[name]
            values, missing = self._source.values(name, flat[name], shape[1:])
            out[name] = values if dtype.kind in "SUOV" else values.astype(dtype, copy=False)
            out[MISSING + name] = missing | is_nan(values)
        return {n: out[n] for n in self._names}


def from_row(batches: Iterator[Any], start: int) -> Iterator[Any]:
    """Record batches without the first ``start`` rows."""
    for batch in batches:
        if start < len(batch):
            yield batch.slice(start)
        start = max(0, start - len(batch))


def is_nan(values: Array) -> Array:
    """Return the mask [n] of rows that are NaN in every component; all False for values that are not floats."""
    if values.dtype.kind not in "fc" or not values.size:
        return np.zeros(len(values), bool)
    return np.asarray(np.isnan(values.reshape(len(values), -1)).all(axis=1))


def flatten(batch: Any) -> dict[str, Any]:
    """Return the columns of a record batch by name, members of structs as ``struct/member``."""
    return {
        name: column
        for field, top in zip(batch.schema, batch.columns, strict=True)
        for name, column in _flat(field, top)
    }


def _flat(field: Any, column: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    import pyarrow as pa

    name, column = f"{above}{field.name}", _stored(column)
    if not pa.types.is_struct(column.type) or is_image(column.type):
        yield name, column
        return
    for member, values in zip(column.type, column.flatten(), strict=True):
        yield from _flat(member, values, f"{name}/")


class _Leaf(NamedTuple):
    """A column of a table, or a member of its structs: type, top-level column, and what `_dtype_of` its type is."""

    name: str
    kind: Any
    top: str
    dtype: np.dtype[Any] | None
    is_list: bool


@lru_cache(_SCHEMAS)
def _all_leaves(schema: Any) -> tuple[_Leaf, ...]:
    """Return the columns of a table, or the members of structs."""
    found = ((name, kind, field.name) for field in schema for name, kind in leaves(field))
    return tuple(_Leaf(name, kind, top, _dtype_of(kind), _is_list(kind)) for name, kind, top in found)


def leaves(field: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Names and types of a column, or of the members of a struct."""
    import pyarrow as pa

    kind = stored_kind(field.type)
    if not pa.types.is_struct(kind) or is_image(kind) or not kind.num_fields:
        yield f"{above}{field.name}", kind
        return
    for member in kind:
        yield from leaves(member, f"{above}{field.name}/")


def stored_kind(kind: Any) -> Any:
    """Return the type in which the values of an extension type are stored: of a tensor, lists within lists."""
    import pyarrow as pa

    if not isinstance(kind, pa.BaseExtensionType):
        return kind
    if not isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type
    found = kind.value_type
    for width in reversed(kind.shape):
        found = pa.list_(found, width)
    return found


def _stored(column: Any) -> Any:
    """Return the values of a column of an extension type as they are stored; other columns as they are."""
    import pyarrow as pa

    kind = column.type
    if not isinstance(kind, pa.BaseExtensionType):
        return column
    if not isinstance(kind, pa.FixedShapeTensorType):
        return column.storage
    if [*(kind.permutation or ())] != sorted(kind.permutation or ()):
        raise UnknownLayout(
            f"A column holds tensors whose axes are in the order {[*kind.permutation]}, which is not read.",
            hint="write them in the order of their axes, or as lists",
        )
    outer, *inner = kind.shape
    size, start = math.prod(kind.shape), column.storage.offset
    values = column.storage.values.slice(start * size, len(column) * size)
    for width in reversed(inner):
        values = pa.FixedSizeListArray.from_arrays(values, width)
    return pa.FixedSizeListArray.from_arrays(values, outer, mask=column.is_null())


def unfit(kind: Any) -> str:
    """Return why no field can hold values of a type."""
    empty = pyarrow().types.is_struct(kind) and not kind.num_fields
    return "it has no members" if empty else f"no field can hold {kind} values"


def is_known(kind: Any) -> bool:
    """Return whether values are texts, numbers or flags, or lists of numbers or flags."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_binary(kind) or is_image(kind):
        return True
    while _is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


@lru_cache(1 << 10)
def _dtype_of(kind: Any) -> np.dtype[Any] | None:
    """Return the dtype in which values of a type are read; None for lists, whose rows say it, and for other types."""
    import pyarrow as pa

    if _is_list(kind) or not is_known(kind):
        return None
    if _is_binary(kind) or is_image(kind):
        return np.dtype("V")
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.dtype(object)
    return np.asarray(pa.array([], kind).to_numpy(zero_copy_only=False)).dtype


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_image(kind: Any) -> bool:
    """Return whether a struct is the one in which the ``datasets`` library keeps images: ``bytes`` and ``path``."""
    import pyarrow as pa

    if not pa.types.is_struct(kind) or {member.name for member in kind} != {"bytes", "path"}:
        return False
    return _is_binary(kind.field("bytes").type)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


@contextmanager
def reading(path: Path, what: str = "Parquet") -> Iterator[None]:
    """Turn the errors of pyarrow while it reads a file into CorruptArchive."""
    pa = pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError) as e:
        raise CorruptArchive(f"{path.name} cannot be read as {what}: {e}", hint=f"fetch or write {path} again") from e
