"""Room on the disk, asked before and while writing."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from rlds_cli.errors import NoPermission, NoSpace, RldsError
from rlds_cli.sizes import text

_FULL = (errno.ENOSPC, errno.EDQUOT)


def existing(path: Path) -> Path:
    """``path``, or its nearest parent that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free(path: Path) -> int:
    """Bytes that may still be written below ``path``, which need not exist."""
    return shutil.disk_usage(existing(path)).free


def check_space(needed: int, path: Path, *, kept: str = "Nothing was written.") -> None:
    """Refuse what cannot fit.

    Parameters
    ----------
    needed : int
        Bytes that are going to be written.
    path : Path
        Where; it need not exist.
    kept : str
        What is on the disk, for the message.

    Raises
    ------
    NoSpace
        With both numbers.
    """
    have = free(path)
    if needed > have:
        raise NoSpace(
            f"{text(needed)} are needed below {path}, {text(have)} are free there. {kept}",
            hint="free some (rlds du, rlds gc), or use another disk: --cache-dir DIR, or RLDS_HOME",
        )


def disk_error(exc: OSError, path: Path, *, kept: str = "") -> RldsError:
    """What a failed write means: NoSpace, NoPermission, or the system's own words."""
    if exc.errno in _FULL:
        return NoSpace(
            f"The disk is full: {path} could not be written ({text(free(path.parent))} free). {kept}".rstrip(),
            hint="free some space (rlds du, rlds gc) and run the same command again",
        )
    if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NoPermission(
            f"{path} may not be written: {exc.strerror}. {kept}".rstrip(),
            hint="use a directory of your own: --cache-dir DIR, or RLDS_HOME",
        )
    return RldsError(f"{path} could not be written: {exc.strerror or exc}. {kept}".rstrip())
