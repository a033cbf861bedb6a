"""One process at a time works on a dataset; what the file system refuses becomes an error that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from rlds_cli.errors import NoPermission, NoSpace
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.progress import Event, Progress


@contextmanager
def exclusive(home: Home, id: DatasetId, progress: Progress) -> Iterator[None]:
    """Hold the lock of ``id`` in ``home``; wait for whoever holds it, and say so.

    Raises
    ------
    NoPermission, NoSpace
        The home cannot be written.
    """
    with writing(home):
        path = home.lock(id)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, mode=0o666)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(Event(str(id), "note", note="another process is at it: waiting"))
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def writing(home: Home) -> Iterator[None]:
    """Turn what the file system refuses into NoPermission or NoSpace."""
    try:
        yield
    except PermissionError as e:
        raise NoPermission(
            f"{e.filename or home.root} may not be written.", hint="another home: --cache-dir DIR"
        ) from e
    except NotADirectoryError as e:
        raise NoPermission(f"{home.root} is not a directory.", hint="another home: --cache-dir DIR") from e
    except OSError as e:
        if e.errno == errno.EROFS:
            raise NoPermission(f"{e.filename or home.root} is read-only.", hint="another home: --cache-dir DIR") from e
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                f"The disk of {home.root} is full. What was finished is kept in {home.root / 'partial'}.",
                hint="free some space and run the same command again, or use another home: --cache-dir DIR",
            ) from e
        raise
