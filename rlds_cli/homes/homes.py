"""The directories of a home, and the datasets in them.

::

    <home>/archives/<family>/<name>/    downloads as they came
    <home>/datasets/<family>/<name>/    published datasets, read-only
    <home>/packed/<source>-*            packed rows, rebuilt when needed
    <home>/decisions/<family>+<name>~*  what people have decided on episodes, as they decided it
    <home>/decisions/<family>+<name>.toml  labels that a user offers to those who decide
    <home>/frames/<hash>/               decoded frames in the size of training, decoded again when needed
    <home>/partial/<family>+<name>.*/   work in progress and its journals
    <home>/remote/                      datasets at addresses: indexes, and blocks that were read
    <home>/remote.<user>/               those of another user, who may write to the home; else they are in a home of
                                        that user's own
    <home>/measures/<family>+<name>/    measures of episodes, computed again when needed, and suppressed findings
    <home>/locks/
    <home>/origins/                     where datasets were pushed to or downloaded from
    <home>/registries/                  registries of the user's own
    <home>/versions/<family>/<name>/    versions of datasets that were changed
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from rlds_cli.base import ids, settings
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import file_lock
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import Settings
from rlds_cli.errors import InvalidId

_REMOTE, _VERSIONS = "remote", "versions"
_ANY = re.compile(r".*", re.DOTALL)
_REMOTES = re.compile(rf"{_REMOTE}(\.[0-9]+)?")
_PATIENCE = 1.0  # seconds in which a version is in its place that is being published
_log = logging.getLogger(__name__)


@cache
def _note_other_home(home: Path, own: Path) -> None:
    _log.warning("%s may only be read: blocks that are fetched are kept in %s", home, own)


def _is_writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


@dataclass(frozen=True, slots=True)
class Home:
    """A directory with datasets, archives and work in progress."""

    root: Path
    DIRECTORIES: ClassVar[tuple[str, ...]] = (
        *(
            "archives",
            "datasets",
            "decisions",
            "frames",
            "locks",
            "measures",
            "origins",
            "packed",
            "partial",
            "registries",
        ),
        *(_REMOTE, _VERSIONS),
    )

    def dataset(self, id: DatasetId) -> Path:
        """Return the directory of a published dataset."""
        return self.root / "datasets" / id.family / id.component

    def archive(self, id: DatasetId) -> Path:
        """Return the directory of a dataset's archive."""
        return self.root / "archives" / id.family / id.base.component

    def partial(self, id: DatasetId, tag: str) -> Path:
        """Return the work directory of a dataset; ``tag`` separates work with different options."""
        return self.root / "partial" / f"{id.family}+{id.component}.{tag}"

    def lock(self, id: DatasetId) -> Path:
        """Return the lock file of a dataset."""
        return self.root / "locks" / f"{id.family}+{id.component}.lock"

    @property
    def decisions(self) -> Path:
        """The directory of the journals of decisions."""
        return self.root / "decisions"

    @property
    def frames(self) -> Path:
        """The directory of cached frames."""
        return self.root / "frames"

    @property
    def measures(self) -> Path:
        """The directory of measures of episodes."""
        return self.root / "measures"

    def directories(self) -> list[Path]:
        """Return the directories that a home may have, those of remote datasets of other users included."""
        return [*(self.root / name for name in self.DIRECTORIES), *self._remotes()]

    @property
    def versions(self) -> Path:
        """The directory of the earlier versions of datasets."""
        return self.root / _VERSIONS

    @property
    def remote(self) -> Path:
        """The directory of the user's own datasets at addresses: in the user's home if this one may not be written."""
        first = self.root / _REMOTE
        if safe_files.is_own(first) or not first.exists():
            return first
        beside, own = self.root / f"{_REMOTE}.{os.geteuid()}", settings.user_home() / _REMOTE
        if beside.exists() or _is_writable(self.root) or own == first:
            return beside
        _note_other_home(self.root, own)
        return own

    def remotes(self) -> list[Path]:
        """Return the directories of datasets at addresses, the user's own first; those of others are only read."""
        return list(dict.fromkeys([self.remote, *self._remotes()]))

    def has_as_part(self, path: Path) -> bool:
        """Return whether a path is one of `directories`."""
        return path.parent == self.root and (path.name in self.DIRECTORIES or bool(_REMOTES.fullmatch(path.name)))

    def _remotes(self) -> list[Path]:
        return _entries(self.root, named=_REMOTES)

    def datasets(self) -> Iterator[tuple[DatasetId, Path]]:
        """Yield all published datasets, sorted."""
        for family in _entries(self.root / "datasets"):
            for entry in _entries(family):
                try:
                    id = ids.from_component(family.name, entry.name)
                except InvalidId:
                    continue
                if is_dataset(entry):
                    yield id, entry

    def twin(self, id: DatasetId) -> DatasetId | None:
        """Return the published dataset whose path differs from that of ``id`` only in case, or None."""
        path = self.dataset(id)
        if path.exists():
            return None
        found = _in_any_case(path)
        return ids.from_component(id.family, found.name) if found else None

    def archives(self) -> Iterator[tuple[DatasetId, Path]]:
        """Yield all directories of archives, sorted."""
        for family in _entries(self.root / "archives"):
            for entry in _entries(family):
                try:
                    yield ids.from_component(family.name, entry.name), entry
                except InvalidId:
                    continue


def _entries(directory: Path, *, named: re.Pattern[str] = _ANY) -> list[Path]:
    """Return the directories in one, sorted; none if it cannot be read."""
    try:
        return sorted(Path(e.path) for e in os.scandir(directory) if named.fullmatch(e.name) and e.is_dir())
    except OSError:
        return []


def _in_any_case(path: Path) -> Path | None:
    """Return the first dataset beside a path whose name differs from its name at most in case, or None."""
    try:
        names = sorted(e.name for e in os.scandir(path.parent))  # a Path for each of thousands would take long
    except OSError:
        return None
    for name in names:
        if name.lower() == path.name.lower() and is_dataset(path.with_name(name)):
            return path.with_name(name)
    return None


def is_dataset(path: Path) -> bool:
    """Return whether a path is a dataset that this user can read."""
    try:
        return (path / "zarr.json").exists()
    except OSError:
        return False


def path_of(id: DatasetId, where: Settings) -> Path | None:
    """Return the published dataset in the first home that has it, in any case of letters, or None."""
    for root in where.homes:
        path = Home(root).dataset(id)
        if is_dataset(path) or _is_back(Home(root), id):
            return path
        if found := _in_any_case(path):
            return found
    return None


def _is_back(home: Home, id: DatasetId) -> bool:
    """Return whether a dataset is in its place again that a killed process has moved to its earlier versions."""
    if not (home.versions / id.family / id.component).is_dir():
        return False
    from rlds_cli.store import History  # `rlds list` asks for many datasets, few of which were changed

    history = History(home.dataset(id))
    if not history.is_moving:
        return False
    lock = file_lock(home.lock(id))
    try:
        lock.acquire(timeout=_PATIENCE)
    except OSError:
        return is_dataset(history.path)
    try:
        history.restore()
    except OSError:  # this user may not write there
        _log.warning("%s is in %s: a process ended while it moved there", id, history.beside)
    finally:
        lock.release()
    return is_dataset(history.path)
