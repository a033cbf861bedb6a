"""The versions of a dataset: its directory is the newest, and earlier ones lie beside it.

A version is a whole dataset of its own, whose files of rows are shared with the others by hard links::

    <home>/datasets/<family>/<name>/           the newest version
    <home>/versions/<family>/<name>/<number>/  each earlier one

So whatever opens, checks or copies a dataset does the same with a version. A change is published as any dataset is: the
new directory takes the place of the newest one in one step, after that one has got a place among the earlier ones.
"""

from __future__ import annotations

from pathlib import Path

from rlds_cli.errors import DamagedDataset, DatasetNotFound, RldsError
from rlds_cli.files import trees
from rlds_cli.store import manifest, publishing

TOP = "versions"


def directory(path: Path) -> Path:
    """Return the directory of the earlier versions of the dataset in ``path``."""
    path = path.absolute()
    return path.parents[2] / TOP / path.parent.name / path.name


def earlier(path: Path) -> list[int]:
    """Return the numbers of the earlier versions that are here, in order. Higher ones are of a dataset before it."""
    try:
        numbers = sorted(int(p.name) for p in directory(path).iterdir() if p.name.isdecimal())
        return [n for n in numbers if n < manifest.read(path).version]
    except (OSError, IndexError, DamagedDataset):
        return []


def at(path: Path, number: int) -> Path:
    """Return the directory of a version of the dataset in ``path``.

    Raises
    ------
    DatasetNotFound
        It is not here; the message names those that are.
    """
    newest = manifest.read(path)
    if number == newest.version:
        return path
    if number in earlier(path):
        return directory(path) / str(number)
    there = ", ".join(f"v{n}" for n in (*earlier(path), newest.version))
    raise DatasetNotFound(f"{newest.id} has no version {number:,} here: {there}.", hint=f"rlds log {newest.id}")


def publish(built: Path, path: Path) -> None:
    """Make the dataset in ``built`` the newest version of the one in ``path``, which becomes an earlier one.

    The caller holds the lock of the dataset. A crash at any moment leaves the one or the other as the newest.
    """
    newest, version_id = manifest.read_with_version_id(path)
    place = directory(path) / str(newest.version)
    if not _holds(place, version_id):
        aside = place.with_name(f".{place.name}.new")
        trees.discard(aside)
        publishing.link_tree(path, aside)
        if place.is_dir():  # of a dataset that this one has replaced
            publishing.remove(place)
        aside.rename(place)
    publishing.publish(built, path)


def _holds(place: Path, version_id: str) -> bool:
    """Return whether a version is stored in ``place``."""
    try:
        return manifest.read_with_version_id(place)[1] == version_id
    except (RldsError, OSError):
        return False


def remove(path: Path) -> None:
    """Remove the earlier versions of the dataset that is, or was, in ``path``."""
    if directory(path).is_dir():
        publishing.remove(directory(path))
