"""Fields and whole datasets that share their files with others: hard link, else reflink, else copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlds_cli import links, trees
from rlds_cli.store import files
from rlds_cli.store.manifest import Stats, StoredField


@dataclass(frozen=True, slots=True)
class Shared:
    """A field whose rows are those of ``field`` of another dataset; ``name`` is what it is called here.

    Where that does not ``last``, the result is said to have the field for itself.
    """

    dataset: Path
    field: StoredField
    stats: Stats | None
    name: str
    lasts: bool = True


def share_tree(source: Path, target: Path, *, sealed: bool = True, within: Path | None = None) -> links.How:
    """Share all files below ``source``; returns how (the worst of its files).

    Parameters
    ----------
    sealed : bool
        The copies will be made read-only: a file that may be written now is copied, not linked.
    within : Path, optional
        A directory that the caller has made. What is at ``target`` already is removed only where it lies in there.

    Raises
    ------
    DamagedDataset
        Something below ``source`` is neither a directory nor a regular file.
    """
    order: tuple[links.How, ...] = ("link", "reflink", "copy")
    how = 0
    files.check_tree(source)
    if within is not None:
        _check_target(target, within)
        trees.discard(target)
    for file in sorted(trees.files(source)):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        how = max(how, order.index(links.share(file, place, sealed=sealed)))
    return order[how]


def _check_target(target: Path, within: Path) -> None:
    """Refuse a target that is not below ``within``, or that a link on the way leads out of it."""
    if ".." in target.relative_to(within).parts:  # ValueError where it is elsewhere
        raise ValueError(f"{target} is not below {within}")
    place = target
    while place != within:
        if place.is_symlink():
            raise ValueError(f"{place} is a symbolic link")
        place = place.parent
