"""Single values of a demonstration, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.archives.robomimic.demos import DATA, demo
from rlds_cli.ted import FLAGS


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step; next observations from ``next_obs``, else from the row after."""
    with open_file(spot.file, check=False) as f:
        found, group = demo(f, spot.name, spot.group), f[DATA][spot.group]
        for name, field in found.fields.items():
            d = group[found.columns[name]]
            value = d.asstr()[spot.step] if field.kind == "text" else d[spot.step]
            yield Cell(name, f"{d.name}[{spot.step}]", bool(value) if name == FLAGS[0] else value)
            if field.placement == "both" and name not in found.next_keys and not spot.is_last:
                yield Cell(f"next/{name}", f"{d.name}[{spot.step + 1}]", d[spot.step + 1])
        for name, key in found.next_keys.items():
            yield Cell(f"next/{name}", f"{group[key].name}[{spot.step}]", group[key][spot.step])
