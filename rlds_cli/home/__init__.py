"""The directories of a home, and finding a dataset in one.

::

    <home>/archives/<family>/<name>/    downloads as they came
    <home>/datasets/<family>/<name>/    published datasets, read-only
    <home>/packed/<fingerprint>-*       packed rows, rebuilt when needed
    <home>/partial/<family>+<name>.*/   work in progress and its journals
    <home>/locks/
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlds_cli import ids
from rlds_cli.errors import InvalidId
from rlds_cli.ids import DatasetId
from rlds_cli.settings import Settings


@dataclass(frozen=True, slots=True)
class Home:
    """One home."""

    root: Path

    def dataset(self, id: DatasetId) -> Path:
        """Where the dataset is, or will be, published."""
        return self.root / "datasets" / id.family / id.component

    def archive(self, id: DatasetId) -> Path:
        """Where its archive is kept."""
        return self.root / "archives" / id.family / id.base.component

    def partial(self, id: DatasetId, tag: str) -> Path:
        """Where work on it goes on; ``tag`` keeps work with other options apart."""
        return self.root / "partial" / f"{id.family}+{id.component}.{tag}"

    def lock(self, id: DatasetId) -> Path:
        """The lock file of the base dataset and of everything made from it."""
        return self.root / "locks" / f"{id.family}+{id.component}.lock"

    def packed(self, name: str) -> Path:
        """Where the packed rows ``<fingerprint>-<hash>.<kind>`` are kept."""
        return self.root / "packed" / name

    def packed_lock(self, name: str) -> Path:
        """The lock that is held while they, or others of the same dataset, are built."""
        return self.root / "locks" / f"packed-{name.partition('-')[0]}.lock"

    def datasets(self) -> Iterator[tuple[DatasetId, Path]]:
        """All published datasets, sorted."""
        for family in _entries(self.root / "datasets"):
            for entry in _entries(family):
                try:
                    id = ids.from_component(family.name, entry.name)
                except InvalidId:
                    continue
                if is_dataset(entry):
                    yield id, entry

    def twin(self, id: DatasetId) -> DatasetId | None:
        """The published dataset in whose place ``id`` would stand where file systems ignore case; None mostly."""
        path = self.dataset(id)
        if path.exists():
            return None
        names = [e.name for e in _entries(path.parent) if e.name.lower() == path.name.lower() and is_dataset(e)]
        return ids.from_component(id.family, names[0]) if names else None

    def archives(self) -> Iterator[tuple[DatasetId, Path]]:
        """All directories of archives, sorted."""
        for family in _entries(self.root / "archives"):
            for entry in _entries(family):
                try:
                    yield ids.from_component(family.name, entry.name), entry
                except InvalidId:
                    continue


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(Path(e.path) for e in os.scandir(directory) if e.is_dir())
    except OSError:
        return []


def is_dataset(path: Path) -> bool:
    """Whether a dataset is there, for this user: what may not be looked into is not."""
    try:
        return (path / "zarr.json").exists()
    except OSError:
        return False


def is_dir(path: Path) -> bool:
    """Whether a directory is there, for this user."""
    try:
        return path.is_dir()
    except OSError:
        return False


def find(id: DatasetId, where: Settings) -> Path | None:
    """The published dataset in the first home that has it, whatever the case of its letters; or None."""
    for root in where.homes:
        path = Home(root).dataset(id)
        if is_dataset(path):
            return path
        for entry in _entries(path.parent):
            if entry.name.lower() == path.name.lower() and is_dataset(entry):
                return entry
    return None
