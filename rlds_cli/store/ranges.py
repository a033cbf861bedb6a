"""Some rows of an array of either encoding, without the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlds_cli.errors import DamagedDataset
from rlds_cli.store import arrays, compression
from rlds_cli.ted import Array


def read_range(array: Path, start: int, stop: int) -> Array:
    """Rows ``start`` to ``stop`` of the array in ``array``: a map, or a copy where it is compressed.

    Raises
    ------
    DamagedDataset
        A file is missing, or what is in it does not decode.
    """
    if not compression.is_compressed(array):
        return arrays.read(array)[start:stop]
    import zarr

    compression.check_shards(array)
    try:
        return np.asarray(zarr.open_array(str(array), mode="r")[start:stop])
    except (ValueError, RuntimeError, OSError) as e:
        raise DamagedDataset(f"{array}: rows {start:,}-{stop:,} do not decode: {e}", hint="rlds verify ID") from e
