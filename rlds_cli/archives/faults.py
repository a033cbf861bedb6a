"""Faults that nobody notices: of earlier versions of readers, and HDF5 chunks that were never written.

``rlds check`` names the datasets that an earlier version converted. If the ``VERSION`` of a reader is raised because
its values were wrong, add a `Fault` to ``FAULTS``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli.errors import ArchiveError
from rlds_cli.ted import Note

if TYPE_CHECKING:
    import h5py

    from rlds_cli.archives import Archive

_SHOWN = 4  # datasets in a note


@dataclass(frozen=True, slots=True)
class ConversionRecord:
    """The part of a dataset's manifest that tells which faults it may have.

    Attributes
    ----------
    reader, version : str, int
        The reader, and its ``VERSION`` at that time.
    dtypes : mapping of str to str
        The dtype of every field.
    facts, options : mapping
        The facts of the reader's plan, and the options of the command.
    text : callable
        Returns the text of a metadata entry by its name; the empty string if there is no such entry.
    """

    reader: str
    version: int
    dtypes: Mapping[str, str]
    facts: Mapping[str, Any]
    options: Mapping[str, Any]
    text: Callable[[str], str]


def _always(made: ConversionRecord) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of all versions of a reader before ``mended``.

    Attributes
    ----------
    mended : int
        The first version without it.
    text : str
        The fault, as the end of the sentence "converted by version 1 of the reader X, which ...".
    concerns : callable
        Tells whether a dataset converted by such a version is affected; by default every one is.
    """

    mended: int
    text: str
    concerns: Callable[[ConversionRecord], bool] = _always


def faults(made: ConversionRecord) -> list[Fault]:
    """Return the faults that a dataset has because an older version of its reader converted it."""
    return [f for f in FAULTS.get(made.reader, ()) if made.version < f.mended and f.concerns(made)]


def _has_depth_videos(made: ConversionRecord) -> bool:
    """Tell whether a depth map with more than 8 bits, by ``info.json``, was decoded to frames of 8 bits."""
    from rlds_cli.archives.lerobot import depth  # imported here to keep start-up fast

    try:
        features = json.loads(made.text("lerobot/info.json") or "{}").get("features", {})
        keys = {key for name, key in made.facts.get("columns", {}).items() if made.dtypes.get(name) == "uint8"}
        return any(f.get("dtype") == "video" and depth.is_deep(f) for k, f in features.items() if k in keys)
    except (ValueError, AttributeError, TypeError):
        return False


def _ignored_columns(made: ConversionRecord) -> bool:
    """Tell whether flags alone decided, in spite of columns of ids, steps or starts, or of names of TED."""
    from rlds_cli.archives.names import IDS, LASTS, STARTS, STEPS  # imported here to keep start-up fast

    if made.options.get("episodes_by"):
        return False
    names = {name.lower() for name in made.dtypes}
    by_flags = bool(made.facts.get("flags")) and bool(names & {*IDS, *STEPS})
    return by_flags or bool(names & {*STARTS, *LASTS}) or any(n.startswith("extra/next") for n in names)


FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "plain": (
        Fault(2, "ignored columns of ids and steps: episodes may be merged or divided wrongly", _ignored_columns),
    ),
    "lerobot": (Fault(2, "decoded 12-bit depth videos to 8 bits", _has_depth_videos),),
}


# -- archives


def unwritten(archive: Archive) -> Sequence[Note]:
    """Make one note that names the first datasets of HDF5 files with chunks that were never written; read no values.

    Such chunks are read as the fill value, and nobody notices.
    """
    from rlds_cli.formats.hdf5 import is_hdf5  # imports h5py, which other formats do not need

    found = [
        (f"{name} ({missing:,} of {total:,} chunks) of {archive.name_of(i)}", missing)
        for i, path in enumerate(archive.files)
        if is_hdf5(path)
        for name, missing, total in _unwritten(path)
    ]
    if not found:
        return ()
    more = f"; and {len(found) - _SHOWN:,} more datasets" if len(found) > _SHOWN else ""
    named = "; ".join(text for text, _ in found[:_SHOWN])
    text = f"chunks were never written, and are read as the fill value, usually 0: {named}{more}"
    return (Note("never-written", text, sum(missing for _, missing in found)),)


def _unwritten(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, chunks that were never written, and all chunks of each dataset; contiguous data count as one chunk."""
    import h5py

    from rlds_cli.formats.hdf5 import open_file

    names: list[bytes] = []

    def collect(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            names.append(name)

    try:
        with open_file(path, check=False) as f:
            # Links out of the file are not followed; h5py's own objects would take as long as reading.
            h5py.h5o.visit(f.id, collect, info=True)
            for name in names:
                if (missing := _missing(h5py.h5d.open(f.id, name))) is not None:
                    yield name.decode(errors="replace"), *missing
    except ArchiveError:
        return  # left out with --skip-bad, or refused in the reader's own words


def _missing(d: h5py.h5d.DatasetID) -> tuple[int, int] | None:
    import h5py

    shape = d.shape
    if shape is None or 0 in shape:
        return None
    plist = d.get_create_plist()
    layout = plist.get_layout()
    if layout == h5py.h5d.CHUNKED:
        total = math.prod(-(-n // c) for n, c in zip(shape, plist.get_chunk(), strict=True))
        there = d.get_num_chunks()
    elif layout == h5py.h5d.CONTIGUOUS:
        total, there = 1, int(d.get_storage_size() > 0)
    else:
        return None
    return (total - there, total) if there < total else None
