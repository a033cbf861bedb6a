"""Columns packed row by row, so that one copy reads all fields of a short window.

::

    row t     | observation float32 [17] | action float32 [6] | reward | terminated truncated | pad |
    row t+1   | ...

Fields stand by descending item size, each row is padded to the widest, so every value is aligned. A window is
contiguous: a gather copies one void scalar per window out of the block seen as overlapping windows. The last row is
copied only as far as it is read: the second row of a transition up to the end of its observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.loader.fields.columns import BatchColumn, FieldColumn
from rlds_cli.loader.storage import memory, packed
from rlds_cli.loader.storage.packed import PackedContent
from rlds_cli.loader.storage.page_cache import PlannedRead, RandomMap
from rlds_cli.loader.windows.samples import ColumnRows, Samples
from rlds_cli.ted import FLAGS, REWARD, Array, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

MOST_ROWS = 8  # of a window: longer ones are as fast column by column
MOST_ROW_BYTES = 256
TILE_ROWS = 4096  # written at once: they stay in a cache while the columns are filled in one by one


@dataclass(frozen=True, slots=True)
class BlockField:
    """One field of a block.

    Parameters
    ----------
    name : str
    dtype : numpy.dtype
        The dtype in the block; values are cast to it.
    shape : tuple of int
        Of one row.
    source : array [rows, *shape], or callable
        The values, or a function of (first row, last row + 1) that gives them.
    made_of : str
        All that a computed field depends on besides the dataset; empty for a column of the store.
    after : bool
        True if the row after is read, too: such fields stand first among fields of their item size.

    Attributes
    ----------
    row_bytes : int
        Of a row, in the block.
    void : numpy.dtype
        A row as one scalar: one copy of a few bytes, where numbers would be copied one by one.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    source: Array | Callable[[int, int], Array]
    made_of: str = ""
    after: bool = False
    row_bytes: int = dataclasses.field(init=False)
    void: np.dtype[Any] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", self.dtype.itemsize * prod(self.shape))
        object.__setattr__(self, "void", np.dtype((np.void, self.row_bytes)))

    def values(self, first: int, end: int) -> Array:
        """Return rows ``first`` to ``end`` of the source."""
        return self.source(first, end) if callable(self.source) else self.source[first:end]


def stored_block(dataset: Dataset, name: str, dtype: npt.DTypeLike | None = None) -> BlockField:
    """Return the block field of a stored array field, cast to ``dtype``."""
    f = dataset.schema[name]
    kind = np.dtype(f.dtype if dtype is None else dtype)
    return BlockField(name, kind, f.shape, dataset.column(name), after=f.placement == "both")


def obstacle(row_bytes: int, window_rows: int) -> str | None:
    """Return why windows of ``window_rows`` rows are not packed; None if they are.

    Longer windows and wider rows are read as fast column by column, which takes no space of its own.
    """
    if window_rows > MOST_ROWS:
        return f"windows of {window_rows} rows (at most {MOST_ROWS} are packed)"
    if row_bytes > MOST_ROW_BYTES:
        return f"{row_bytes:,} B a row (at most {MOST_ROW_BYTES} are packed)"
    return None


class RowLayout:
    """The place of each field in a row.

    Parameters
    ----------
    fields : iterable of BlockField
        In any order: the same fields make the same block.
    """

    def __init__(self, fields: Iterable[BlockField]) -> None:
        self.fields = sorted(fields, key=lambda f: (-f.dtype.itemsize, not f.after, f.name))
        self.offsets: dict[str, int] = {}
        end = 0
        for f in self.fields:
            self.offsets[f.name] = end
            end += f.row_bytes
        self._widest = max((f.dtype.itemsize for f in self.fields if f.row_bytes), default=1)
        self.row_bytes = self._padded(end)
        self._until: dict[frozenset[str], int] = {}

    def until(self, names: Collection[str]) -> int:
        """Return the bytes from the start of a row to the end of the last of these fields, padded."""
        chosen = frozenset(names)
        if chosen not in self._until:
            ends = (self.offsets[f.name] + f.row_bytes for f in self.fields if f.name in chosen)
            self._until[chosen] = self._padded(max(ends, default=0))
        return self._until[chosen]

    def _padded(self, size: int) -> int:
        return -(-size // self._widest) * self._widest

    def key(self) -> dict[str, Any]:
        """Return the key of a block: all that its content depends on, as JSON."""
        return {"row": [[f.name, f.dtype.str, list(f.shape), f.made_of] for f in self.fields]}

    def tiles(self, rows: int) -> Iterator[Array]:
        """Yield the block from top to bottom, uint8 [n, row_bytes] each, in the same memory."""
        tile = np.zeros((min(TILE_ROWS, rows), self.row_bytes), np.uint8)
        inside = [self._within(tile, f) for f in self.fields]
        for first in range(0, rows, TILE_ROWS):
            end = min(first + TILE_ROWS, rows)
            with np.errstate(over="ignore"):  # a float32 that was a float64 beyond its range is infinite
                for f, place in zip(self.fields, inside, strict=True):
                    place[: end - first] = f.values(first, end)
            yield tile[: end - first]

    def _within(self, tile: Array, f: BlockField) -> Array:
        offset = self.offsets[f.name] if f.row_bytes else 0
        return strided(tile, f, (len(tile),), (self.row_bytes,), offset)


def strided(buffer: Array, f: BlockField, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """View the values of a field in a buffer, ``strides`` bytes apart, as [*shape, *f.shape]."""
    inner = [f.dtype.itemsize * prod(f.shape[i + 1 :]) for i in range(len(f.shape))]
    return np.ndarray((*shape, *f.shape), f.dtype, buffer if buffer.size else None, offset, (*strides, *inner))


class PackedBlock:
    """Columns packed row by row, in a file that all processes share or in this process's memory.

    Parameters
    ----------
    layout : RowLayout
    rows : int
    content : uint8 array [rows * layout.row_bytes]
    """

    def __init__(self, layout: RowLayout, rows: int, content: Array) -> None:
        self.layout, self.rows = layout, rows
        self._content = content
        self._fields = {f.name: f for f in layout.fields}
        self._windows: dict[int, Array] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def take(self, first: IntArray, length: int = 1, *, last: Collection[str] | None = None) -> PackedWindows:
        """Copy the windows of ``length`` rows that start at the rows ``first`` [K].

        They must lie within the block, as windows of an episode do. In the last row, fields that are not in ``last``
        may be missing; None keeps all.
        """
        of_last = self.layout.row_bytes if last is None else self.layout.until(last)
        size = (length - 1) * self.layout.row_bytes + of_last
        if size not in self._windows:
            self._windows[size] = self._overlapping(size)
        # Indexing: np.take would copy the whole overlapping view first.
        return PackedWindows(self.layout, self._fields, len(first), length, self._windows[size][first])

    def _overlapping(self, size: int) -> Array:
        """View the block as overlapping windows of ``size`` bytes, one from the start of each row."""
        kind, width = np.dtype((np.void, size)), self.layout.row_bytes
        if not size:
            return np.empty(self.rows, kind)
        count = max(0, self.rows + 1 - -(-size // width))
        return np.ndarray(count, kind, self._content, 0, (width,))


@dataclass(frozen=True, slots=True)
class PackedWindows:
    """K windows of ``length`` rows, in memory of their own."""

    layout: RowLayout
    fields: dict[str, BlockField]
    count: int
    length: int
    gathered: Array

    def row(self, name: str, row: int = 0, *, view: bool = False) -> Array:
        """Return one row of every window: a field's values [K, *shape], in the dtype of the block.

        They are contiguous, writable and in new memory; a ``view`` is strided and shares the other fields' memory.
        """
        return self._values(self.fields[name], (self.count,), row, view)

    def rows(self, name: str, *, view: bool = False) -> Array:
        """Return all rows of every window: a field's values [K, length, *shape]; see `row`."""
        return self._values(self.fields[name], (self.count, self.length), 0, view)

    def _values(self, f: BlockField, shape: tuple[int, ...], row: int, view: bool) -> Array:
        if not f.row_bytes or not self.count:
            return np.empty((*shape, *f.shape), f.dtype)
        strides = (self.gathered.itemsize, self.layout.row_bytes)[: len(shape)]
        offset = row * self.layout.row_bytes + self.layout.offsets[f.name]
        if view:
            return strided(self.gathered, f, shape, strides, offset)
        copied: Array = np.ndarray(shape, f.void, self.gathered, offset, strides).copy()
        return copied.view(f.dtype).reshape(*shape, *f.shape)


def open_block(
    dataset: Dataset, fields: Sequence[BlockField], *, budget: int
) -> tuple[PackedBlock | None, PackedContent]:
    """Map the block of these fields, after building it if necessary.

    Parameters
    ----------
    dataset : Dataset
        All rows of its store are packed, so all selections share a block.
    fields : sequence of BlockField
    budget : int
        Bytes of private memory that may be taken where no file can be written.

    Returns
    -------
    Block or None
        None where there is neither a file nor enough memory.
    PackedContent
        Its place, or the reason why there is none.
    """
    layout, rows = RowLayout(fields), dataset.num_rows
    held = packed.open_or_build(
        dataset, layout.key(), rows * layout.row_bytes, lambda: layout.tiles(rows), kind="rows", budget=budget
    )
    return (None if held.array is None else PackedBlock(layout, rows, held.array)), held


LEAST_BYTES = 8 << 20  # smaller columns stay in the processor's cache and are as fast one by one


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of packed reading.

    Attributes
    ----------
    floats : str or None
        Working dtype of floats; None for their own.
    budget : int
        Bytes of private memory.
    views : bool
        True if batches may be strided views of one block.
    """

    floats: str | None
    budget: int
    views: bool = False


class PackedReader:
    """Reads some columns of a loader from one block of packed rows.

    Parameters
    ----------
    block : PackedBlock
    columns : mapping of str to (str, int, bool)
        By the batch's field name: the block's field, 1 for the row after, and whether it gets an axis of one element.
    outcomes : mapping of str to ColumnRows
        By the block's fields: rows that other columns read through ``samples.outcome``.
    views : bool
        Give strided views of the rows read, not arrays of their own.
    file : RandomMap, optional
        The file that the block is mapped from.
    """

    def __init__(
        self,
        block: PackedBlock,
        columns: Mapping[str, tuple[str, int, bool]],
        outcomes: Mapping[str, ColumnRows],
        *,
        views: bool,
        file: RandomMap | None = None,
    ) -> None:
        self._file = file
        self._block, self._columns, self._outcomes, self._views = block, columns, outcomes, views
        pairs = [(field, row) for field, row, _ in columns.values()]
        self._after = frozenset(field for field, row in pairs if row)
        self._wanted = list(dict.fromkeys([*pairs, *((field, 0) for field in outcomes)]))

    def planned_reads(self, samples: Samples) -> list[PlannedRead]:
        """Return the reads of the block's file that `read` will make."""
        return [] if self._file is None else [PlannedRead(self._file, samples.here.rows, 2 if self._after else 1)]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def read(self, samples: Samples) -> dict[str, Array]:
        """Return the values of the columns [K, ...], and note the outcomes in ``samples``."""
        windows = self._block.take(samples.here.rows, 2, last=self._after)
        values = {(field, row): windows.row(field, row, view=self._views) for field, row in self._wanted}
        for field, rows in self._outcomes.items():
            samples.once(id(rows), partial(values.__getitem__, (field, 0)))
        return {
            name: values[field, row][..., None] if flag else values[field, row]
            for name, (field, row, flag) in self._columns.items()
        }


def pack(
    dataset: Dataset, columns: Mapping[str, BatchColumn], rows: Mapping[str, ColumnRows], options: ReadOptions
) -> tuple[PackedReader | None, str]:
    """Open a block of all stored columns among ``columns``; return it and its place, or None and the reason.

    Parameters
    ----------
    dataset : Dataset
    columns : mapping of str to BatchColumn
        Of transitions over one step.
    rows : mapping of str to ColumnRows
        The store's columns that they read, by name.
    options : ReadOptions
    """
    names = {id(r): name for name, r in rows.items()}
    stored = {name: c for name, c in columns.items() if isinstance(c, FieldColumn) and c.row_bytes}
    chosen = {name: (names[id(c.column)], c.shift, c.flag) for name, c in stored.items()}
    outcomes = {name: rows[name] for name in (REWARD, *FLAGS) if name in rows}
    wanted = dict.fromkeys([*(field for field, _, _ in chosen.values()), *outcomes])
    fields = [stored_block(dataset, name, _dtype(rows[name], options.floats)) for name in wanted]
    layout = RowLayout(fields)
    if dataset.num_rows * layout.row_bytes < LEAST_BYTES:
        return None, ""
    reason = obstacle(layout.row_bytes, 2)
    if reason is not None:
        return None, f"no packed rows: {reason}"
    block, held = open_block(dataset, fields, budget=options.budget)
    if block is None:
        return None, f"no packed rows: {held.reason}"
    file = _mapped(held.path, layout.row_bytes, dataset.num_rows)
    if file is not None:
        block = PackedBlock(layout, dataset.num_rows, file.content)
    return PackedReader(
        block, chosen, outcomes, views=options.views, file=file
    ), f"packed rows of {layout.row_bytes} B, {held.place}"


def _mapped(path: Path | None, row_bytes: int, rows: int) -> RandomMap | None:
    """Map the block's file for reading at random; None where there is no file, or it was removed."""
    if path is None:
        return None
    try:
        return RandomMap(path, row_bytes, rows, sparing=row_bytes * rows > memory.limit()[0] // 2)
    except (OSError, ValueError):
        return None


def _dtype(column: ColumnRows, floats: str | None) -> np.dtype[Any]:
    """Return the dtype of a field in the block: floats have the loader's working dtype."""
    kind = column.values.dtype
    return np.dtype(floats) if floats is not None and kind.kind == "f" else kind
