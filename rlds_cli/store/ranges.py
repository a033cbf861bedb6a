"""Some rows of an array of either encoding, without the rest."""

from __future__ import annotations

from pathlib import Path

from rlds_cli.store import compression
from rlds_cli.ted import Array


def read_range(array: Path, start: int, stop: int) -> Array:
    """Rows ``start`` to ``stop`` of the array in ``array``: a map, or a copy where it is compressed.

    Raises
    ------
    DamagedDataset
        A file is missing, or what is in it does not decode.
    """
    return compression.open_rows(array)[start:stop]
