"""Episodes end to end: the rows of a dataset without those of no episode, and without references to others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.dataset import editing
from rlds_cli.dataset.rows import Rows
from rlds_cli.store import Store, compression, digests, layouts, versions, videos
from rlds_cli.store.frames import laid_out
from rlds_cli.store.rows import stored_row
from rlds_cli.store.views import Change
from rlds_cli.ted import VIDEO, Field

if TYPE_CHECKING:
    from rlds_cli.dataset.datasets import Dataset

_FRAMES = 4096  # that are copied at once


def compact(ds: Dataset, kept: Callable[[], Collection[int]]) -> bool:
    """Make a next version whose episodes lie end to end, in files of its own; False if they do, and there is no other.

    Earlier ones without a tag are removed, but for those of the numbers ``kept``, and those that one that stays refers
    to.

    Raises
    ------
    NoSpace
        There is no room to write the episodes once more.
    """
    rows = Rows(ds)
    if rows.is_dense and not (_is_segmented(ds.store) or ds.store.files.refers_to or versions.earlier(ds.path)):
        return False
    editing.compact(ds, _change(ds, rows), needed=_size(ds), kept=kept())
    return True


def _change(ds: Dataset, rows: Rows) -> Change:
    """Return the change that writes the rows of a dataset's episodes end to end."""
    write: Mapping[str, Callable[[Path], None]] = {name: partial(_write, rows, f) for name, f in ds.schema.items()}
    return Change(columns={"start": rows.start}, rows=write, total=len(rows), copies=True)


def _size(ds: Dataset) -> int:
    """Estimate the bytes that `_change` writes."""
    share = (ds.num_steps + ds.num_episodes) / max(1, ds.num_rows)
    images = [n for n, f in ds.schema.items() if f.kind == "frames" and f.codec != VIDEO]
    frames = [len(ds.store.frames(n).data) + 16 * ds.num_rows for n in images]
    others = (stored_row(f) for n, f in ds.schema.items() if n not in images)
    widths = [arrays.row_bytes((0, *shape), dtype) for dtype, shape in others]
    written = [
        n for n, f in ds.schema.items() if f.codec == VIDEO and (ds.store.files.refers_to or _films(ds.store, f))
    ]
    films = [ds.store.videos(n).spans for n in written]
    whole = sum(int((s[:, 1] - s[:, 0]).sum()) for s in films)
    return whole + int(share * (sum(frames) + ds.num_rows * sum(widths)))


def _films(store: Store, f: Field) -> bool:
    """Return whether the videos of a field are written, too: those in several files."""
    of = store.files.beside(videos.DIRECTORY, *store.table.path_of(f.name).split("/"), "bytes")
    return f.codec == VIDEO and layouts.is_segmented(of)


def _write(rows: Rows, f: Field, dataset: Path) -> None:
    directory = dataset / rows.store.table.path_of(f.name)
    if f.kind == "frames" and f.codec != VIDEO:
        _write_frames(rows, f, directory)
    else:
        dtype, shape = stored_row(f)
        file = arrays.data_file(directory, 1 + len(shape))
        safe_files.make(file.parent)
        with file.open("wb") as written:
            for _, values in rows.blocks(f.name):
                written.write(arrays.raw(arrays.little_endian(values)))
        arrays.finish(directory, (len(rows), *shape), dtype)
    if rows.store.manifest.encoding == "zarr":
        compression.compress(directory, f)
    if _films(rows.store, f):
        videos.write_whole(dataset / videos.DIRECTORY / rows.store.table.path_of(f.name), rows.store.videos(f.name))
    if digests.has_row_digests(f):
        of_rows = rows.store.row_digests(f.name)[rows.stored(np.arange(len(rows)))]
        arrays.write(dataset / digests.ROWS / rows.store.table.path_of(f.name), np.asarray(of_rows))


def _write_frames(rows: Rows, f: Field, directory: Path) -> None:
    offsets, file, at = np.zeros((len(rows), 2), np.int64), arrays.data_file(directory / "bytes", 1), 0
    safe_files.make(file.parent)
    with file.open("wb") as written:
        for a in range(0, len(rows), _FRAMES):
            found = rows.encoded(f.name, np.arange(a, min(a + _FRAMES, len(rows))))
            data, offsets[a : a + len(found)] = laid_out(found, at, np.zeros(len(found), bool))
            written.write(arrays.raw(data))
            at += len(data)
    arrays.finish(directory / "bytes", (at,), "uint8")
    arrays.write(directory / "offsets", offsets)
    arrays.write_group(directory)


def _is_segmented(store: Store) -> bool:
    """Return whether an array of rows, frames or videos is in segments, as those of a merge are."""
    columns = (*store.table.columns(), *store.table.digest_columns())
    return any(layouts.is_segmented(store.path / c.directory) for c in columns)
