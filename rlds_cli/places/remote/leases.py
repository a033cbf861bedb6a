"""Leases of the directories of remote datasets: nobody removes one that a process has leased.

::

    <home>/remote/room.lock       flock: exclusive to lease a directory, or to remove one
    <home>/remote/<name>/lease    flock: shared while a process uses the directory, exclusive to remove it

A process leases a directory before it reads or writes anything there, and keeps the lease while it may come back. The
system ends a lease with the last process that has it, forked ones included.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.files.locks import flock
from rlds_cli.errors import DamagedDataset

LOCK, LEASE = "room.lock", "lease"


class Descriptor:
    """An open file that ends, with its locks, when nothing refers to it any more."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class Lease:
    """The lease of a directory while this object exists, or a block of it lasts; made under the lock of the room.

    Attributes
    ----------
    directory : Path
        It exists.

    Raises
    ------
    NoPermission, OSError
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        safe_files.directory(directory, directory.parent)
        self._file = _opened(directory)
        fcntl.flock(self._file.number, fcntl.LOCK_SH)  # who has it exclusively has the lock of the room, too

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._file.number, fcntl.LOCK_UN)

    def check_only(self) -> None:
        """Raise DamagedDataset if another process uses the directory; under the exclusive lock of the room.

        It is asked where the machine has started since the directory was used, so it is one of another machine.
        """
        try:
            fcntl.flock(self._file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise used_elsewhere(self.directory) from None
        finally:
            fcntl.flock(self._file.number, fcntl.LOCK_SH)


def used_elsewhere(place: object) -> DamagedDataset:
    """Return the error for a directory that a process of another machine uses."""
    return DamagedDataset(
        f"{place} is in use by a process of another machine; blocks are shared on one machine only.",
        hint="cache=0, or RLDS_HOME on a disk of this machine",
    )


def _opened(directory: Path) -> Descriptor:
    return Descriptor(safe_files.open_own(directory / LEASE, os.O_RDWR | os.O_CREAT))


@contextmanager
def _locked(top: Path) -> Iterator[None]:
    """Hold the lock of a room exclusively; raises OSError."""
    lock = Descriptor(safe_files.open_shared(top / LOCK, os.O_RDWR | os.O_CREAT))
    flock(lock.number, top / LOCK)
    try:
        yield
    finally:
        fcntl.flock(lock.number, fcntl.LOCK_UN)


def lease(directory: Path) -> Lease:
    """Lease a directory of a room that may not exist yet, for who has no lock of the room; raises as `Lease`."""
    safe_files.directory(directory.parent, directory.parent.parent)
    with _locked(directory.parent):
        return Lease(directory)


def datasets(top: Path) -> Iterator[Path]:
    """Yield the directories of the remote datasets in a room, but for those that are being removed; raises OSError."""
    with os.scandir(top) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


class RemoteDirectory:
    """The directory of a remote dataset, for who may remove it.

    Attributes
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def all(cls, top: Path) -> Iterator[Self]:
        """Yield what lies in a room, sorted, but for its lock; nothing if the room is a link."""
        for path in sorted(top.iterdir()) if top.is_dir() and not top.is_symlink() else ():
            if path.name != LOCK:
                yield cls(path)

    @property
    def is_ours(self) -> bool:
        """Whether rlds has made it: a process has leased it, or it is being removed."""
        return (self.path / LEASE).exists() or trees.is_aside(self.path)

    @property
    def lock(self) -> Path:
        """The file that a process locks while it prepares the dataset."""
        return self.path / "lock"

    def remove(self) -> bool:
        """Remove it, unless a process uses it; return whether it is gone."""
        with _locked(self.path.parent):
            try:
                mine = _opened(self.path)
                fcntl.flock(mine.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                aside = trees.set_aside(self.path)
            except BlockingIOError:
                return False
            except FileNotFoundError:
                return True
        trees.remove_aside(aside)
        return True
