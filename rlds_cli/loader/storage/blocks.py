"""Columns packed row by row, so that one copy reads all fields of a short window.

::

    row t     | observation float32 [17] | action float32 [6] | reward | terminated truncated | pad |
    row t+1   | ...

Fields stand by descending item size, and each row is padded to 32 bytes, so every value is aligned. A sample then
touches two or three cache lines instead of two for each field. Fields of which a transition reads the next row as well
stand first, so that little of that row is read. Longer windows and wider rows are read as fast column by column, which
takes no space of its own.

The parts of a merge are packed in files of their own, see `parts`, and mapped side by side. Each begins at a multiple
of 65,536 rows, which are a multiple of a huge page because of the padding.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.mapping import Addresses
from rlds_cli.loader.storage import memory, packed
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.storage.packed import PackedContent, WantedContent
from rlds_cli.loader.storage.page_cache import MappedRows, RandomMap, RandomRows
from rlds_cli.loader.storage.parts import PackedPart, parts_of

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

MOST_ROW_BYTES = 512
_PADDED = 32  # bytes
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
        self.row_bytes = -(-end // _PADDED) * _PADDED

    def key(self) -> dict[str, Any]:
        """Return the key of a block: all that its content depends on, as JSON."""
        return {"row": [[f.name, f.dtype.str, list(f.shape), f.made_of] for f in self.fields]}

    def tiles(self, first: int, stop: int) -> Iterator[Array]:
        """Yield rows ``first`` to ``stop`` of the block, uint8 [n, row_bytes] each, in the same memory."""
        tile = np.zeros((min(TILE_ROWS, stop - first), self.row_bytes), np.uint8)
        inside = [self._within(tile, f) for f in self.fields]
        for at in range(first, stop, TILE_ROWS):
            end = min(at + TILE_ROWS, stop)
            with np.errstate(over="ignore"):  # a float32 that was a float64 beyond its range is infinite
                for f, place in zip(self.fields, inside, strict=True):
                    place[: end - at] = f.values(at, end)
            yield tile[: end - at]

    def columns(self, content: Array, file: RandomRows | None) -> dict[str, ColumnRows]:
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
    layout = RowLayout(stored_block(dataset, name, dtype) for name, dtype in dtypes.items())
    parts = parts_of(dataset, [f.name for f in layout.fields if f.row_bytes])
    size = sum(p.rows for p in parts) * layout.row_bytes
    if not size or size < LEAST_BYTES:
        return {}, ""
    if layout.row_bytes > MOST_ROW_BYTES:
        return {}, too_wide(layout.row_bytes)
    whole = parts[0].rows == dataset.num_rows
    place = None if whole else Addresses(dataset.num_rows * layout.row_bytes)
    contents = [_content(layout, p, place) for p in parts]
    held = packed.open_all(dataset, contents, kind="rows", budget=budget)
    found = [h.array for h in held if h.array is not None]
    if len(found) < len(held):
        return {}, f"no packed rows: {next(h.reason for h in held if h.array is None)}"
    where = f"packed rows of {layout.row_bytes} B, {_where(held)}"
    if place is not None:
        return layout.columns(*_side_by_side(place, dataset.num_rows, layout.row_bytes, held)), where
    file = _mapped(held[0].path, layout.row_bytes, parts[0].rows)
    return layout.columns(found[0] if file is None else file.content, file), where


def too_wide(row_bytes: int) -> str:
    """Return why rows of so many bytes are not packed."""
    return f"no packed rows: {row_bytes:,} B a row (at most {MOST_ROW_BYTES} are packed)"


def _content(layout: RowLayout, part: PackedPart, place: Addresses | None) -> WantedContent:
    """Return the packed rows of a part, which have their addresses by their numbers."""
    return WantedContent(
        part.source,
        {**layout.key(), **part.made_of},
        part.rows * layout.row_bytes,
        lambda: layout.tiles(part.first, part.stop),
        None if place is None else (place, part.first * layout.row_bytes),
    )


def _where(held: Sequence[PackedContent]) -> str:
    """Return the places of the parts, for messages."""
    if len(held) == 1:
        return held[0].place
    files = [h.path for h in held if h.path is not None]
    places = [f"{len(files)} files in {files[0].parent}"] if files else []
    return ", ".join(dict.fromkeys([*places, *(h.place for h in held if h.path is None or h.reason)]))


def _side_by_side(
    place: Addresses, rows: int, row_bytes: int, held: Sequence[PackedContent]
) -> tuple[Array, MappedRows]:
    """Return the content of parts that are mapped side by side, and its reads."""
    content: Array = np.frombuffer(place.view(), np.uint8)[: rows * row_bytes]
    content.flags.writeable = False
    sparing = sum(h.array.nbytes for h in held if h.array is not None) > memory.limit()[0] // 2
    mine = os.geteuid() == 0 or all(safe_files.is_own(h.path) for h in held if h.path is not None)
    return content, MappedRows(content.reshape(rows, row_bytes), sparing=sparing, mine=mine)


def _mapped(path: Path | None, row_bytes: int, rows: int) -> RandomMap | None:
    """Map the block's file for reading at random; None where there is no file, or it was removed."""
    if path is None:
        return None
    try:
        return RandomMap(path, row_bytes, rows, sparing=row_bytes * rows > memory.limit()[0] // 2)
    except (OSError, ValueError):
        return None
