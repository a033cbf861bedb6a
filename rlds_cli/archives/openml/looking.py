"""Single values of a table, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.openml.tables import open_table

BLOCK = 1 << 12


def cells(spot: Spot) -> Iterator[Cell]:
    """The row of a step: numbers as they stand there, categories as their places among the sorted values."""
    columns, categories = spot.facts["columns"], spot.facts["categories"]
    with open_table(spot.file) as table:
        names = [n for members in columns.values() for n in members]
        block = next(islice(table.blocks(names, BLOCK), spot.first // BLOCK, None))
    for field, members in columns.items():
        values = [_value(block[n][spot.first % BLOCK], categories.get(n)) for n in members]
        one = len(values) == 1 and not field.startswith("observation")
        yield Cell(field, f"{', '.join(members)} of row {spot.first}", np.array(values[0] if one else values))


def _value(value: object, categories: list[str] | None) -> object:
    if categories is None:
        return value
    text = value if isinstance(value, str) or value is None else f"{value:g}"
    return categories.index(text) if text is not None and text != "nan" else -1
