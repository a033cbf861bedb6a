"""The same bytes under a second name: hard link, else reflink, else copy."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

How = Literal["link", "reflink", "copy"]

_FICLONE = 0x40049409


def share(source: Path, target: Path, *, link: bool = True) -> How:
    """Put the bytes of ``source`` at ``target``, replacing what is there in one step; ``source`` is not modified.

    A copy is synced; the directory is not (``sync_directory``). ``link=False`` makes no hard link.

    Returns
    -------
    "link", "reflink" or "copy"

    Raises
    ------
    OSError
        Where even a copy cannot be written; nothing is left behind.
    """
    source = source.resolve(strict=True)  # a link to a symbolic link would not hold the bytes
    temporary = target.with_name(f".{target.name[:200]}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        how = (_link(source, temporary) if link else None) or _clone_or_copy(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)  # also after a rename onto the same inode, which does nothing
    return how


def _link(source: Path, target: Path) -> How | None:
    try:
        target.hardlink_to(source)
    except OSError:  # another disk, a file of another user, a file system without links
        return None
    return "link"


def _clone_or_copy(source: Path, target: Path) -> How:
    with source.open("rb") as read, target.open("wb") as write:
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
