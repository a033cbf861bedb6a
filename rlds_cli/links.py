"""The same bytes under a second name: hard link, else reflink, else copy."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path
from typing import BinaryIO, Literal

from rlds_cli import safe_files
from rlds_cli.errors import DamagedDataset

How = Literal["link", "reflink", "copy"]

_FICLONE = 0x40049409


def share(source: Path, target: Path, *, sealed: bool = False) -> How:
    """Put the bytes of ``source`` at ``target``, replacing what is there in one step; ``source`` is not modified.

    Only a regular file of this user gets a second name. A copy is readable for nobody who may not read ``source``; it
    is synced, the directory is not (``sync_directory``).

    Parameters
    ----------
    sealed : bool
        The result will have its permission to write taken away: link only files that nobody may write now.

    Returns
    -------
    "link", "reflink" or "copy"

    Raises
    ------
    NoPermission
        ``source`` is no regular file.
    DamagedDataset
        It is a link, and is to be ``sealed``: what it leads to is not part of a dataset.
    OSError
        Where even a copy cannot be written; nothing is left behind.
    """
    if sealed and source.is_symlink():
        raise DamagedDataset(f"{source} is a symbolic link, and datasets have none. Nothing of it was read.")
    source = source.resolve(strict=True)  # a link to a symbolic link would not hold the bytes
    temporary = target.with_name(safe_files.temporary_name(target.name))
    try:
        with safe_files.reading(source) as read:
            how = _link(read, source, temporary, sealed) or _clone_or_copy(read, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)  # also after a rename onto the same inode, which does nothing
    return how


def _link(read: BinaryIO, source: Path, target: Path, sealed: bool) -> How | None:
    ours = os.fstat(read.fileno())
    if ours.st_uid != os.geteuid() or (sealed and ours.st_mode & 0o222):
        return None
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another disk, a file system without links
        return None
    made = target.lstat()
    if (made.st_dev, made.st_ino) == (ours.st_dev, ours.st_ino):
        return "link"
    target.unlink()  # the name was given to another file meanwhile
    return None


def _clone_or_copy(read: BinaryIO, target: Path) -> How:
    with os.fdopen(safe_files.open_own(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as write:
        mode = stat.S_IMODE(os.fstat(write.fileno()).st_mode)
        os.fchmod(write.fileno(), mode & (os.fstat(read.fileno()).st_mode | stat.S_IWUSR))
        how: How = "reflink" if _clone(read.fileno(), write.fileno()) else "copy"
        if how == "copy":
            shutil.copyfileobj(read, write, 1 << 20)
        write.flush()
        os.fsync(write.fileno())
    return how


def _clone(read: int, write: int) -> bool:
    if sys.platform != "linux":
        return False
    from fcntl import ioctl

    try:
        ioctl(write, _FICLONE, read)
    except OSError:
        return False
    return True


def sync_directory(directory: Path) -> None:
    """Make a rename in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems do not sync directories
        pass
    finally:
        os.close(handle)
