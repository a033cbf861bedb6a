"""Removing datasets from the user's own home."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlds_cli import home, ids, safe_files, settings, targets
from rlds_cli.bars import shown
from rlds_cli.errors import DatasetNotFound, NoPermission
from rlds_cli.home import Home
from rlds_cli.keeping.remaking import obstacle
from rlds_cli.keeping.usage import freed_by, size_on_disk
from rlds_cli.locking import exclusive
from rlds_cli.progress import Progress
from rlds_cli.settings import StrPath
from rlds_cli.store import publishing


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed, or would be: ``bytes`` on disk become free, those shared with other datasets do not.

    ``archive`` bytes stay: from them the dataset is made again without a download. ``lost`` says why nothing can make
    it again; it is empty where something can.
    """

    id: str
    path: Path
    bytes: int
    archive: int
    lost: str = ""


def plan(refs: Iterable[str], *, cache_dir: StrPath | None = None) -> tuple[Removal, ...]:
    """What ``remove`` would do; nothing is changed.

    Parameters
    ----------
    refs : iterable of str
        Ids that are here, or globs.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        One of them is not here.
    NoPermission
        One is in a shared home, which others use; or a link leads to it.
    """
    own = settings.read(cache_dir).home
    try:
        paths = targets.datasets(refs, cache_dir=cache_dir)
    except DatasetNotFound as e:
        raise DatasetNotFound(e.message, hint="rlds list --here shows what is here") from None
    for path in paths:
        if not path.is_relative_to(own / "datasets"):
            raise NoPermission(
                f"{path} is not in your home {own}. Nothing was removed.",
                hint=f"--cache-dir {path.parents[2]} makes that home yours",
            )
        safe_files.check_directories(path, own)
    lost = [obstacle(path, gone=frozenset(paths), cache_dir=cache_dir) for path in paths]
    return tuple(_plan(Home(own), *one) for one in zip(paths, freed_by(paths), lost, strict=True))


def _plan(own: Home, path: Path, freed: int, lost: str) -> Removal:
    id = ids.from_component(path.parent.name, path.name)
    archive = 0 if id.variant else size_on_disk(own.archive(id))
    return Removal(str(id), path, freed, archive, lost)


def remove(
    refs: Iterable[str], *, cache_dir: StrPath | None = None, progress: Progress | bool | None = None
) -> tuple[Removal, ...]:
    """Remove datasets, one after the other; none is ever seen half. Archives, and datasets made of them, stay.

    Raises
    ------
    DatasetNotFound, UnknownDataset, NoPermission
        As of ``plan``; nothing was removed.
    """
    planned = plan(refs, cache_dir=cache_dir)
    where = settings.read(cache_dir)
    for one in planned:
        id = ids.parse(one.id)
        with exclusive(Home(where.home), id, shown(progress)):
            if home.find(id, where) == one.path:  # or another process was faster
                publishing.remove(one.path)
    return planned
