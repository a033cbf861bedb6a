"""A growing dataset on this disk, as a whole: it is compacted or cleared, and rows of its old versions are freed.

NumPy is imported when it is needed: that nothing left a dataset is known without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rlds_cli.base.files import disk
from rlds_cli.errors import NameTaken
from rlds_cli.store import commits
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.paths import ROW_DIGESTS

if TYPE_CHECKING:
    from rlds_cli.store.growing.appender import Appender
    from rlds_cli.store.growing.records import Records


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction changed, and how many episodes are ``waiting`` to be freed, since readers hold them."""

    changed: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class Clearing:
    """The number of the version from which ``left`` episodes are gone, and how many are kept in it."""

    version: int
    left: int
    kept: int


@dataclass(frozen=True, slots=True)
class GrowingDataset:
    """The growing dataset in the directory ``path``.

    Attributes
    ----------
    LOG : str
        Name of the file with the log of versions, which no other dataset has.
    """

    LOG: ClassVar[str] = commits.FILE

    path: Path

    @classmethod
    def find(cls, path: Path) -> GrowingDataset | None:
        """Return the growing dataset in a directory; None if the dataset in it does not grow."""
        return cls(path) if (path / commits.FILE).exists() else None

    @classmethod
    def of(cls, path: Path) -> GrowingDataset:
        """Return the growing dataset in a directory; raises NameTaken if the dataset in it does not grow."""
        from rlds_cli.store.growing.opening import check_grows

        check_grows(path)
        return cls(path)

    def compact(self) -> Compaction:
        """Write the kept episodes end to end behind the others, and free the rows that no reader holds.

        Raises
        ------
        NameTaken
            A writer is at work.
        NoSpace
            There is no room to write the episodes once more. The dataset is as it was.
        """
        from rlds_cli.store.growing import logs

        with self._writing(shared=False) as opened:
            old = opened.newest
            if old.kept < old.episodes - old.first_episode:  # others left, or are dropped
                rows = (old.steps + old.kept) * _row_bytes(Manifest.read(self.path))
                disk.check_space(rows + opened.bytes_of_frames(), self.path)
            g = opened.compact()
            return Compaction(g.number != old.number, g.departed - logs.freed(self.path)[1])

    def clear(self, *, protected: bool, dry_run: bool) -> Clearing:
        """Let all episodes leave, the ``protected`` ones too if it says so; raises as `compact`.

        ``dry_run`` only counts them.
        """
        if dry_run:
            from rlds_cli.store.growing.table import LoggedTable

            table = LoggedTable.open(self.path, check=False)
            stays = 0 if protected else int(table.protected().sum())
            return Clearing(table.version, table.commit.kept - stays, stays)
        from rlds_cli.ted import lay_out

        with self._writing(shared=False) as opened:
            before = opened.newest
            if before.kept or before.dropped:
                opened.commit(lay_out(opened.schema, []), cleared="all" if protected else "unprotected")
            return Clearing(opened.newest.number, before.kept - opened.newest.kept, opened.newest.kept)

    def unfreed(self) -> tuple[int, int]:
        """Return the bytes of rows of episodes that left: those that can be freed now, and those that readers hold."""
        g = commits.last(self.path)
        if not g.departed:
            return 0, 0
        import numpy as np

        from rlds_cli.store.growing import logs

        held = commits.at(self.path, logs.oldest_held(self.path, g.number))
        done = min(logs.freed(self.path)[1], g.departed)
        waiting = logs.read_departed(self.path, g.departed, done)
        if not len(waiting):
            return 0, 0
        first, head = int(waiting.min()), Manifest.read(self.path)
        frames = len(logs.encoded(head.fields))
        e = logs.read_episodes(self.path, first, int(waiting.max()) + 1, frames)[waiting - first]
        count, width = max(0, held.departed - done), _row_bytes(head)
        now, later = (np.sort(part, order="start") for part in (e[:count], e[count:]))
        return _bytes(now, width), _bytes(later, width)

    def free(self) -> int:
        """Free the rows of episodes that left and that no reader holds; return how many episodes that are.

        Raises
        ------
        NameTaken
            A writer is at work; it frees them itself.
        """
        from rlds_cli.store.growing import logs

        before = logs.freed(self.path)[1]
        with self._writing(shared=True):  # opening a dataset for writing frees them
            return logs.freed(self.path)[1] - before

    def needed_to_open(self, files: Iterable[str]) -> list[str]:
        """Return those of its ``files``, as paths below it, without which a version is not opened.

        These are neither segments nor the digests of rows and episodes, which are read later.
        """
        from rlds_cli.store.growing import logs
        from rlds_cli.store.growing.segments import columns_of

        columns = columns_of(Manifest.read(self.path))
        heads = (*(f"{c.directory.as_posix()}/c/" for c in columns), f"{ROW_DIGESTS}/")
        small = (f for f in files if not f.startswith(heads) or f.endswith("/zarr.json"))
        return [f for f in small if f != logs.DIGESTS]

    def check_shared(self) -> None:
        """Refuse the dataset while a writer is at work that does not share it.

        Raises
        ------
        NameTaken
        """
        from rlds_cli.store.growing import logs

        lock = logs.lock_writers(self.path, shared=True)
        if lock is None:
            raise NameTaken(
                f"{self.path} is being written by a process that does not share it.",
                hint="wait for it; or let it share: writer(..., shared=True)",
            )
        os.close(lock)

    @contextmanager
    def _writing(self, *, shared: bool) -> Iterator[Appender]:
        from rlds_cli.store.growing.appender import Appender

        opened = Appender(self.path, shared=shared)
        try:
            yield opened
        finally:
            opened.close()


def _bytes(e: Records, width: int) -> int:
    """Return the bytes of episodes, in order, whose rows have ``width`` bytes without encoded frames."""
    from rlds_cli.store.growing.areas import frame_bytes

    return int((e["length"] + 1).sum()) * width + frame_bytes(e)


def _row_bytes(head: Manifest) -> int:
    """Return the bytes of a row of all fields, without encoded frames."""
    from rlds_cli.store.growing.segments import columns_of

    return sum(c.width for c in columns_of(head) if c.part == "rows")
