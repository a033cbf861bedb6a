"""Chunks of HDF5 and Zarr that were never written: they are read as the fill value, and nobody notices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rlds_cli.errors import ArchiveError
from rlds_cli.ted import Note

_SHOWN = 4  # datasets in a note


def notes(files: Iterable[tuple[str, Path]]) -> Sequence[Note]:
    """Make one note of the files, by name, with chunks that were never written; read no values."""
    from rlds_cli.archives.formats.hdf5 import is_hdf5, known_contents  # h5py, which other formats do not need
    from rlds_cli.archives.formats.zarr_stores import contents_of, is_zarr

    found: list[tuple[str, int]] = []
    for file, path in files:
        if is_zarr(path):
            lacking = [(a.name, a.missing, a.chunks) for a in contents_of(path).arrays.values() if a.missing]
        else:
            known = known_contents(path)
            is_written = known.is_written if known is not None else not is_hdf5(path)
            lacking = [] if is_written else [*_unwritten(path)]
        found += [(f"{name} ({missing:,} of {total:,} chunks) of {file}", missing) for name, missing, total in lacking]
    if not found:
        return ()
    more = f"; and {len(found) - _SHOWN:,} more datasets" if len(found) > _SHOWN else ""
    named = "; ".join(text for text, _ in found[:_SHOWN])
    text = f"chunks were never written, and are read as the fill value, usually 0: {named}{more}"
    return (Note("never-written", text, sum(missing for _, missing in found)),)


def _unwritten(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, chunks that were never written, and all chunks of each dataset; contiguous data count as one chunk."""
    import h5py

    from rlds_cli.archives.formats.hdf5 import missing_chunks, open_file

    names: list[bytes] = []

    def collect(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            names.append(name)

    try:
        with open_file(path, check=False) as f:
            # Links out of the file are not followed; h5py's own objects would take as long as reading.
            h5py.h5o.visit(f.id, collect, info=True)
            for name in names:
                if (missing := missing_chunks(h5py.h5d.open(f.id, name))) is not None:
                    yield name.decode(errors="replace"), *missing
    except ArchiveError:
        return  # left out with --skip-bad, or refused in the reader's own words
