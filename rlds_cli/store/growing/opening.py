"""Datasets by their directory, whether their versions are records of a log or directories: the one place that asks."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli.base.refs import Ref
from rlds_cli.errors import DatasetNotFound, NameTaken, RldsError
from rlds_cli.store import paths
from rlds_cli.store.history import History, Made
from rlds_cli.store.local import Files, LocalFiles
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.store.table import FixedTable

if TYPE_CHECKING:
    from rlds_cli.base.progress import Progress
    from rlds_cli.store.growing import edits
    from rlds_cli.store.growing.table import LoggedTable
    from rlds_cli.store.integrity import Verification


def open_store(of: Path | Files, ref: Ref | None = None, *, check: bool = True) -> Store:
    """Open a dataset at the version that ``ref`` names, or the newest; or the version that some `Files` are of.

    ``check=False`` opens one that may be damaged, see `FixedTable`.

    Raises
    ------
    DatasetNotFound
        There is no such version or tag, or the version's rows were freed.
    """
    if isinstance(of, Files):
        return Store(_logged(of, check=check) if _grows(of.path) else FixedTable(of, check=check))
    return _at(of, StoredDataset(of).number_of(ref), check=check)


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """The dataset in the directory ``path`` of this disk, whichever of its versions is open, if any."""

    path: Path

    @property
    def grows(self) -> bool:
        """Whether it has a log to which writers commit."""
        return _grows(self.path)

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return History(self.path).newest

    @property
    def version_id(self) -> str:
        """The id of the newest version, which is not opened; see `Table.version_id`."""
        if not self.grows:
            return Manifest.read_with_version_id(self.path)[1]
        from rlds_cli.store import commits

        return commits.last(self.path).version_id

    def fingerprint(self) -> str:
        """Return the fingerprint of the newest version: computed of one that grows."""
        return _growing(self.path).fingerprint() if self.grows else Manifest.read(self.path).fingerprint

    def verify(
        self, ref: Ref | None = None, *, jobs: int | None = None, progress: Progress | bool | None = None
    ) -> Verification:
        """Verify a version; raises DatasetNotFound if it is not here."""
        number = self.number_of(ref)
        if self.grows:
            from rlds_cli.store.growing import verification

            return verification.verify_directory(self.path, version=number, progress=progress)
        from rlds_cli.store import integrity

        place = self.path if number is None else History(self.path).at(number)
        return integrity.verify_directory(place, jobs=jobs, progress=progress)

    # -- its versions

    def number_of(self, ref: Ref | None) -> int | None:
        """Return the number of the version that a reference names; None if it names none.

        Raises
        ------
        DatasetNotFound
            There is no such version or tag.
        """
        return None if ref is None or ref.selector is None else History(self.path).resolve(ref, _fingerprint_at)

    def directory_of(self, ref: Ref) -> Path:
        """Return the directory of the version that ``ref`` names.

        Raises
        ------
        DatasetNotFound
            There is no such version or tag.
        RldsError
            The dataset grows, so that all its versions share one directory.
        """
        number = self.number_of(ref)
        if number is None:
            return self.path
        if self.grows:
            raise RldsError(
                f"{ref} has no directory of its own: a growing dataset keeps all versions in {self.path}.",
                hint="rlds select makes a dataset of a version, without a copy of rows",
            )
        return History(self.path).at(number)

    def with_content(
        self, fingerprint: str, number: int | None = None, fits: Callable[[Manifest], bool] = lambda m: True
    ) -> Store | None:
        """Open the version with a fingerprint; None if none has it.

        Parameters
        ----------
        fingerprint : str
        number : int, optional
            Of the version that is preferred; the only one of a growing dataset, whose fingerprints take time.
        fits : callable
            Called with the manifest of a version that has the fingerprint; versions for which it is False do not count.
        """
        if self.grows:
            try:
                found = _growing(self.path, number)
            except DatasetNotFound:
                return None
            return found if found.fingerprint() == fingerprint and fits(found.manifest) else None
        there = [
            (m, p)
            for p in History(self.path).directories
            if (m := Manifest.read(p)).fingerprint == fingerprint and fits(m)
        ]
        first = next((p for m, p in there if m.version == number), there[0][1] if there else None)
        return None if first is None else _at(first, None, check=False)

    def made(self) -> list[Made]:
        """Return how each version on this disk was made, the oldest first."""
        if not self.grows:
            return History(self.path).made()
        from rlds_cli.store import commits
        from rlds_cli.store.growing import edits

        found = commits.all_until(self.path, commits.last(self.path).number)
        lines = edits.read(self.path, 0, found[-1].edits, Manifest.read(self.path))
        steps = {bisect_left(found, line.end, key=lambda c: c.edits): _step(line) for line in lines if line.by}
        by = {c.number: "compact" for before, c in pairwise(found) if c.moved > before.moved} | {0: "created"}

        def one(c: commits.Commit) -> Made:
            created = datetime.fromtimestamp(c.time, UTC).isoformat(timespec="seconds")
            step = None if c.number in by else steps.get(c.number)
            return Made(
                number=c.number,
                created=created,
                step=step,
                by=by.get(c.number, "commit"),
                episodes=c.kept,
                steps=c.steps,
                fingerprint="",
            )

        return [one(c) for c in found]

    # -- its writers

    @contextmanager
    def without_writers(self) -> Iterator[None]:
        """Let no writer begin while a block of code removes or replaces the dataset; nothing to do if it has none.

        Raises
        ------
        NameTaken
            One is at work.
        """
        from rlds_cli.store.growing import logs

        if not (self.path / logs.WRITERS).exists():
            yield
            return
        lock = logs.lock_writers(self.path, shared=False)
        if lock is None:
            raise NameTaken(
                f"{self.path} is being written by another process.", hint="wait until its writers are closed"
            )
        try:
            yield
        finally:
            os.close(lock)

    def check_not_written(self) -> None:
        """Refuse a dataset at which a writer is at work; raises as `without_writers`."""
        with self.without_writers():
            pass


def check_grows(path: Path) -> None:
    """Refuse a dataset that does not grow: there is no log to which a writer commits.

    Raises
    ------
    NameTaken
    """
    if not _grows(path):
        id = Manifest.read(path).id
        raise NameTaken(
            f"{id} exists, and does not grow: no writer adds episodes to it, and none leaves.",
            hint=f"another name; rlds append {id} FILES makes a version with more episodes; rlds rm {id}",
        )


def _grows(path: Path) -> bool:
    return (path / paths.COMMITS).exists()


def _at(path: Path, number: int | None, *, check: bool) -> Store:
    if _grows(path):
        return _growing(path, number, check=check)
    directory = path if number is None else History(path).at(number)
    return Store(FixedTable(LocalFiles(directory, moves=True), check=check))


def _growing(path: Path, number: int | None = None, *, check: bool = False) -> Store:
    return Store(_logged(LocalFiles(path, moves=False), number, check=check))


def _logged(files: Files, number: int | None = None, *, check: bool) -> LoggedTable:
    from rlds_cli.store.growing.table import LoggedTable  # an ordinary dataset is opened without it

    return LoggedTable(files, number, check=check)


def _fingerprint_at(path: Path, number: int) -> str:
    return _at(path, number, check=False).fingerprint()


def _step(line: edits.Edit) -> Mapping[str, Any]:
    """Return the step of an edit."""
    columns = [name for name in line.args if name not in line.facts]
    return {"function": line.by, "args": line.args, "columns": columns}
