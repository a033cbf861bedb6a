"""Columns packed row by row, so that one copy reads all fields of a short window.

::

    row t     | observation float32 [17] | action float32 [6] | reward | terminated truncated | pad |
    row t+1   | ...

Fields stand by descending item size, each row is padded to the widest, so every value is aligned. A sample then touches
two or three cache lines instead of two for each field. Fields of which a transition reads the next row as well stand
first, so that little of that row is read. Longer windows and wider rows are read as fast column by column, which takes
no space of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.loader.storage import memory, packed
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.storage.page_cache import RandomMap
from rlds_cli.ted import Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

MOST_ROW_BYTES = 512
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
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    source: Array | Callable[[int, int], Array]
    made_of: str = ""
    after: bool = False
    row_bytes: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", self.dtype.itemsize * prod(self.shape))

    def values(self, first: int, end: int) -> Array:
        """Return rows ``first`` to ``end`` of the source."""
        return self.source(first, end) if callable(self.source) else self.source[first:end]


def stored_block(dataset: Dataset, name: str, dtype: npt.DTypeLike | None = None) -> BlockField:
    """Return the block field of a stored array field, cast to ``dtype``."""
    f = dataset.schema[name]
    kind = np.dtype(f.dtype if dtype is None else dtype)
    return BlockField(name, kind, f.shape, dataset.store.rows(name), after=f.placement == "both")


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

    def columns(self, content: Array, file: RandomMap | None) -> dict[str, ColumnRows]:
        """Return the fields' rows within the content of a block, uint8 [rows * row_bytes]."""
        tile = content.reshape(-1, self.row_bytes)
        kinds = {f.name: f.dtype if callable(f.source) else f.source.dtype for f in self.fields}
        return {f.name: ColumnRows(self._within(tile, f), file, kinds[f.name]) for f in self.fields if f.row_bytes}

    def _within(self, tile: Array, f: BlockField) -> Array:
        """View the values of a field in rows, uint8 [n, row_bytes], as [n, *shape]."""
        offset = self.offsets[f.name] if f.row_bytes else 0
        inner = [f.dtype.itemsize * prod(f.shape[i + 1 :]) for i in range(len(f.shape))]
        strides = (self.row_bytes, *inner)
        return np.ndarray((len(tile), *f.shape), f.dtype, tile if tile.size else None, offset, strides)


LEAST_BYTES = 8 << 20  # smaller columns stay in the processor's cache and are as fast one by one


def pack(dataset: Dataset, dtypes: Mapping[str, np.dtype[Any]], budget: int) -> tuple[dict[str, ColumnRows], str]:
    """Pack fields row by row; return their rows in the block, and its place.

    Parameters
    ----------
    dataset : Dataset
        All rows of its store are packed, so all selections share a block.
    dtypes : mapping of str to dtype
        The array fields to pack, and the dtypes that they get.
    budget : int
        Bytes of private memory that may be taken where no file can be written.

    Returns
    -------
    dict of str to ColumnRows
        Empty if the fields are not packed.
    str
        The block's place, or the reason why there is none; empty for small datasets.
    """
    fields = [stored_block(dataset, name, dtype) for name, dtype in dtypes.items()]
    layout, rows = RowLayout(fields), dataset.num_rows
    if rows * layout.row_bytes < LEAST_BYTES:
        return {}, ""
    if layout.row_bytes > MOST_ROW_BYTES:
        return {}, f"no packed rows: {layout.row_bytes:,} B a row (at most {MOST_ROW_BYTES} are packed)"
    held = packed.open_or_build(
        dataset,
        layout.key(),
        rows * layout.row_bytes,
        lambda: layout.tiles(rows),
        kind="rows",
        budget=budget,
        fields=dtypes,
    )
    if held.array is None:
        return {}, f"no packed rows: {held.reason}"
    file = _mapped(held.path, layout.row_bytes, rows)
    content = held.array if file is None else file.content
    return layout.columns(content, file), f"packed rows of {layout.row_bytes} B, {held.place}"


def _mapped(path: Path | None, row_bytes: int, rows: int) -> RandomMap | None:
    """Map the block's file for reading at random; None where there is no file, or it was removed."""
    if path is None:
        return None
    try:
        return RandomMap(path, row_bytes, rows, sparing=row_bytes * rows > memory.limit()[0] // 2)
    except (OSError, ValueError):
        return None
