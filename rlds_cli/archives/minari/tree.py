"""The datasets below one group of an HDF5 file, each checked, as low-level ids.

An archive of 100,000 episodes has most of a million of them; h5py's own objects cost 100 µs each, these 30.
"""

from __future__ import annotations

import math
from pathlib import Path

import h5py

from rlds_cli.archives import hdf5_chunks, hdf5_heap
from rlds_cli.archives.hdf5 import MAX_DEPTH, UNWRITTEN_BYTES, check_dataset
from rlds_cli.errors import UnsafeArchive

_PLAIN_FILTERS = {hdf5_chunks.DEFLATE, hdf5_chunks.SHUFFLE, hdf5_chunks.FLETCHER}


def datasets(group: h5py.Group, path: Path) -> dict[str, h5py.h5d.DatasetID]:
    """Datasets by their path from ``group``. Soft links to datasets count, soft links to groups do not.

    Raises
    ------
    UnsafeArchive
        What ``hdf5.open_file`` refuses.
    """
    found = {}
    file_number = h5py.h5o.get_info(group.id).fileno
    for raw, kind in _links(group, path):
        name = _checked_name(raw, kind, path)
        try:
            item = h5py.h5o.open(group.id, raw)
        except KeyError as e:
            raise UnsafeArchive(f"{path.name}: {name} is a link that leads nowhere.") from e
        if kind == h5py.h5l.TYPE_SOFT and h5py.h5o.get_info(item).fileno != file_number:
            raise UnsafeArchive(f"{path.name}: {name} is a link to another file.")
        if isinstance(item, h5py.h5d.DatasetID):
            if not _harmless(item):
                check_dataset(name, h5py.Dataset(item), path)
            elif hdf5_chunks.filters(item):
                hdf5_chunks.check(name, item, path)
            found[name] = item
    return found


def _links(group: h5py.Group, path: Path) -> list[tuple[bytes, int]]:
    """Path and type of every link below ``group``; HDF5 enters each group once."""
    found: list[tuple[bytes, int]] = []

    def visit(name: bytes, info: h5py.h5l.LinkInfo) -> bytes | None:
        found.append((name, info.type))
        return name if name.count(b"/") >= MAX_DEPTH else None  # anything but None ends the visit

    if group.id.links.visit(visit, info=True) is not None:
        raise UnsafeArchive(f"{path.name}: groups are nested more than {MAX_DEPTH} deep in {group.name}.")
    return found


def _checked_name(raw: bytes, kind: int, path: Path) -> str:
    name = raw.decode("utf-8", "replace")
    if not name.isprintable() or {"", ".", ".."} & set(name.split("/")) or name.encode() != raw:
        raise UnsafeArchive(f"{path.name}: {name!r} is no name for a field.")
    if kind == h5py.h5l.TYPE_EXTERNAL:
        raise UnsafeArchive(f"{path.name}: {name} is a link to another file.")
    return name


def _harmless(d: h5py.h5d.DatasetID) -> bool:
    """Whether a dataset is too small and plain to need a closer look."""
    layout = d.get_create_plist()
    kind = layout.get_layout()
    chunk = layout.get_chunk() if kind == h5py.h5d.CHUNKED else ()
    return (
        max(math.prod(d.shape or ()), math.prod(chunk)) * d.get_type().get_size() <= UNWRITTEN_BYTES
        and kind != h5py.h5d.VIRTUAL
        and (kind == h5py.h5d.CHUNKED or not layout.get_external_count())
        and not hdf5_heap.is_variable(d.get_type())
        and all(layout.get_filter(i)[0] in _PLAIN_FILTERS for i in range(layout.get_nfilters()))
    )
