"""Compact a dataset of either layout, and clear one that grows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlds_cli import dataset, homes
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset
from rlds_cli.keep import referring
from rlds_cli.store import GrowingDataset, Manifest, open_store


@dataclass(frozen=True, slots=True)
class Compacted:
    """A dataset that was compacted.

    ``changed`` is False if its episodes lay end to end already. ``waiting`` episodes are not freed yet, since a reader
    holds a version that has them, or a tag names it: ``rlds gc`` frees them later.
    """

    id: str
    path: Path
    version: int
    fingerprint: str
    changed: bool
    waiting: int
    bytes_before: int
    bytes_after: int


def compact(ref: StrPath, *, home: StrPath | None = None) -> Compacted:
    """Rewrite a dataset, so that its episodes lie end to end and the rows of others take no space.

    Contents, order and fingerprint stay. Readers keep the version that they opened. The episodes are written
    once more before the old rows are freed, and so are rows that are stored in another dataset. Earlier versions are
    removed, but for those that have a tag, or that a dataset in one of the user's homes refers to.

    Raises
    ------
    NameTaken
        A writer is at work.
    NoSpace
        There is no room to write the episodes once more. The dataset is as it was.
    """
    path = homes.dataset(ref, home=home, why="compacting makes a version from the newest one")
    before = size_on_disk(path)
    if (growing := GrowingDataset.find(path)) is not None:
        done = growing.compact()
        changed, waiting = done.changed, done.waiting
    else:
        changed, waiting = _compact_files(path, home), 0
    store, after = open_store(path), size_on_disk(path)
    id, fingerprint = store.manifest.id, store.fingerprint()
    return Compacted(id, path, store.version, fingerprint, changed, waiting, before, after)


def _compact_files(path: Path, home: StrPath | None) -> bool:
    """Make a next version whose files are its own, and remove earlier ones; False if it is so already."""

    def referred() -> set[int]:
        return {source.version for other, source in referring.to(path, home) if other != path}

    return dataset.compact(Dataset(open_store(path)), referred)


@dataclass(frozen=True, slots=True)
class Cleared:
    """A dataset of which ``left`` episodes left; the others are protected."""

    id: str
    path: Path
    version: int
    left: int
    kept: int
    dry_run: bool = False


def clear(ref: StrPath, *, protected: bool = False, dry_run: bool = False, home: StrPath | None = None) -> Cleared:
    """Let all episodes of a growing dataset leave; its id, its fields and what it keeps stay.

    Who reads an older version reads on. The rows are freed when nobody does.

    Parameters
    ----------
    ref : str or path
    protected : bool
        Protected episodes leave, too.
    dry_run : bool
        Only count them.
    home : path, optional

    Raises
    ------
    RldsError
        The dataset does not grow.
    NameTaken
        A writer is at work; it can clear it itself.
    NoSpace
        The disk is full. The dataset is as it was.
    """
    path = homes.dataset(ref, home=home, why="episodes leave the newest version")
    growing = GrowingDataset.of(path)
    id, done = Manifest.read(path).id, growing.clear(protected=protected, dry_run=dry_run)
    return Cleared(id, path, done.version, done.left, done.kept, dry_run=dry_run)
