"""``<episode>/part-0.arrow`` or ``.parquet``: T+1 rows an episode; columns of steps have padding in the last row.

A file holds an episode in record batches of at most 32,768 rows; there may be several, and several files. They are
read one after the other. Arrow files are mapped, and checked in full before their values are touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.formats import arrow_files, parquet
from rlds_cli.archives.formats.parquet import pyarrow
from rlds_cli.archives.minari import description
from rlds_cli.archives.minari.description import MinariColumn, NamedEpisode, ScannedEpisodes
from rlds_cli.base.array_types import Array
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import EncodedFrames, Space, Text

_STEPS = ("actions", "rewards", "terminations", "truncations")
_BATCH_ROWS = 1 << 13  # of parquet, decoded at a time


def looks_right(path: Path) -> bool:
    """Tell whether a file holds the columns of a Minari episode."""
    with _reading(path):
        return {"observations", "actions"} <= set(_schema(path).names)


def scan(
    files: Sequence[Path], parts: Mapping[int, Sequence[int]], known: Mapping[str, Any]
) -> Iterator[ScannedEpisodes]:
    """Find each episode's number, steps and columns; ``known`` are the spaces by "observations" and "actions"."""
    for number, indices in parts.items():
        paths = [files[i] for i in indices]
        rows = sum(_count(p) for p in paths)
        name = f"{paths[0].parent.name}/{paths[0].name}"
        with _reading(paths[0]):
            leaves = [leaf for column in _schema(paths[0]) for leaf in _leaves(column, (column.name,), known, paths)]
        yield ScannedEpisodes(number, NamedEpisode(name, max(rows - 1, 0)), tuple(leaves))


def first_frame(paths: Sequence[Path], column: tuple[str, ...]) -> bytes:
    """Read the first encoded image of a column."""
    rows = ArrowStorageRows(paths, {"": column}, None, batch_rows=1)
    rows.select(0, 1)
    return rows.frames("", 1).data.tobytes()


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    pa = pyarrow()
    try:
        yield pa
    except (pa.ArrowException, OSError, KeyError, UnicodeError) as e:
        raise CorruptArchive(
            f"{path.parent.name}/{path.name} cannot be read: {e}", hint=f"delete {path} and fetch it again"
        ) from e


def _schema(path: Path) -> Any:
    with _reading(path) as pa:
        if path.suffix == ".parquet":
            return pa.parquet.read_schema(path)
        return arrow_files.schema(path)


def _count(path: Path) -> int:
    with _reading(path) as pa:
        if path.suffix == ".parquet":
            return int(pa.parquet.read_metadata(path).num_rows)
        return arrow_files.count(path)


def _batches(path: Path, rows: int = _BATCH_ROWS) -> Iterator[Any]:
    """Read the record batches of a file, validated; of parquet, ``rows`` at a time."""
    with _reading(path):
        if path.suffix == ".parquet":
            with parquet.opened(path, memory_map=True, pre_buffer=False) as file:
                yield from parquet.batches(file, path, None, rows)
            return
        yield from arrow_files.batches(path)


def read_through(path: Path) -> None:
    """Read a file to its end.

    Raises
    ------
    CorruptArchive
        It is damaged.
    """
    for _ in _batches(path):
        pass


def _leaves(
    field: Any, path: tuple[str, ...], known: Mapping[str, Any], files: Sequence[Path]
) -> Iterator[MinariColumn]:
    types = pyarrow().types
    if types.is_struct(field.type):
        for inner in field.type:
            yield from _leaves(inner, (*path, inner.name), known, files)
        return
    extra = 0 if path[0] in _STEPS else 1
    space = Space(known.get(path[0])).at(path[1:])
    if types.is_binary(field.type) or types.is_large_binary(field.type):
        yield MinariColumn(path, "frames", "uint8", space.row_shape or (), extra)
    elif types.is_string(field.type) or types.is_large_string(field.type):
        yield MinariColumn(path, "text", "str", (), extra)
    else:
        yield _numbers(field, path, extra, space.row_shape, files)


def _numbers(
    field: Any, path: tuple[str, ...], extra: int, known: tuple[int, ...] | None, files: Sequence[Path]
) -> MinariColumn:
    types = pyarrow().types
    kind = field.type
    shape: list[int] = []
    while types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        width = int(kind.list_size) if types.is_fixed_size_list(kind) else _width(files, path, len(shape))
        if width is None:
            return MinariColumn(path, "array", "", (), extra, "rows of different lengths")
        shape.append(width)
        kind = kind.value_type
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return MinariColumn(path, "array", "", (), extra, f"values of type {kind}")
    dtype = "bool" if types.is_boolean(kind) else np.dtype(kind.to_pandas_dtype()).name
    for stated in (known, _stated(field)):
        if stated is not None and np.prod(stated, dtype=np.int64) == np.prod(shape, dtype=np.int64):
            return MinariColumn(path, "array", dtype, stated, extra)
    return MinariColumn(path, "array", dtype, tuple(shape), extra)


def _stated(field: Any) -> tuple[int, ...] | None:
    """Return the shape that Minari writes beside flattened infos: ``b"2,3"``, empty for scalars."""
    text = (field.metadata or {}).get(b"shape")
    if text is None:
        return None
    return tuple(int(n) for n in text.decode().split(",") if n)


def _width(files: Sequence[Path], path: tuple[str, ...], depth: int) -> int | None:
    """Return the number of elements in the lists of a column; None if it differs."""
    found: set[int] = set()
    for file in files:
        for batch in _batches(file):
            column = _column(batch, path)
            for _ in range(depth):
                column = column.flatten()
            found.update(pyarrow("compute").compute.list_value_length(column).unique().to_pylist())
    return found.pop() if len(found) == 1 else None


def _column(batch: Any, path: Sequence[str]) -> Any:
    column = batch.column(path[0])
    for key in path[1:]:
        column = column.field(key)
    return column


class ArrowStorageRows:
    """The rows of one episode; see `minari.EpisodeRows`."""

    def __init__(
        self,
        files: Sequence[Path],
        paths: Mapping[str, tuple[str, ...]],
        metadata: Path | None,
        *,
        batch_rows: int,
    ) -> None:
        self._first = files[0]
        self._name = f"{files[0].parent.name}/{files[0].name}"
        self._paths, self._metadata = paths, metadata
        self._source = (batch for file in files for batch in _batches(file, min(batch_rows, _BATCH_ROWS)))
        self._read = 0
        self._rest: Any = None
        self._selected: list[Any] = []

    def select(self, start: int, stop: int) -> None:
        """Go to rows [start, stop); ``start`` is where the last selection stopped."""
        self._selected, wanted = [], stop - start
        self._read = stop
        while wanted:
            batch = self._rest if self._rest is not None else next(self._source, None)
            if batch is None:
                raise CorruptArchive(f"{self._name} ends {wanted:,} rows before row {stop:,}.")
            self._selected.append(batch.slice(0, wanted))
            self._rest = batch.slice(wanted) if batch.num_rows > wanted else None
            wanted -= self._selected[-1].num_rows

    def array(self, name: str, out: Array) -> None:
        """Fill ``out`` with the first ``len(out)`` rows selected."""
        for column, rows in self._pieces(name, len(out)):
            while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
                column = column.flatten()
            values = column.to_numpy(zero_copy_only=False)
            target = out[rows]
            if values.size != target.size or (column.null_count and values.dtype.kind != "f"):
                raise CorruptArchive(f"{self._name}: {'/'.join(self._paths[name])} has missing values.")
            target[...] = values.reshape(target.shape)

    def frames(self, name: str, count: int) -> EncodedFrames:
        """Read encoded images of the first ``count`` rows selected."""
        data, lengths = [np.zeros(0, np.uint8)], [np.zeros(0, np.int64)]
        for column, _ in self._pieces(name, count):
            offsets, values = _binary(column)
            data.append(values[offsets[0] : offsets[-1]])
            lengths.append(np.diff(offsets))
        return EncodedFrames(np.concatenate(data), np.concatenate(lengths))

    def text(self, name: str, count: int) -> Text:
        """Read strings of the first ``count`` rows selected."""
        return [value for column, _ in self._pieces(name, count) for value in column.to_pylist()]

    def describe(self) -> description.Described:
        """Read seed and options, from the episode's own metadata."""
        content = description.read(self._metadata) if self._metadata else {}
        stated = content.get("total_steps", self._read - 1)
        if stated != self._read - 1:
            raise CorruptArchive(
                f"{self._name}: the episode has {self._read:,} rows; its metadata.json says {stated} steps, and a row "
                "more than steps is expected.",
                hint="a file may be missing: fetch the archive again",
            )
        return description.described(content.get("seed"), content.get("options"))

    def _pieces(self, name: str, count: int) -> Iterator[tuple[Any, slice]]:
        at = 0
        with _reading(self._first):
            for batch in self._selected:
                rows = min(batch.num_rows, count - at)
                if rows > 0:
                    yield _column(batch, self._paths[name]).slice(0, rows), slice(at, at + rows)
                at += rows


def _binary(column: Any) -> tuple[Array, Array]:
    """Return offsets (one more than values) and bytes of a binary column."""
    pa = pyarrow("compute")
    column = pa.compute.fill_null(column.cast(pa.large_binary()), b"")
    _, offsets, values = column.buffers()
    found = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return found, np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
