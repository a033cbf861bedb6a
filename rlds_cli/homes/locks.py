"""Lock a dataset for work by one process, and turn errors of the file system into errors with a hint."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import is_full
from rlds_cli.base.files.locks import LockHeld, file_lock
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Event, Progress
from rlds_cli.errors import NameTaken, NoPermission, NoSpace, RldsError
from rlds_cli.homes.homes import Home

_OTHER = "another home: --home DIR"
_FILE_SYSTEM = (errno.EIO, errno.ESTALE, errno.ELOOP, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)


@contextmanager
def exclusive(home: Home, id: DatasetId, progress: Progress) -> Iterator[None]:
    """Hold the lock of ``id`` in ``home``. If another process holds it, report that and wait.

    Raises
    ------
    NoPermission, NoSpace
        The home cannot be written, or a link stands where one of its directories should be.
    NameTaken
        A dataset exists whose id differs only in case.
    RldsError
        This process is a worker that starts: it would wait for the lock of the process that waits for it.
    """
    from rlds_cli.base.workers import check_started

    check_started()
    with writing(home):
        path = home.lock(id)
        for directory in (home.dataset(id), home.archive(id), path.parent, home.root / "partial"):
            safe_files.check_directories(directory, home.root)
        if twin := home.twin(id):
            raise NameTaken(
                f"{id} and {twin}, which exists, differ only in case. Some file systems take them for one name.",
                hint=f"another name, or rlds rm {twin}",
            )
        safe_files.directory(path.parent, home.root)
        lock = file_lock(path)
        try:
            lock.acquire(timeout=0)
        except LockHeld:
            progress(Event(str(id), "note", note=f"locked by another process: waiting for {path}"))
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def writing(home: Home) -> Iterator[None]:
    """Turn errors of the file system into NoPermission, NoSpace or, for a failing file system, RldsError."""
    try:
        yield
    except PermissionError as e:
        raise NoPermission(f"{e.filename or home.root} may not be written.", hint=_OTHER) from e
    except NotADirectoryError as e:
        where = e.filename if e.filename and os.path.lexists(e.filename) else home.root
        raise NoPermission(f"{where} is not a directory.", hint=_OTHER) from e
    except OSError as e:
        if e.errno == errno.EROFS:
            raise NoPermission(f"{e.filename or home.root} is read-only.", hint=_OTHER) from e
        if is_full(e):
            raise NoSpace(
                f"The disk of {home.root} is full. Finished work is kept in {home.root / 'partial'}.",
                hint="free some space and run the same command again, or use another home: --home DIR",
            ) from e
        if e.errno in _FILE_SYSTEM:
            where = e.filename or home.root
            raise RldsError(f"The file system of {where} fails: {e.strerror}.", hint=_OTHER) from e
        raise
