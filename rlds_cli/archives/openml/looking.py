"""Single values of a table, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.openml.tables import Table, open_table
from rlds_cli.errors import CorruptArchive

BLOCK = 1 << 12


def cells(spot: Spot) -> Iterator[Cell]:
    """The row of a step: numbers as they stand there, categories as their places among the sorted values."""
    columns, categories = spot.facts["columns"], spot.facts["categories"]
    with open_table(spot.file) as table:
        names = [n for members in columns.values() for n in members]
        row = _row(table, names, spot.first)
    for field, members in columns.items():
        values = [_value(row[n], categories.get(n)) for n in members]
        one = len(values) == 1 and not field.startswith("observation")
        yield Cell(field, f"{', '.join(members)} of row {spot.first}", np.array(values[0] if one else values))


def _row(table: Table, names: list[str], number: int) -> dict[str, object]:
    """One row; blocks may be smaller than asked for, where a group of rows ends in a file."""
    before = 0
    for block in table.blocks(names, BLOCK):
        rows = len(block[names[0]])
        if number < before + rows:
            return {n: values[number - before] for n, values in block.items()}
        before += rows
    raise CorruptArchive(f"The table has {before:,} rows, and no row {number:,}.")


def _value(value: object, categories: list[str] | None) -> object:
    if categories is None:
        return value
    text = value if isinstance(value, str) or value is None else f"{value:g}"
    return categories.index(text) if text is not None and text != "nan" else -1
