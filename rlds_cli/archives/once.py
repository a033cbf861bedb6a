"""Values that a file or a group holds once, such as the task or the success: columns of the episode table.

They are attributes of files and groups of HDF5 and Zarr, and scalars beside the columns of npz and HDF5. What is not a
single value, or a long text, is not per row and kept as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py

from rlds_cli.archives.formats.hdf5 import attributes, is_hdf5, open_file, reading
from rlds_cli.archives.formats.tables import Hdf5, Table
from rlds_cli.archives.formats.zarr_stores import ZarrContents, ZarrStore, contents_of, is_zarr
from rlds_cli.archives.names import scalar
from rlds_cli.archives.tasks import MAX_TEXT, episode_column
from rlds_cli.base.array_types import Array
from rlds_cli.errors import ArchiveError
from rlds_cli.ted import Scalar

METADATA = "metadata/"  # D4RL's group for what is about the whole file
ATTRIBUTE = "attribute"  # in the facts of a plan: what a column is made of
OF_WRITERS = {"CLASS", "TITLE", "VERSION", "FILTERS", "PYTABLES_FORMAT_VERSION"}  # attributes that PyTables writes


@dataclass(frozen=True, slots=True)
class Once:
    """Values of the episode table by column, and the attribute or scalar of the file that each is made of."""

    columns: dict[str, Scalar]
    keys: dict[str, str]

    def __or__(self, other: Once) -> Once:
        """Return these values with those of another source, which go before."""
        return Once(self.columns | other.columns, self.keys | other.keys)


def of_attributes(table: Table, group: str = "") -> Once:
    """Read the single values among the attributes of a group of HDF5 or Zarr, and of the groups above it."""
    if isinstance(table.source, ZarrStore):
        return _of_documents(table.source.contents, group)
    found = Once({}, {})
    if not isinstance(table.source, Hdf5):
        return found
    parts = group.split("/") if group else []
    for depth in range(len(parts) + 1):
        found |= of_object(table.source.file, table.path, "/".join(parts[:depth]))
    return found


def of_object(file: h5py.File, path: Path, name: str) -> Once:
    """Read the single values among the attributes of a group; of two that make one column, the first."""
    found = Once({}, {})
    with reading(path, f"attributes of {name or 'the file'}"):
        for key, value in attributes(file[name] if name else file):
            attribute = key.removeprefix("attributes/")
            column = episode_column(attribute)
            if column not in found.columns and attribute not in OF_WRITERS and _is_single(value):
                found.columns[column] = value if isinstance(value, str) else scalar(value)
                found.keys[column] = f"{name}/{key}" if name else key
    return found


def _of_documents(contents: ZarrContents, group: str = "") -> Once:
    """Return the single values among the attributes of a group of a Zarr store, and of the groups above it."""
    found = Once({}, {})
    parts = group.split("/") if group else []
    for path in ("/".join(parts[:depth]) for depth in range(len(parts) + 1)):
        for name, value in contents.attributes.get(path, {}).items():
            column = episode_column(name)
            single = isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 1 << 63)
            if column not in found.columns and single and len(str(value)) <= MAX_TEXT:
                found.columns[column] = value
                found.keys[column] = f"{path}/attributes/{name}" if path else f"attributes/{name}"
    return found


def _is_single(value: Array | str) -> bool:
    single = isinstance(value, str) or (value.size == 1 and value.dtype.kind in "biuf")
    return single and len(str(value)) <= MAX_TEXT


def of_file(table: Table) -> Once:
    """Read the single values of a file of rows: its attributes, and its scalars that are not fields."""
    scalars = Once({}, {})
    for key, c in table.own.items():
        known = c.dtype.kind in "biuf" or h5py.check_string_dtype(c.dtype) is not None
        if c.shape == () and known and not key.startswith(METADATA):
            value = scalar(table.source.array(key))
            if len(str(value)) <= MAX_TEXT:
                scalars.columns[episode_column(key)], scalars.keys[episode_column(key)] = value, key
    return of_attributes(table) | scalars


def origin(found: Once, column: str) -> str:
    """Return what a column is made of, for the facts of a plan: `ATTRIBUTE`, or the key of a scalar."""
    key = found.keys[column]
    return ATTRIBUTE if key.startswith("attributes/") else key


def attributes_of(path: Path) -> Once:
    """Read the single values among the attributes of a file that was checked before; none of other formats."""
    if is_zarr(path):
        return _of_documents(contents_of(path))
    if not is_hdf5(path):
        return Once({}, {})
    with open_file(path, check=False) as f:
        return of_object(f, path, "")


def has_attributes(table: Table) -> bool:
    """Tell whether an HDF5 file has attributes that become columns of the episode table."""
    try:
        return bool(of_attributes(table).columns)
    except ArchiveError:
        return False
