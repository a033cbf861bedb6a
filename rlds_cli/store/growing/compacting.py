"""Compact or clear a growing dataset, and free the rows of its old versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.base.files import disk
from rlds_cli.base.files.arrays import row_bytes
from rlds_cli.store import commits, manifest
from rlds_cli.store.commits import Commit
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.appender import Appender
from rlds_cli.store.growing.areas import frame_bytes
from rlds_cli.store.growing.opening import is_growing
from rlds_cli.store.growing.records import Records
from rlds_cli.store.growing.segments import stored_row
from rlds_cli.store.growing.table import LoggedTable
from rlds_cli.store.manifest import StoredField
from rlds_cli.ted import Field, lay_out


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction changed, and how many episodes are ``waiting`` to be freed, since readers hold them."""

    changed: bool
    waiting: int


def compact(path: Path) -> Compaction | None:
    """Write the kept episodes end to end behind the others, and free the rows that no reader holds.

    None of a dataset that has no log: its versions are directories.

    Raises
    ------
    NameTaken
        A writer is at work.
    NoSpace
        There is no room to write the episodes once more. The dataset is as it was.
    """
    if not is_growing(path):
        return None
    with _writing(path, shared=False) as opened:
        old = opened.newest
        if old.kept < old.episodes - old.first_episode:  # others left, or are dropped
            disk.check_space((old.steps + old.kept) * _row_bytes(opened.schema) + opened.bytes_of_frames(), path)
        g = opened.compact()
        return Compaction(g.number != old.number, g.departed - logs.freed(path)[1])


def clear(path: Path, *, protected: bool) -> tuple[Commit, int]:
    """Let all episodes leave; return the version without them, and how many left. Raises as `compact`."""
    with _writing(path, shared=False) as opened:
        before = opened.newest
        if before.kept or before.dropped:
            opened.commit(lay_out(opened.schema, []), cleared="all" if protected else "unprotected")
        return opened.newest, before.kept - opened.newest.kept


def count_protected(path: Path) -> tuple[Commit, int]:
    """Return the newest version, and how many of its episodes are protected."""
    table = LoggedTable.open(path, check=False)
    return table.commit, int(table.protected().sum())


def unfreed(path: Path) -> tuple[int, int]:
    """Return the bytes of rows of episodes that left: those that can be freed now, and those that readers hold."""
    g = commits.last(path)
    held = commits.at(path, logs.oldest_held(path, g.number))
    done = min(logs.freed(path)[1], g.departed)
    waiting = logs.read_departed(path, g.departed, done)
    if not len(waiting):
        return 0, 0
    first, fields = int(waiting.min()), manifest.read(path).fields
    e = logs.read_episodes(path, first, int(waiting.max()) + 1, len(logs.encoded(fields)))[waiting - first]
    count, width = max(0, held.departed - done), _row_bytes(fields)
    now, later = (np.sort(part, order="start") for part in (e[:count], e[count:]))
    return _bytes(now, width), _bytes(later, width)


def _bytes(e: Records, width: int) -> int:
    """Return the bytes of episodes, in order, whose rows have ``width`` bytes without encoded frames."""
    return int((e["length"] + 1).sum()) * width + frame_bytes(e)


def _row_bytes(fields: Iterable[Field | StoredField]) -> int:
    """Return the bytes of a row of all fields, without encoded frames."""
    return sum(row_bytes((0, *shape), dtype) for dtype, shape in map(stored_row, fields))


def free(path: Path) -> int:
    """Free the rows of episodes that left and that no reader holds; return how many episodes that are.

    Raises
    ------
    NameTaken
        A writer is at work; it frees them itself.
    """
    before = logs.freed(path)[1]
    with _writing(path, shared=True):  # opening a dataset for writing frees them
        return logs.freed(path)[1] - before


@contextmanager
def _writing(path: Path, *, shared: bool) -> Iterator[Appender]:
    opened = Appender(path, shared=shared)
    try:
        yield opened
    finally:
        opened.close()
