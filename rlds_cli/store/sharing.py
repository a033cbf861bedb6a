"""Share files of datasets with others: by hard link, else by reflink, else by copy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path, PurePosixPath

from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import NoPermission
from rlds_cli.store import files, lookups, references
from rlds_cli.store.manifest import Stats, StoredField


@dataclass(frozen=True, slots=True)
class Shared:
    """A field that shares the rows of ``field`` of another dataset, under the name ``name``."""

    dataset: Path
    field: StoredField
    stats: Stats | None
    name: str


def share_tree(
    source: Path, target: Path, *, sealed: bool = True, within: Path | None = None, apart: Collection[str] = ()
) -> disk.How:
    """Share the files below ``source``, and return the weakest way that a file needed: link, reflink or copy.

    So do files of other datasets that ``source`` refers to: the result is whole.

    Parameters
    ----------
    sealed : bool
        The copies will be made read-only: a file that may be written now is copied, not linked.
    within : Path, optional
        A directory that the caller has made. What is at ``target`` already is removed only where it lies in there.
    apart : collection of str
        Files and directories below ``source`` that are not shared.

    Raises
    ------
    DamagedDataset
        Something below ``source`` is neither a directory nor a regular file.
    """
    order: tuple[disk.How, ...] = ("link", "reflink", "copy")
    how = 0
    files.check_tree(source)
    if within is not None:
        _check_target(target, within)
        trees.discard(target)
    for name, file in sorted(lookups.files(source).items(), key=itemgetter(0)):
        if not apart or {name, *map(str, PurePosixPath(name).parents)}.isdisjoint(apart):
            how = max(how, order.index(share_file(file, target / name, sealed=sealed)))
    return order[how]


def share_file(file: Path | lookups.WholeFile, target: Path, *, sealed: bool = True) -> disk.How:
    """Share a file of a dataset as `share_tree` does; what is looked up is written."""
    safe_files.make(target.parent)
    if not isinstance(file, lookups.WholeFile):
        return disk.share(file, target, sealed=sealed)
    target.unlink(missing_ok=True)
    file.write(target)
    return "copy"


def link_tree(source: Path, target: Path, *, apart: Collection[str] = ()) -> None:
    """Give all files below ``source`` but those ``apart`` second names below ``target``, which does not exist.

    Raises
    ------
    NoPermission
        A file cannot have one: ``target`` is on another disk, the file belongs to another user, or the file system has
        no hard links. No row was copied.
    """
    files.check_tree(source)
    for file in sorted(f for f in trees.files(source) if f.name not in apart):
        link_file(file, target / file.relative_to(source))


def link_file(file: Path, target: Path) -> None:
    """Give a file of a dataset a second name; raises as `link_tree`."""
    safe_files.make(target.parent)
    if not disk.link(file, target):
        raise NoPermission(f"{file} cannot be linked to {target}: {disk.why_no_link(file, target)}.")


def move_tree(source: Path, target: Path) -> None:
    """Move all files below ``source``, a directory of the caller's own on the same disk."""
    for file in sorted(trees.files(source)):
        place = target / file.relative_to(source)
        safe_files.make(place.parent)
        file.rename(place)


def link_or_refer(path: Path, source: references.ReferencedVersion, name: str, target: Path) -> None:
    """Share the arrays below the directory ``name`` of a version of a dataset, which is in ``path``; no row is copied.

    Files get second names below ``target``, which is replaced; if one cannot have one, ``target`` refers to them.

    Raises
    ------
    DatasetNotFound, DamagedDataset
        As `references.refer`.
    """
    trees.discard(target)
    try:
        link_tree(path / name, target)
    except NoPermission:
        trees.discard(target)
        references.refer(source, name, target)


def _check_target(target: Path, within: Path) -> None:
    """Refuse a target outside ``within``, or one that is reached through a symbolic link."""
    if ".." in target.relative_to(within).parts:  # ValueError where it is elsewhere
        raise ValueError(f"{target} is not below {within}")
    place = target
    while place != within:
        if place.is_symlink():
            raise ValueError(f"{place} is a symbolic link")
        place = place.parent
