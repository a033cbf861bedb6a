"""Episodes end to end: the rows of a dataset without those of no episode, and without references to others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlds_cli.dataset import editing
from rlds_cli.dataset.rows import Rows
from rlds_cli.store import Change, History, NewRows, Store
from rlds_cli.ted import VIDEO

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
    if rows.is_dense and not (_is_segmented(ds.store) or ds.store.files.refers_to or History(ds.path).earlier):
        return False
    editing.compact(ds, _change(ds, rows), needed=_size(ds), kept=kept())
    return True


def _change(ds: Dataset, rows: Rows) -> Change:
    """Return the change that writes the rows of a dataset's episodes end to end."""
    write: Mapping[str, Callable[[NewRows], None]] = dict.fromkeys(ds.schema, partial(_write, rows))
    return Change(columns={"start": rows.start}, rows=write, total=len(rows), copies=True)


def _size(ds: Dataset) -> int:
    """Estimate the bytes that `_change` writes."""
    share = (ds.num_steps + ds.num_episodes) / max(1, ds.num_rows)
    files, columns = ds.store.files, list(ds.store.table.columns())
    films = sum(c.nbytes for c in columns if c.part == "films" and (files.refers_to or files.is_segmented(c)))
    return films + int(share * sum(c.nbytes for c in columns if c.part != "films"))


def _write(rows: Rows, new: NewRows) -> None:
    f = new.field
    if f.kind == "frames" and f.codec != VIDEO:
        parts = (np.arange(a, min(a + _FRAMES, len(rows))) for a in range(0, len(rows), _FRAMES))
        new.write_frames(rows.encoded(f.name, part) for part in parts)
    else:
        new.write(values for _, values in rows.blocks(f.name))
    if f.codec == VIDEO:
        new.write_films()
    if new.has_row_digests:
        new.write_row_digests(rows.stored(np.arange(len(rows))))


def _is_segmented(store: Store) -> bool:
    """Return whether an array of rows, frames or videos is in segments, as those of a merge are."""
    return any(store.files.is_segmented(c) for c in (*store.table.columns(), *store.table.digest_columns()))
