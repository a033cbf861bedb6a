"""Measure the disk space of a home; a file with several names counts once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli.base import ids, settings
from rlds_cli.base.files import disk
from rlds_cli.base.files.names import is_unfinished
from rlds_cli.base.files.sizes import Files, Inode, add_new, files_of, size_on_disk, sizes_of
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import DamagedDataset, DatasetNotFound
from rlds_cli.homes import locating
from rlds_cli.homes.homes import Home
from rlds_cli.store import History

if TYPE_CHECKING:
    from rlds_cli.store.references import ReferencedVersion


@dataclass(frozen=True, slots=True)
class DatasetUsage:
    """Bytes on disk of one dataset with all its versions.

    ``shared`` bytes of its ``cache`` also belong to others: to the datasets and archives that ``shared_with`` names.

    ``archive`` is 0 without an archive, and for variants. ``here`` is False if there is only an archive.
    ``last_opened`` is an ISO-8601 UTC time, as exact as the file system's access times; None without a cache.
    ``refers_to`` names versions of other datasets in which rows of its newest version are stored.
    """

    id: str
    archive: int
    cache: int
    shared: int
    last_opened: str | None
    here: bool
    refers_to: tuple[str, ...] = ()
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on disk of a home.

    ``packed`` counts row blocks for loading, which are rebuilt when needed; ``frames`` counts cached frames, which are
    decoded again; ``remote`` counts cached blocks of datasets at an address, which are fetched again; ``measures``
    counts measures of episodes, which are computed again; ``partial`` counts the remains of interrupted downloads,
    conversions and removals. ``archives`` and ``caches`` count shared files once; ``total`` counts everything.
    """

    home: Path
    datasets: tuple[DatasetUsage, ...]
    packed: int
    partial: int
    archives: int
    caches: int
    total: int
    free: int
    remote: int = 0
    frames: int = 0
    measures: int = 0


def usage(refs: Iterable[str] = (), *, home: StrPath | None = None) -> Usage:
    """Measure the user's own home; a home that does not exist is empty.

    Parameters
    ----------
    refs : iterable of str
        Ids or globs: only these datasets are listed. All of the home count in the sums.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        One of them is not in the home.
    """
    root = settings.read(home).home
    own, chosen = Home(root), _chosen(refs, root, home)
    there = sorted(own.datasets(), key=_order)
    archives = {str(id): _archive(path) for id, path in own.archives()}
    caches = {str(id): _cache(path) for id, path in there}
    owners: dict[Inode, list[str]] = {}
    measured = {id: files.sizes for id, files in caches.items()}
    for owned in ({f"the archive of {id}": sizes for id, sizes in archives.items()}, measured):
        for name, sizes in owned.items():
            for inode in sizes:
                owners.setdefault(inode, []).append(name)
    seen = set[Inode]()
    taken = {id: add_new(sizes, seen) for id, sizes in archives.items()}
    archived, cached = sum(taken.values()), sum(add_new(sizes, seen) for sizes in measured.values())
    rows = [_dataset(id, path, taken.pop(str(id), 0), caches[str(id)], owners) for id, path in there]
    rows += [DatasetUsage(id, size, 0, 0, None, False) for id, size in taken.items() if size]
    rows.sort(key=lambda row: _order((ids.parse(row.id), root)))  # archives before what was made of parts of them
    rows = [row for row in rows if not chosen or row.id in chosen]
    caches_of = (root / "packed", own.frames, own.remote, own.measures)
    packed, frames, remote, kept = (size_on_disk(place, seen) for place in caches_of)
    left_over, walked = Files(), {str(place) for _, path in there for place in (path, History(path).beside)}
    for top in ("partial", "archives", "datasets", "versions"):
        left_over.add(root / top, without=walked)
    partial = add_new(left_over.sizes, seen)
    total = archived + cached + packed + frames + partial + remote + kept + size_on_disk(own.decisions, seen)
    return Usage(root, tuple(rows), packed, partial, archived, cached, total, disk.free(root), remote, frames, kept)


def _chosen(refs: Iterable[str], root: Path, home: StrPath | None) -> set[str]:
    """Return the ids of the datasets that are listed; none if all are."""
    refs = list(refs)
    paths = locating.datasets(refs, home=home, why="its bytes are counted with those of all versions")
    for path in paths:
        if not path.is_relative_to(root / "datasets"):
            raise DatasetNotFound(f"{path} is not in {root}.", hint=f"--home {path.parents[2]} selects that home")
    return {str(ids.from_component(path.parent.name, path.name)) for path in paths}


def _order(found: tuple[DatasetId, Path]) -> tuple[str, str, str]:
    id, _ = found
    return id.family, id.name, id.variant or ""


def _archive(path: Path) -> dict[Inode, int]:
    """Return the bytes of the files of an archive."""
    return sizes_of(file for file in files_of(path) if not is_unfinished(file[0]))


def _cache(path: Path) -> Files:
    """Return the files of a dataset with all its versions."""
    files = Files()
    files.add(path)
    files.add(History(path).beside)
    return files


def _dataset(
    id: DatasetId, path: Path, archive: int, files: Files, owners: Mapping[Inode, Sequence[str]]
) -> DatasetUsage:
    sizes = files.sizes
    shared = {inode: size for inode, size in sizes.items() if len(owners[inode]) > 1}
    others = {owner for inode in shared for owner in owners[inode]} - {str(id)}
    status = (path / "zarr.json").stat()
    opened = datetime.fromtimestamp(max(status.st_atime, status.st_mtime), UTC).isoformat(timespec="seconds")
    sources, cache = tuple(map(str, _sources(path, files))), sum(sizes.values())
    return DatasetUsage(str(id), archive, cache, sum(shared.values()), opened, True, sources, tuple(sorted(others)))


def _sources(path: Path, files: Files) -> tuple[ReferencedVersion, ...]:
    if History.REFERENCE in files.names:
        with suppress(DamagedDataset):
            return History(path).sources
    return ()
