"""Single values of a Minari episode, for `rlds verify --trace`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.archives.hdf5 import open_file
from rlds_cli.archives.parquet import pyarrow
from rlds_cli.ordering import natural

_JPEG = b"\xff\xd8\xff"


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step; what belongs to observations also of the row after."""
    paths = {name: tuple(path) for name, path in spot.facts["columns"].items()}
    value = _hdf5 if spot.facts["format"] == "hdf5" else _arrow
    for name, path in paths.items():
        found = value(spot, path)
        yield Cell(name, f"{spot.group}/{'/'.join(path)}[{spot.step}]", found[0])
        if name.split("/")[0] == "observation":
            yield Cell(f"next/{name}", f"{spot.group}/{'/'.join(path)}[{spot.step + 1}]", found[1])


def _hdf5(spot: Spot, path: Sequence[str]) -> list[Any]:
    with open_file(spot.file, check=False) as f:
        d = f[spot.group]["/".join(path)]
        return [_plain(d[i]) for i in range(spot.step, min(spot.step + 2, len(d)))]


def _plain(value: Any) -> Any:
    """One row as h5py gives it: JPEGs as bytes, other bytes as text."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value[:3].tobytes() == _JPEG:
        return value.tobytes()
    return value.decode() if isinstance(value, bytes) else value


def _arrow(spot: Spot, path: Sequence[str]) -> list[Any]:
    rows = [row for file in _files(spot.file) for row in _column(file, path[0])]
    values = rows[spot.step : spot.step + 2]
    for key in path[1:]:
        values = [v[key] for v in values]
    return [np.asarray(v) if not isinstance(v, str | bytes) else v for v in values]


def _files(first: Path) -> list[Path]:
    return sorted(first.parent.glob(f"*{first.suffix}"), key=lambda p: natural(p.name))


def _column(file: Path, name: str) -> list[Any]:
    pa = pyarrow()
    if file.suffix == ".parquet":
        return list(pa.parquet.read_table(file, columns=[name], page_checksum_verification=True)[name].to_pylist())
    with pa.OSFile(str(file)) as opened, pa.ipc.open_file(opened) as table:
        return list(table.read_all()[name].to_pylist())
