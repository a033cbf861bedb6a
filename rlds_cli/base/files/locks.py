"""Locks between processes: an ``flock`` on a file, by filelock.

The system releases a lock when its process ends, however it ends. The file stays, empty. A file system without
``flock`` (ENOSYS) gets filelock's own kind: the file exists while the lock is held, and names the machine and process.
"""

from __future__ import annotations

import fcntl
import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli.base.files import safe as safe_files

if TYPE_CHECKING:
    from filelock import FileLock

_PATIENCE = 5.0  # seconds of waiting, after which it is said
_log = logging.getLogger(__name__)
LockHeld = TimeoutError  # filelock's own is one; an OSError: catch it first


@cache
def _announced_lock() -> type[FileLock]:
    """Return the class of locks that log a warning after five seconds of waiting."""
    from filelock import FileLock  # it takes 20 ms to import, and commands that read need no lock

    class AnnouncedLock(FileLock):
        def acquire(self, timeout: float | None = None, *args: Any, **how: Any) -> Any:
            try:
                return super().acquire(0, *args, **how)
            except LockHeld:
                if timeout == 0:
                    raise
            with _announced(self.lock_file):
                return super().acquire(timeout, *args, **how)

    return AnnouncedLock


@contextmanager
def _announced(path: str | Path) -> Iterator[None]:
    note = threading.Timer(_PATIENCE, _log.warning, ["waiting for %s: another process has locked it", path])
    note.daemon = True
    note.start()
    try:
        yield
    finally:
        note.cancel()


def file_lock(path: Path, *, soft: bool = True) -> FileLock:
    """Return the lock of a file, not yet acquired. Users who may write to its directory share it.

    Whoever waits for it logs a warning after five seconds. It may be released by another thread than the one that
    acquired it.

    Parameters
    ----------
    soft : bool
        If False, acquiring raises OSError on a file system without ``flock``.

    Raises
    ------
    NoPermission
        A link, or something else that is not a regular file, has this name.
    """
    own = safe_files.FILE
    with suppress(FileNotFoundError, NotADirectoryError):
        own |= path.parent.stat().st_mode & stat.S_IWOTH  # filelock gives this mode, whatever the umask is
        mode = path.lstat().st_mode  # one call: whoever holds the lock may remove the file at any moment
        if stat.S_ISLNK(mode):
            raise safe_files.refused(path, "is a symbolic link")
        if not stat.S_ISREG(mode):
            raise safe_files.refused(path, "is not a regular file")
    return _announced_lock()(path, mode=own, thread_local=False, fallback_to_soft=soft)


def flock(descriptor: int, path: Path, *, shared: bool = False) -> None:
    """Take the ``flock`` of an open file; after five seconds of waiting, log a warning that names ``path``."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        with _announced(path):
            fcntl.flock(descriptor, kind)
