"""Compact or clear a dataset that grows, and free the rows of its old versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds_cli.dataset import Dataset, compaction, editing
from rlds_cli.dataset.rows import Rows
from rlds_cli.errors import RldsError
from rlds_cli.files import disk
from rlds_cli.growing import logs
from rlds_cli.growing.appender import Appender
from rlds_cli.growing.areas import frame_bytes
from rlds_cli.growing.records import Records
from rlds_cli.growing.segments import stored_row
from rlds_cli.growing.store import GrowingStore, fingerprint_of, is_growing
from rlds_cli.home import locate, referring, usage
from rlds_cli.settings import StrPath
from rlds_cli.store import commits, manifest, versions
from rlds_cli.store.arrays import row_bytes
from rlds_cli.store.manifest import StoredField
from rlds_cli.store.opening import Store
from rlds_cli.ted import Field, lay_out


@dataclass(frozen=True, slots=True)
class Compacted:
    """A dataset that was compacted.

    ``changed`` is False if its episodes lay end to end already. ``waiting`` episodes are not freed yet, since readers
    hold a version that has them: ``rlds gc`` frees them later.
    """

    id: str
    path: Path
    version: int
    fingerprint: str
    changed: bool
    waiting: int
    bytes_before: int
    bytes_after: int


def compact(ref: StrPath, *, cache_dir: StrPath | None = None) -> Compacted:
    """Rewrite a dataset, so that its episodes lie end to end and the rows of others take no space.

    Contents, order and fingerprint stay. Readers go on with the version that they hold. The episodes are written
    once more before the old rows are freed, and so are rows that are stored in another dataset. Earlier versions are
    removed, but for those that have a tag, or that a dataset in one of the user's homes refers to.

    Raises
    ------
    NameTaken
        A writer is at work.
    NoSpace
        There is no room to write the episodes once more. The dataset is as it was.
    """
    path = locate.dataset(ref, cache_dir=cache_dir)
    if not is_growing(path):
        return _compact_files(path, cache_dir)
    before = usage.size_on_disk(path)
    with _writing(path, shared=False) as opened:
        old = opened.newest
        if old.kept < old.episodes - old.first_episode:  # others left, or are dropped
            disk.check_space((old.steps + old.kept) * _row_bytes(opened.schema) + opened.bytes_of_frames(), path)
        g = opened.compact()
        waiting = g.departed - logs.freed(path)[1]
    after = usage.size_on_disk(path)
    return Compacted(
        manifest.read(path).id, path, g.number, fingerprint_of(path), g.number != old.number, waiting, before, after
    )


def _compact_files(path: Path, cache_dir: StrPath | None) -> Compacted:
    ds = Dataset(Store(path))
    before = usage.size_on_disk(path)
    changed = not Rows(ds).is_dense or ds.store.is_segmented or bool(ds.store.refers_to or versions.earlier(path))
    if changed:
        kept = {source.version for _, source in referring.to(path, cache_dir)}
        made = editing.compact(ds, compaction.change(ds), needed=compaction.size(ds), kept=kept)
        ds = Dataset(Store(made))
    after = usage.size_on_disk(path)
    return Compacted(ds.id, path, ds.version, ds.fingerprint, changed, 0, before, after)


@dataclass(frozen=True, slots=True)
class Cleared:
    """A dataset of which ``left`` episodes left; the others are protected."""

    id: str
    path: Path
    version: int
    left: int
    kept: int
    dry_run: bool = False


def clear(ref: StrPath, *, protected: bool = False, dry_run: bool = False, cache_dir: StrPath | None = None) -> Cleared:
    """Let all episodes of a dataset that grows leave; its id, its fields and what it keeps stay.

    Who reads an older version reads on. The rows are freed when nobody does.

    Parameters
    ----------
    ref : str or path
    protected : bool
        Protected episodes leave, too.
    dry_run : bool
        Only count them.
    cache_dir : path, optional

    Raises
    ------
    RldsError
        The dataset does not grow.
    NameTaken
        A writer is at work; it can clear it itself.
    NoSpace
        The disk is full. The dataset is as it was.
    """
    path = locate.dataset(ref, cache_dir=cache_dir)
    id = manifest.read(path).id
    if not is_growing(path):
        raise RldsError(f"{id} does not grow: its episodes cannot leave.", hint=f"rlds rm {id}")
    if dry_run:
        store = GrowingStore(path, check=False)
        g = store.commit
        e = logs.read_episodes(path, g.first_episode, g.episodes, len(store.layout.bytes))
        kept = e if store.kept is None else e[store.kept]
        stays = 0 if protected else int(kept["protected"].sum())
        return Cleared(id, path, g.number, g.kept - stays, stays, dry_run=True)
    with _writing(path, shared=False) as opened:
        before = opened.newest
        if before.kept or before.dropped:
            opened.commit(lay_out(opened.schema, []), cleared="all" if protected else "unprotected")
        g = opened.newest
    return Cleared(id, path, g.number, before.kept - g.kept, g.kept)


def unfreed(path: Path) -> tuple[int, int]:
    """Return the bytes of rows of episodes that left: those that can be freed now, and those that readers hold."""
    g = commits.last(path)
    held = commits.at(path, logs.oldest_held(path, g.number))
    waiting = logs.read_departed(path, g.departed, min(logs.freed(path)[1], g.departed))
    if not len(waiting):
        return 0, 0
    first = int(waiting.min())
    e = logs.read_episodes(path, first, int(waiting.max()) + 1, _frames(path))[waiting - first]
    count, width = max(0, held.departed - min(logs.freed(path)[1], g.departed)), _row_bytes(manifest.read(path).fields)
    now, later = (np.sort(part, order="start") for part in (e[:count], e[count:]))
    return _bytes(now, width), _bytes(later, width)


def _bytes(e: Records, width: int) -> int:
    """Return the bytes of episodes, in order, whose rows have ``width`` bytes without encoded frames."""
    return int((e["length"] + 1).sum()) * width + frame_bytes(e)


def _frames(path: Path) -> int:
    """Return how many fields of encoded frames a dataset has."""
    return len(logs.encoded(manifest.read(path).fields))


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
