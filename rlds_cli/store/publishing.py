"""From a finished directory to a published one: synced, read-only, in its place in one step."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlds_cli.links import sync_directory

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SYNCED_AT_ONCE = 8  # files: a journaling file system writes what they wait for in one go


def publish(built: Path, target: Path) -> None:
    """Move ``built`` to ``target``, durably; a dataset already there is replaced.

    After a crash at any moment there is the old dataset, or the new one, whole.
    """
    _seal(built)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        old = _replace(built, target)
        sync_directory(target.parent)
        remove(old)
    else:
        built.rename(target)
        sync_directory(target.parent)


def remove(directory: Path) -> None:
    """Remove a dataset so that no half of it is ever seen under its name; of a link to one, the link."""
    if directory.is_symlink():
        directory.unlink()
        return
    aside = directory.with_name(f".{directory.name}.removed")
    if aside.exists():
        shutil.rmtree(aside, ignore_errors=True)
    directory.rename(aside)
    shutil.rmtree(aside)


def _seal(directory: Path) -> None:
    """Sync every file and directory and take the write permission from the files."""
    found = [(Path(root), names) for root, _, names in os.walk(directory, topdown=False)]
    with ThreadPoolExecutor(_SYNCED_AT_ONCE) as pool:
        for _ in pool.map(_seal_file, (root / name for root, names in found for name in names)):
            pass
        for _ in pool.map(sync_directory, (root for root, _ in found)):
            pass


def _seal_file(file: Path) -> None:
    mode = file.stat().st_mode
    if mode & 0o222:
        with file.open("rb") as f:
            os.fsync(f.fileno())
        file.chmod(mode & ~0o222)


def unseal(directory: Path) -> None:
    """Make files writable again where publishing was interrupted; those shared with other datasets stay as they are."""
    for file in directory.rglob("*"):
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not status.st_mode & 0o200:
            file.chmod(status.st_mode | 0o200)


def _replace(new: Path, target: Path) -> Path:
    """Put ``new`` in the place of ``target``; where the old one is now."""
    if _exchange(new, target):
        return new
    aside = target.with_name(f".{target.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    target.rename(aside)
    new.rename(target)
    return aside


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two directories in one step, where the system can (Linux)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(call(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)
