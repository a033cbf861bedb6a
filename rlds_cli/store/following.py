"""Where an open version is: its directory becomes another one when its dataset gets a newer version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rlds_cli.errors import DamagedDataset, DatasetNotFound
from rlds_cli.store import manifest, references, versions
from rlds_cli.store.local import Files, identify
from rlds_cli.store.manifest import Manifest

T = TypeVar("T")


class Followed:
    """A version of a dataset, which is read while newer ones are published."""

    manifest: Manifest
    version_id: str
    refers_to: tuple[references.ReferencedVersion, ...]
    files: Files
    _identity: tuple[int, int]

    @property
    def _path(self) -> Path:
        return self.files.path

    @_path.setter
    def _path(self, path: Path) -> None:
        self.files.path = path

    def _check_sizes(self) -> None:
        """Refuse files of other sizes than the manifest says, where the version is now."""
        raise NotImplementedError

    @property
    def identity(self) -> references.ReferencedVersion | None:
        """What others say of this version that refer to its files; None if these cannot be referred to."""
        if not self.files.moves:
            return None
        m = self.manifest
        return references.ReferencedVersion(str(versions.newest_of(self.path)), m.id, m.version, self.version_id)

    def expect(self, version_id: str, since: str) -> None:
        """Refuse another version than the one at the time ``since``: ``opened`` or ``pickled``.

        Raises
        ------
        DatasetNotFound
        """
        if self.version_id != version_id:
            raise self._replaced(since)

    def _replaced(self, since: str) -> DatasetNotFound:
        text = f"{self.manifest.id} was replaced since it was {since}, in {self._path}."
        return DatasetNotFound(text, hint="open it again")

    def _removed(self) -> DatasetNotFound:
        """Return the error for a version that is not on the disk any more."""
        id, number, newest = self.manifest.id, self.manifest.version, versions.newest_of(self._path)
        if not (newest / "zarr.json").exists():
            return DatasetNotFound(
                f"{id} was removed since it was opened: {self._path}.",
                hint="download or import it, and open it again",
            )
        return version_removed(id, number, newest, "opened")

    @property
    def path(self) -> Path:
        """The directory in which this version is now: another one since its dataset has a newer version."""
        self._followed()
        return self._path

    @path.setter
    def path(self, path: Path) -> None:
        self._path = path

    def _followed(self) -> None:
        with suppress(DatasetNotFound, DamagedDataset):
            self._follow()

    def guarded(self, read: Callable[[], T]) -> T:
        """Return what ``read`` reads of files below `path`, which are opened on first use: those of this version.

        Raises
        ------
        DatasetNotFound
            This version was removed since it was opened, by `rlds compact` or with its dataset; or the dataset was
            replaced; or one that it refers to. Arrays that are mapped already stay valid.
        """
        while True:
            places = self._places()
            try:
                found = read()
            except Exception:
                if self._places() == places:
                    raise
            else:
                if self._places() == places:
                    return found

    def check_readable(self) -> None:
        """Refuse a version that was removed or replaced since it was opened; raises as `guarded`."""
        self._places()

    def _places(self) -> list[Path]:
        """Return where this version is now, and those that it refers to; raises as `guarded`."""
        return [self._follow(), *(source.place(self.manifest.id, self.path) for source in self.refers_to)]

    def _follow(self) -> Path:
        """Return where this version is now; raises as `guarded`."""
        if not self.files.moves:  # rows of a version that is held stay, and those of a block are of one content
            return self._path
        try:
            now = identify(self._path)
            if now == self._identity:
                return self._path
            place, (newest, version_id) = self._path, manifest.read_with_version_id(self._path)
            if version_id != self.version_id and newest.version > self.manifest.version:
                place = versions.at(self._path, self.manifest.version)
                now, (_, version_id) = identify(place), manifest.read_with_version_id(place)
        except (OSError, DamagedDataset, DatasetNotFound):
            raise self._removed() from None
        if version_id != self.version_id:
            raise self._replaced("opened")
        self._path, self._identity = place, now
        self._check_sizes()
        return place


def version_removed(id: str, number: int, newest: Path, since: str) -> DatasetNotFound:
    """Return the error for a version that `rlds compact` removed since it was ``opened`` or ``pickled``."""
    return DatasetNotFound(
        f"{id}#v{number} was removed since it was {since}: rlds compact removes earlier versions without a tag.",
        hint=f"open {id} again, at v{versions.newest(newest)}; rlds tag {id}#v{number} NAME keeps a version while it "
        "is in use",
    )
