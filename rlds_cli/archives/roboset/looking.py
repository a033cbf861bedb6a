"""Single values of a trial, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.archives.roboset.conventions import TRACE
from rlds_cli.archives.roboset.trials import placed, trial
from rlds_cli.ted import FLAGS


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step, and of a trace in the row after: the reward and what was observed then."""
    convention = spot.facts["rows"][spot.name]
    with open_file(spot.file, check=False) as f:
        found = trial(f, spot.name, spot.group, spot.fields)
        for name, field in found.fields.items():
            at, d = placed(field, convention), f[spot.group][found.columns[name]]
            row = spot.first + spot.step + (convention == TRACE and at.placement == "next")
            value = d.asstr()[row] if field.kind == "text" else d[row]
            yield Cell(at.name, f"{d.name}[{row}]", bool(value) if name == FLAGS[0] else value)
            if at.placement == "both" and row + 1 < found.rows and not (spot.is_last and convention != TRACE):
                after = d.asstr()[row + 1] if field.kind == "text" else d[row + 1]
                yield Cell(f"next/{at.name}", f"{d.name}[{row + 1}]", after)
