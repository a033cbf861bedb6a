"""Values that a file or a group holds once, such as the task or the success: columns of the episode table.

They are attributes of HDF5 files and groups, and scalars beside the columns of npz and HDF5.
"""

from __future__ import annotations

from collections.abc import Mapping

import h5py

from rlds_cli.archives.names import episode_column, scalar
from rlds_cli.errors import ArchiveError
from rlds_cli.formats.hdf5 import attributes, reading
from rlds_cli.formats.tables import Hdf5, Table
from rlds_cli.ted import Array, Scalar

MAX_TEXT = 4096  # characters of a text in the episode table; longer ones are metadata
METADATA = "metadata/"  # D4RL's group for what is about the whole file
OF_WRITERS = {"CLASS", "TITLE", "VERSION", "FILTERS", "PYTABLES_FORMAT_VERSION"}  # attributes that PyTables writes


def of_attributes(table: Table, group: str = "") -> dict[str, Scalar]:
    """Read the single values among the attributes of an HDF5 group, and of the groups above it and the file."""
    if not isinstance(table.source, Hdf5):
        return {}
    found: dict[str, Scalar] = {}
    parts = group.split("/") if group else []
    with reading(table.path, f"attributes of {group or 'the file'}"):
        for depth in range(len(parts) + 1):
            above = "/".join(parts[:depth])
            found |= _single(dict(attributes(table.source.file[above] if above else table.source.file)))
    return found


def _single(values: Mapping[str, Array | str]) -> dict[str, Scalar]:
    found = {}
    for key, value in values.items():
        single = isinstance(value, str) or (value.size == 1 and value.dtype.kind in "biuf")
        name = key.removeprefix("attributes/")
        if single and len(str(value)) <= MAX_TEXT and name not in OF_WRITERS:
            found[episode_column(name)] = value if isinstance(value, str) else scalar(value)
    return found


def of_file(table: Table) -> dict[str, Scalar]:
    """Read the single values of a file of rows: its attributes, and its scalars that are not fields."""
    found = of_attributes(table)
    for key, c in table.own.items():
        known = c.dtype.kind in "biuf" or h5py.check_string_dtype(c.dtype) is not None
        if c.shape == () and known and not key.startswith(METADATA):
            value = scalar(table.source.array(key))
            if len(str(value)) <= MAX_TEXT:
                found[episode_column(key)] = value
    return found


def has_attributes(table: Table) -> bool:
    """Tell whether an HDF5 file has attributes that become columns of the episode table."""
    try:
        return bool(of_attributes(table))
    except ArchiveError:
        return False
