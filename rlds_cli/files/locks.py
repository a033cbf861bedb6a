"""Locks between processes: an ``flock`` on a file, by filelock.

The system releases a lock when its process ends, however it ends. The file stays, empty. A file system without
``flock`` (ENOSYS) gets filelock's own kind: the file exists while the lock is held, and names the machine and process.
"""

from __future__ import annotations

import fcntl
import logging
import threading
from pathlib import Path

from filelock import FileLock, Timeout

from rlds_cli.files import safe as safe_files

_PATIENCE = 5.0  # seconds of waiting, after which it is said
_log = logging.getLogger(__name__)
LockHeld = Timeout  # an OSError: catch it first


def file_lock(path: Path, *, soft: bool = True) -> FileLock:
    """Return the lock of a file, not yet acquired. Users who may write to its directory share it.

    It may be released by another thread than the one that acquired it.

    Parameters
    ----------
    soft : bool
        If False, acquiring raises OSError on a file system without ``flock``.

    Raises
    ------
    NoPermission
        A link, or something else that is not a regular file, has this name.
    """
    if path.is_symlink():
        raise safe_files.refused(path, "is a symbolic link")
    if path.exists() and not path.is_file():
        raise safe_files.refused(path, "is not a regular file")
    return FileLock(path, mode=0o666, thread_local=False, fallback_to_soft=soft)


def flock(descriptor: int, path: Path, *, shared: bool = False) -> None:
    """Take the ``flock`` of an open file; after five seconds of waiting, log a warning that names ``path``."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        note = threading.Timer(_PATIENCE, _log.warning, ["waiting for %s: another process has locked it", path])
        note.daemon = True
        note.start()
        try:
            fcntl.flock(descriptor, kind)
        finally:
            note.cancel()
