"""Remove datasets from the user's own home, and say which cannot be made again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli import homes
from rlds_cli.base import ids, settings
from rlds_cli.base.files import bundles, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.sizes import freed_by, size_on_disk
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import ProvenanceStep
from rlds_cli.errors import DamagedDataset, DatasetNotFound, NoPermission, RldsError
from rlds_cli.homes import Home, exclusive
from rlds_cli.keep import origins, referring
from rlds_cli.make import MERGED
from rlds_cli.places import Origins
from rlds_cli.store import History, Manifest, StoredDataset, open_store


@dataclass(frozen=True, slots=True)
class Removal:
    """A dataset to remove. ``bytes`` become free: those shared with other datasets do not count.

    ``archive`` bytes stay, so that the dataset can be made again without a download. ``lost`` says why it cannot be
    made again; it is empty if it can. ``versions`` earlier versions, and the ``tags`` as text, go with it. Datasets in
    ``referring`` read their rows there, and cannot be read without it.
    """

    id: str
    path: Path
    bytes: int
    archive: int
    lost: str = ""
    versions: int = 0
    tags: str = ""
    referring: tuple[Path, ...] = ()


def plan_removal(refs: Iterable[str], *, home: StrPath | None = None) -> tuple[Removal, ...]:
    """Plan a removal; nothing is changed.

    Parameters
    ----------
    refs : iterable of str
        Ids on this disk, or globs.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        One of them is not here.
    NoPermission
        One is in a shared home, which others use; or its directory is a link.
    """
    own = settings.read(home).home
    try:
        paths = homes.datasets(
            refs,
            home=home,
            why="a dataset is removed with all its versions (rlds compact removes earlier ones)",
        )
    except DatasetNotFound as e:
        raise DatasetNotFound(e.message, hint="rlds list --local shows what is on this disk") from None
    for path in paths:
        if not path.is_relative_to(own / "datasets"):
            raise NoPermission(
                f"{path} is not in your home {own}. Nothing was removed.",
                hint=f"--home {path.parents[2]} selects that home",
            )
        safe_files.check_directories(path, own)
    lost = [obstacle(path, gone=frozenset(paths), home=home) for path in paths]
    others = [tuple(dict.fromkeys(p for p, _ in referring.to(path, home) if p not in paths)) for path in paths]
    return tuple(_plan(Home(own), *one) for one in zip(paths, freed_by(paths), lost, others, strict=True))


def _plan(own: Home, path: Path, freed: int, lost: str, others: tuple[Path, ...]) -> Removal:
    id = ids.from_component(path.parent.name, path.name)
    archive = 0 if id.variant else size_on_disk(own.archive(id))
    return Removal(str(id), path, freed, archive, lost, len(History(path).earlier), _tags(path), others)


def _tags(path: Path) -> str:
    try:
        return History(path).tags_shown
    except DamagedDataset:
        return ""


def remove(
    refs: Iterable[str], *, home: StrPath | None = None, progress: Progress | bool | None = None
) -> tuple[Removal, ...]:
    """Remove datasets one by one, each in one step, with their measures. Archives, and datasets made of them, stay.

    Raises
    ------
    DatasetNotFound, UnknownDataset, NoPermission
        As `plan_removal`; nothing was removed.
    """
    planned = plan_removal(refs, home=home)
    where = settings.read(home)
    for one in planned:
        id = ids.parse(one.id)
        with exclusive(Home(where.home), id, shown(progress)):
            if homes.path_of(id, where) == one.path:  # else another process was faster
                StoredDataset(one.path).check_not_written()
                History(one.path).remove()
                Origins(one.path).forget()
                if id.variant is None:
                    trees.discard(Home(where.home).measures / f"{id.family}+{id.component}")
    return planned


def obstacle(path: Path, *, gone: frozenset[Path] = frozenset(), home: StrPath | None = None) -> str:
    """Say why the dataset in ``path`` cannot be made again; empty where it can.

    Parameters
    ----------
    gone : set of path
        Datasets that are removed at the same time.
    """
    try:
        m = Manifest.read(path)
        if Origins(path).of_version() is not None:
            return ""
        if not m.reader and not m.provenance:
            return "it grows, and its episodes are stored nowhere else"
        if m.reader == MERGED:
            return _of_merged(m, gone, home)
        if m.provenance:
            return _of_derived(m, gone, home)
        if not open_store(path, check=False).sources:
            return "it was created from values in Python"
        return _of_archive(ids.parse(m.id), path)
    except (RldsError, OSError, ValueError, KeyError):
        return "it cannot be read: its origin is not known"


def _of_merged(m: Manifest, gone: frozenset[Path], home: StrPath | None) -> str:
    for member in m.options.get("merged", ()):
        there = homes.path_of(ids.parse(str(member["id"])), settings.read(home))
        if there is None or there in gone or StoredDataset(there).fingerprint() != member["of"]:
            return f"{member['id']}, which it was merged from, is not here as it was"
    return ""


def _of_derived(m: Manifest, gone: frozenset[Path], home: StrPath | None) -> str:
    step = m.provenance[-1]
    if ProvenanceStep(step).appends:
        return "files were appended to it"
    if ProvenanceStep(step).is_edit:
        return f"its labels and its choice of episodes are stored nowhere else (rlds lock {m.id} writes them down)"
    reference = str(step.get("reference", ""))
    if ":" not in reference and not _is_builtin(step):
        return f'the source of its function "{reference}" is not kept'
    source = str(step.get("from", ""))
    there = homes.path_of(ids.parse(source), settings.read(home))
    if there is not None and there not in gone:
        return ""
    if there is not None:
        why = obstacle(there, gone=gone, home=home)
        return f"{source}, which it was made of, is removed too: {why}" if why else ""
    return "" if origins.downloadable(source) else f"{source}, which it was made of, is not here"


def _is_builtin(step: Mapping[str, Any]) -> bool:
    from rlds_cli.preprocess import RecordedStep  # slow to start

    return RecordedStep(step).is_builtin


def _of_archive(id: DatasetId, path: Path) -> str:
    if origins.described(path) is not None:
        return ""
    if id.family == ids.LOCAL:
        files = origins.own_files(path)
        lost = [file for file, _ in files if not bundles.is_file(file)]
        return f"{lost[0]}, which it was imported from, is gone" if lost else ""
    if origins.downloadable(str(id.base)) or Home(path.parents[2]).archive(id).is_dir():
        return ""
    return "its archive is no longer available, and not kept here"
