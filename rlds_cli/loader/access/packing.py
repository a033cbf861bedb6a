"""Stored columns of single steps, read from a block of packed rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.loader.access import blocks, memory
from rlds_cli.loader.access.blocks import Block
from rlds_cli.loader.access.residency import Coming, RandomMap
from rlds_cli.loader.content.columns import Column, Stored
from rlds_cli.loader.windowing.places import Rows
from rlds_cli.loader.windowing.samples import Samples
from rlds_cli.ted import FLAGS, REWARD, Array

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


LEAST_BYTES = 8 << 20  # smaller columns stay in the processor's cache, and are as fast by themselves


@dataclass(frozen=True, slots=True)
class Options:
    """How a loader reads.

    Attributes
    ----------
    floats : str or None
        Dtype in which floats are worked with; None for their own.
    budget : int
        Bytes of private memory.
    views : bool
        Whether batches may be strided views of one block.
    """

    floats: str | None
    budget: int
    views: bool = False


class Packed:
    """Reads some columns of a loader from one block.

    Parameters
    ----------
    block : Block
    columns : mapping of str to (str, int, bool)
        By field name of the batch: the block's field, 1 for the row after, and whether it has an axis of one element.
    outcomes : mapping of str to Rows
        By the block's fields: what other columns ask for through ``samples.outcome``.
    views : bool
        Give strided views of the rows read, not arrays of their own.
    file : RandomMap, optional
        What the block is mapped from.
    """

    def __init__(
        self,
        block: Block,
        columns: Mapping[str, tuple[str, int, bool]],
        outcomes: Mapping[str, Rows],
        *,
        views: bool,
        file: RandomMap | None = None,
    ) -> None:
        self._file = file
        self._block, self._columns, self._outcomes, self._views = block, columns, outcomes, views
        pairs = [(field, row) for field, row, _ in columns.values()]
        self._after = frozenset(field for field, row in pairs if row)
        self._wanted = list(dict.fromkeys([*pairs, *((field, 0) for field in outcomes)]))

    def coming(self, samples: Samples) -> list[Coming]:
        """What `read` is going to read of the block's file."""
        return [] if self._file is None else [Coming(self._file, samples.here.rows, 2 if self._after else 1)]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def read(self, samples: Samples) -> dict[str, Array]:
        """Values of the columns [K, ...]; outcomes become known to ``samples``."""
        windows = self._block.take(samples.here.rows, 2, last=self._after)
        values = {(field, row): windows.row(field, row, view=self._views) for field, row in self._wanted}
        for field, rows in self._outcomes.items():
            samples.once(id(rows), partial(values.__getitem__, (field, 0)))
        return {
            name: values[field, row][..., None] if flag else values[field, row]
            for name, (field, row, flag) in self._columns.items()
        }


def pack(
    dataset: Dataset, columns: Mapping[str, Column], rows: Mapping[str, Rows], options: Options
) -> tuple[Packed | None, str]:
    """Open a block of all stored columns among ``columns``, or say why there is none.

    Parameters
    ----------
    dataset : Dataset
    columns : mapping of str to Column
        Of transitions over one step.
    rows : mapping of str to Rows
        The columns of the store that they read, by name.
    options : Options
    """
    names = {id(r): name for name, r in rows.items()}
    stored = {name: c for name, c in columns.items() if isinstance(c, Stored) and c.row_bytes}
    chosen = {name: (names[id(c.column)], c.shift, c.flag) for name, c in stored.items()}
    outcomes = {name: rows[name] for name in (REWARD, *FLAGS) if name in rows}
    wanted = dict.fromkeys([*(field for field, _, _ in chosen.values()), *outcomes])
    fields = [blocks.stored(dataset, name, _dtype(rows[name], options.floats)) for name in wanted]
    layout = blocks.Layout(fields)
    if dataset.num_rows * layout.row_bytes < LEAST_BYTES:
        return None, ""
    reason = blocks.obstacle(layout.row_bytes, 2)
    if reason is not None:
        return None, f"no packed rows: {reason}"
    block, held = blocks.open_block(dataset, fields, budget=options.budget)
    if block is None:
        return None, f"no packed rows: {held.reason}"
    file = _mapped(held.path, layout.row_bytes, dataset.num_rows)
    if file is not None:
        block = Block(layout, dataset.num_rows, file.content)
    return Packed(
        block, chosen, outcomes, views=options.views, file=file
    ), f"packed rows of {layout.row_bytes} B, {held.place}"


def _mapped(path: Path | None, row_bytes: int, rows: int) -> RandomMap | None:
    """The block's file, mapped to be read at random; None where it is not in one, or that has gone."""
    if path is None:
        return None
    try:
        return RandomMap(path, row_bytes, rows, sparing=row_bytes * rows > memory.limit()[0] // 2)
    except (OSError, ValueError):
        return None


def _dtype(column: Rows, floats: str | None) -> np.dtype[Any]:
    """How a field is kept in the block: floats as the loader works with them."""
    kind = column.values.dtype
    return np.dtype(floats) if floats is not None and kind.kind == "f" else kind
