"""Datasets by their directory, whether their versions are records of a log or directories: the one place that asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli.base.progress import Progress
from rlds_cli.base.refs import Ref
from rlds_cli.errors import DatasetNotFound, NameTaken, RldsError
from rlds_cli.store import commits, manifest, versions
from rlds_cli.store.local import Files, LocalFiles
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.store.table import FixedTable
from rlds_cli.store.versions import Made

if TYPE_CHECKING:
    from rlds_cli.store.growing import edits
    from rlds_cli.store.growing.table import LoggedTable
    from rlds_cli.store.integrity import Verification


def is_growing(path: Path) -> bool:
    """Return whether the dataset in a directory grows."""
    return (path / commits.FILE).exists()


def check_grows(path: Path) -> None:
    """Refuse a dataset that does not grow: there is no log to which a writer commits.

    Raises
    ------
    NameTaken
    """
    if not is_growing(path):
        id = manifest.read(path).id
        raise NameTaken(
            f"{id} exists, and does not grow: no writer adds episodes to it, and none leaves.",
            hint=f"another name; rlds append {id} FILES makes a version with more episodes; rlds rm {id}",
        )


def open_store(of: Path | Files, ref: Ref | None = None, *, check: bool = True) -> Store:
    """Open a dataset at the version that ``ref`` names, or the newest; or the version that some `Files` are of.

    ``check=False`` opens one that may be damaged, see `FixedTable`.

    Raises
    ------
    DatasetNotFound
        There is no such version or tag, or the version's rows were freed.
    """
    if isinstance(of, Files):
        return Store(_logged(of, check=check) if is_growing(of.path) else FixedTable(of, check=check))
    return _at(of, number_of(of, ref), check=check)


def directory(path: Path, ref: Ref) -> Path:
    """Return the directory of the version that ``ref`` names, of the dataset in ``path``.

    Raises
    ------
    DatasetNotFound
        There is no such version or tag.
    RldsError
        The dataset grows, so that all its versions share one directory.
    """
    number = number_of(path, ref)
    if number is None:
        return path
    if is_growing(path):
        raise RldsError(
            f"{ref} has no directory of its own: a growing dataset keeps all versions in {path}.",
            hint="rlds select makes a dataset of a version, without a copy of rows",
        )
    return versions.at(path, number)


def number_of(path: Path, ref: Ref | None) -> int | None:
    """Return the number of the version that a reference names, of the dataset in ``path``; None if it names none.

    Raises
    ------
    DatasetNotFound
        There is no such version or tag.
    """
    return None if ref is None or ref.selector is None else versions.resolve(path, ref, _fingerprint_of_version)


def _at(path: Path, number: int | None, *, check: bool) -> Store:
    if is_growing(path):
        return _growing(path, number, check=check)
    return _fixed(path if number is None else versions.at(path, number), check=check)


def _fixed(directory: Path, *, check: bool) -> Store:
    return Store(FixedTable(LocalFiles(directory, moves=True), check=check))


def _growing(path: Path, number: int | None = None, *, check: bool = False) -> Store:
    return Store(_logged(LocalFiles(path, moves=False), number, check=check))


def _logged(files: Files, number: int | None = None, *, check: bool) -> LoggedTable:
    from rlds_cli.store.growing.table import LoggedTable  # an ordinary dataset is opened without it

    return LoggedTable(files, number, check=check)


def _fingerprint_of_version(path: Path, number: int) -> str:
    return _at(path, number, check=False).fingerprint()


def version_id_of(path: Path) -> str:
    """Return the newest version id of a dataset without opening it; see `Table.version_id`."""
    return commits.last(path).version_id if is_growing(path) else manifest.read_with_version_id(path)[1]


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of the dataset in a directory: computed of one that grows."""
    return _growing(path).fingerprint() if is_growing(path) else manifest.read(path).fingerprint


def find_version(
    path: Path, fingerprint: str, number: int | None = None, fits: Callable[[Manifest], bool] = lambda m: True
) -> Store | None:
    """Return the version of a dataset with a fingerprint; None if none has it.

    Parameters
    ----------
    path : Path
    fingerprint : str
    number : int, optional
        Of the version that is preferred; the only one of a growing dataset, whose fingerprints take time.
    fits : callable
        Called with the manifest of a version that has the fingerprint; versions for which it is False do not count.
    """
    if is_growing(path):
        try:
            found = _growing(path, number)
        except DatasetNotFound:
            return None
        return found if found.fingerprint() == fingerprint and fits(found.manifest) else None
    there = [
        (m, p) for p in versions.directories(path) if (m := manifest.read(p)).fingerprint == fingerprint and fits(m)
    ]
    first = next((p for m, p in there if m.version == number), there[0][1] if there else None)
    return None if first is None else _fixed(first, check=False)


def verify(
    path: Path, ref: Ref | None = None, *, jobs: int | None = None, progress: Progress | bool | None = None
) -> Verification:
    """Verify a version of a dataset; raises DatasetNotFound if it is not here."""
    number = number_of(path, ref)
    if is_growing(path):
        from rlds_cli.store.growing import verification

        return verification.verify_directory(path, version=number, progress=progress)
    from rlds_cli.store import integrity

    place = path if number is None else versions.at(path, number)
    return integrity.verify_directory(place, jobs=jobs, progress=progress)


def made_at(path: Path) -> list[Made]:
    """Return how each version of a dataset on this disk was made, the oldest first."""
    if not is_growing(path):
        return versions.made(path)
    from rlds_cli.store.growing import edits

    found = commits.all_until(path, commits.last(path).number)
    lines = edits.read(path, 0, found[-1].edits, manifest.read(path))
    steps = {bisect_left(found, line.end, key=lambda c: c.edits): _step(line) for line in lines if line.by}
    by = {c.number: "compact" for before, c in pairwise(found) if c.moved > before.moved} | {0: "created"}

    def one(c: commits.Commit) -> Made:
        created = datetime.fromtimestamp(c.time, UTC).isoformat(timespec="seconds")
        step = None if c.number in by else steps.get(c.number)
        return Made(c.number, created, step, by.get(c.number, "commit"), c.kept, c.steps, "")

    return [one(c) for c in found]


def _step(line: edits.Edit) -> Mapping[str, Any]:
    """Return the step of an edit."""
    columns = [name for name in line.args if name not in line.facts]
    return {"function": line.by, "args": line.args, "columns": columns}
