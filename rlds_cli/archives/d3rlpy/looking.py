"""Single values of d3rlpy's files, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import h5py

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.d3rlpy import buffers, flat
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.ted import FLAGS


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step, and what was observed in the row after."""
    with open_file(spot.file, check=False) as f:
        if buffers.is_buffer(f):
            keys = buffers.columns(f, spot.name, int(spot.group.removeprefix("episode_")))
            keys.pop(buffers.END, None)
            yield from _row(f, keys, spot.step, after=not spot.is_last)
            return
        row = spot.first + spot.step
        padded = (
            spot.is_last and row + 1 < len(f["terminals"]) and bool(f["terminals"][row] and f["terminals"][row + 1])
        )
        yield from _row(f, flat.layout(f, spot.name).columns, row, after=padded or not spot.is_last)
        yield Cell(FLAGS[0], f"terminals[{row}]", bool(f["terminals"][row]))


def _row(f: h5py.File, keys: Mapping[str, str], row: int, *, after: bool) -> Iterator[Cell]:
    for name, key in keys.items():
        yield Cell(name, f"{key}[{row}]", f[key][row])
        if after and name.split("/")[0] == "observation":
            yield Cell(f"next/{name}", f"{key}[{row + 1}]", f[key][row + 1])
