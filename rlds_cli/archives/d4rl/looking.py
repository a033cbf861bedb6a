"""Single values of a flat HDF5 file, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.d4rl import layout
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.ted import FLAGS


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step; next observations from their own columns, else from the row after."""
    row = spot.first + spot.step
    with open_file(spot.file, check=False) as f:
        found = layout.of(f, spot.name, spot.fields)
        for field, key in found.columns.items():
            yield Cell(field, f"{key}[{row}]", f[key][row])
        if found.terminals:
            flag = f[found.terminals][row]
            yield Cell(FLAGS[0], f"{found.terminals}[{row}]", (flag != 0) & (flag == flag))  # NaN is not set
        for field, key in found.next_columns.items():
            yield Cell(f"next/{field}", f"{key}[{row}]", f[key][row])
        if not found.next_columns and not spot.is_last:
            observations = (n for n in found.columns if n.split("/")[0] == "observation")
            for field in observations:
                key = found.columns[field]
                yield Cell(f"next/{field}", f"{key}[{row + 1}]", f[key][row + 1])
