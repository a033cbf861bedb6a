"""Ends of episodes from observations alone: rows between which a component jumps, as on a reset.

Some archives without next observations carry flags that are out of step with the resets in them (AntMaze's first
version). There a component moves by its own small steps for hundreds of rows, and then by metres::

    |o[t+1] - o[t]|  >  8 x the 99th percentile of that component's steps   in any component: t ends an episode

A component that hardly ever moves has no scale, and does not count. The percentiles come from up to 128 evenly spaced
blocks of 1,024 rows and are recorded in the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rlds_cli.archives.d4rl.layout import Layout
from rlds_cli.archives.hdf5 import reading
from rlds_cli.archives.hdf5_rows import components
from rlds_cli.archives.tables import Table
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import Array, BoolArray

FACTOR = 8.0
PERCENTILE = 99
BLOCK_ROWS = 1024
BLOCKS = 128
SAMPLE_BYTES = 16 << 20
MAX_COMPONENTS = 4096

Limits = Mapping[str, list[float | None]]


def limits(path: Path, f: Table, layout: Layout) -> Limits:
    """The longest step that is no jump, by observation column and component; None where there is no scale.

    Columns without any scale are left out.

    Raises
    ------
    UnknownLayout
        No component has a scale, or the observations are images.
    """
    keys = [layout.columns[x.name] for x in layout.fields if x.placement == "both" and x.kind == "array"]
    found = {}
    for key in keys:
        with reading(path, key):
            column = _limits_of(f, key)
        if any(limit is not None for limit in column):
            found[key] = column
    if layout.rows and not found:
        raise UnknownLayout(
            f"{path.name}: no component of the observations moves by steps of its own, so no jump can be told.",
            hint="--episodes-by flags, or --map next/observation=KEY",
        )
    return found


def ends(values: Array, limit: list[float | None], rows: int) -> BoolArray:
    """Which of the first ``rows`` rows are followed by a jump; ``values`` has one row more unless the file ends."""
    bound = np.array([np.inf if x is None else x for x in limit])
    out = np.zeros(rows, bool)
    steps = _steps(values[: rows + 1])
    out[: len(steps)] = (steps > bound).any(axis=1)
    return out


def _limits_of(f: Table, key: str) -> list[float | None]:
    d = f[key]
    width = int(np.prod(d.shape[1:], dtype=np.int64))
    if width > MAX_COMPONENTS:
        return [None] * width
    blocks = max(1, min(BLOCKS, d.shape[0] // BLOCK_ROWS, SAMPLE_BYTES // (BLOCK_ROWS * max(width, 1) * 8)))
    starts = np.linspace(0, max(d.shape[0] - BLOCK_ROWS, 0), blocks).astype(np.int64)
    steps = np.concatenate([_steps(block) for block in f.samples(key, starts.tolist(), BLOCK_ROWS)])
    steps = steps[np.isfinite(steps).all(axis=1)]
    if not len(steps):
        return [None] * width
    return [float(q) * FACTOR if q > 0 else None for q in np.percentile(steps, PERCENTILE, axis=0)]


def _steps(values: Array) -> Array:
    flat = components(values).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(np.diff(flat, axis=0)))
