"""Read a range of rows of an array in either encoding."""

from __future__ import annotations

from pathlib import Path

from rlds_cli.store import compression
from rlds_cli.ted import Array


def read_range(array: Path, start: int, stop: int) -> Array:
    """Read rows ``start`` to ``stop`` of the array in ``array``: mapped, or copied if they are compressed.

    Raises
    ------
    DamagedDataset
        A file is missing, or what is in it does not decode.
    """
    return compression.open_rows(array)[start:stop]
