"""Publish a finished directory: sync it, make it read-only, and move it to its place in one step."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

from rlds_cli.base import threads
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files import trees
from rlds_cli.base.files.disk import sync_directory

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SYNCED_AT_ONCE = 8  # files: a journaling file system writes what they wait for in one go


def publish(built: Path, target: Path, *, growing: bool = False) -> None:
    """Move ``built`` to ``target``, durably, and replace an existing dataset.

    A crash at any moment leaves either the old dataset or the new one, complete. The files of a dataset that is
    ``growing`` stay writable.
    """
    seal(built, growing=growing)
    safe_files.make(target.parent)
    if target.is_symlink():
        raise safe_files.refused(target, "is a symbolic link, and no dataset")
    if target.exists():
        old = _replace(built, target)
        sync_directory(target.parent)
        remove(old)
    else:
        built.rename(target)
        sync_directory(target.parent)


def remove(directory: Path) -> None:
    """Remove a dataset without ever showing a part of it under its name.

    Raises
    ------
    NoPermission
        It is a link, or no directory; nothing is removed.
    """
    if directory.is_symlink() or not directory.is_dir():
        raise safe_files.refused(directory, "is not a directory that rlds has made")
    aside = _aside(directory, "removed")
    directory.rename(aside)
    trees.remove(aside)


def _aside(directory: Path, what: str) -> Path:
    """Return a hidden name beside a directory to be removed; anything left there by an earlier run is deleted."""
    aside = directory.with_name(f".{directory.name}.{what}")
    trees.discard(aside)
    if not os.path.lexists(aside):
        return aside
    return directory.with_name(f".{directory.name}.{os.urandom(8).hex()}.{what}")


def seal(directory: Path, *, growing: bool = False) -> None:
    """Sync every file and directory, and make files read-only, unless they are of a ``growing`` dataset."""
    files, directories = list[os.DirEntry[str]](), [directory]
    for entry in trees.below(directory):
        if entry.is_dir(follow_symlinks=False):
            directories.append(Path(entry.path))
        else:
            files.append(entry)
    files.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_size)
    threads.each(_sync_entry if growing else _seal_file, files, _SYNCED_AT_ONCE)
    threads.each(_seal_directory, reversed(directories), _SYNCED_AT_ONCE)


def _seal_directory(directory: Path) -> None:
    """Sync a directory, which not everybody may write to, whatever the umask was."""
    if (mode := directory.stat().st_mode) & stat.S_IWOTH:
        directory.chmod(stat.S_IMODE(mode) & ~stat.S_IWOTH)
    sync_directory(directory)


def sync_file(file: Path) -> None:
    """Wait until the content of a file of this user is on the disk."""
    descriptor = safe_files.open_own(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_entry(file: os.DirEntry[str]) -> None:
    sync_file(Path(file.path))


def _seal_file(file: os.DirEntry[str]) -> None:
    """Sync a file and make it read-only.

    A file that is read-only already may be shared with other datasets. One with several names belongs to a growing
    dataset, too, which has synced it.
    """
    status = file.stat(follow_symlinks=False)
    if not status.st_mode & 0o222 or status.st_nlink > 1:
        return
    descriptor = safe_files.open_own(Path(file.path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.fchmod(descriptor, os.fstat(descriptor).st_mode & ~0o222)
    finally:
        os.close(descriptor)


def unseal(directory: Path) -> None:
    """Make files writable again after publishing was interrupted, except those shared with other datasets."""
    for file in trees.files(directory):
        status = file.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not status.st_mode & 0o200:
            descriptor = safe_files.open_own(file, os.O_RDONLY)
            try:
                os.fchmod(descriptor, os.fstat(descriptor).st_mode | 0o200)
            finally:
                os.close(descriptor)


def _replace(new: Path, target: Path) -> Path:
    """Put ``new`` in the place of ``target``, and return the new path of the old directory."""
    if _exchange(new, target):
        return new
    aside = _aside(target, "old")
    target.rename(aside)
    new.rename(target)
    return aside


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two directories in one step, if the system can (Linux)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(call(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)
