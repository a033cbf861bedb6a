"""Which files of an open version are sent, with which parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.repeated import distinct
from rlds_cli.store import snapshots
from rlds_cli.store.opening import Store
from rlds_cli.store.snapshots import LocalFile
from rlds_cli.store.videos import table_path
from rlds_cli.ted import VIDEO, Field


@dataclass(frozen=True, slots=True)
class Sent:
    """What is sent of a version.

    Attributes
    ----------
    files : tuple of LocalFile
    others : int
        Rows of no episode in them, which lie between the rows of episodes. There are none in a growing dataset:
        `Table.dropped` says what its files have beside the episodes.
    """

    files: tuple[LocalFile, ...]
    others: int

    @classmethod
    def of(cls, store: Store) -> Sent:
        """Return the files of an open version.

        Raises
        ------
        DamagedDataset
            Something leads out of its directory.
        """
        own = store.table.snapshot()
        if own is not None:
            return cls((*own, *_tables(store)), 0)
        return cls(tuple(snapshots.of_directory(store.path, _rows_to_send(store))), _others(store))


def _tables(store: Store) -> Iterator[LocalFile]:
    """Yield the tables of the videos of a growing dataset: at an address, one frame would take the whole video."""
    start, length = store.episodes["start"], store.episodes["length"]
    for c in store.table.columns():
        if c.part == "films":
            index, videos = store.rows(c.field), store.videos(c.field)
            rows = (index[a : a + n + 1, 0] for a, n in zip(start.tolist(), length.tolist(), strict=True))
            used = {n for numbers in rows for n in distinct(numbers).tolist() if n >= 0}
            paths = {table_path(c.directory.parent, bytes(videos.files[n])): n for n in used}
            for path, number in sorted(paths.items()):
                data = videos.table(number)
                yield LocalFile(path.as_posix(), len(data), ((0, len(data)),), data=data)


def _others(store: Store) -> int:
    table = store.table
    if not table.has_gaps:
        return 0
    if store.manifest.encoding != "memmap":
        return store.manifest.counts.rows - snapshots.covered(_spans(store))
    plain = (c for c in table.columns() if c.part == "rows" and not _is_image(store.fields[c.field]))
    return max((snapshots.rows_between(store.path / c.directory, _spans(store)) for c in plain), default=0)


def _spans(store: Store) -> IntArray:
    """Return the rows of episodes [episodes, 2], by their first rows."""
    order = np.argsort(store.episodes["start"], kind="stable")
    first = store.episodes["start"][order]
    return np.stack([first, first + store.episodes["length"][order] + 1], 1)


def _rows_to_send(store: Store) -> dict[Path, IntArray | None]:
    """Return the arrays of a version with the rows that episodes lie in [episodes, 2]; None for all rows."""
    path, columns = store.path, (*store.table.columns(), *store.table.digest_columns())
    found: dict[Path, IntArray | None] = {path / c.directory: None for c in columns}
    if not store.table.has_gaps or store.manifest.encoding != "memmap":
        return found
    spans = _spans(store)
    for c in columns:
        if c.part == "frames":
            frames = store.frames(c.field)
            begin, end = frames.spans(spans[:, 0])[0], frames.spans(spans[:, 1] - 1)[1]
            found[path / c.directory] = np.stack([begin, end], 1)
        elif c.part != "films" and not (c.part == "rows" and _is_image(store.fields[c.field])):
            found[path / c.directory] = spans  # offsets are small, and read one behind the other
    return found


def _is_image(f: Field) -> bool:
    return f.kind == "frames" and f.codec != VIDEO
