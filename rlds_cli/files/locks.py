"""Locks between processes: an ``flock`` on a file, or a marker file on file systems without locks.

::

    <name>.lock         locked while a process has an flock on it; the file may stay afterwards
    <name>.lock.held    the marker: it exists while the lock is held, and names the holder's machine and process
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rlds_cli.files import safe as safe_files

_EVERY = 0.05  # seconds between two attempts
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
_LONGEST = 300  # bytes of a marker file


class LockHeld(Exception):
    """Another process or thread holds the lock."""


class FileLock:
    """A lock with one holder at a time, in this process or another one. Users who share a home share its locks.

    The file itself stays empty, and may belong to another user.

    Parameters
    ----------
    path : Path
        The file; its directory must be there.
    marks : bool
        Use a marker file if the file system has no locks. The marker stays behind if its holder is killed on another
        machine. If False, `acquire` raises the OSError.
    """

    def __init__(self, path: Path, *, marks: bool = True) -> None:
        self.path = path
        self._marks = marks
        self._fd: int | None = None
        self._mark: Path | None = None

    @property
    def mark(self) -> Path:
        """Path of the marker file, for file systems without locks."""
        return self.path.with_name(self.path.name + ".held")

    def acquire(self, timeout: float | None = None) -> Self:
        """Take the lock; wait for up to ``timeout`` seconds, or without limit.

        Raises
        ------
        LockHeld
            Another holder kept the lock all the time.
        NoPermission
            A link, or something else that is no file, is in its place.
        OSError
            The file system refuses.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._try():
            if end is not None and time.monotonic() >= end:
                raise LockHeld(str(self.path))
            time.sleep(_EVERY)
        return self

    def release(self) -> None:
        """Release the lock."""
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
            self._mark = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self if self._fd is not None else self.acquire()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _try(self) -> bool:
        descriptor = self._open()
        taken = False
        try:
            taken = self._take(descriptor)
        finally:
            if not taken:
                os.close(descriptor)
        if taken:
            self._fd = descriptor
        return taken

    def _take(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno in _BUSY:
                return False
            if exc.errno not in _NO_LOCKS or not self._marks:
                raise
            return self._make_mark()
        return self._is_in_place(descriptor)

    def _open(self) -> int:
        try:
            descriptor = safe_files.open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            pass
        else:
            with suppress(PermissionError):
                os.fchmod(descriptor, 0o666)  # everybody who may write to the directory may lock
            return descriptor
        try:
            return safe_files.open_shared(self.path, os.O_RDWR | os.O_CREAT)
        except PermissionError:
            return safe_files.open_shared(self.path, os.O_RDONLY)  # another user's file: reading is enough for a lock

    def _is_in_place(self, descriptor: int) -> bool:
        """Return whether the locked file is still the one at the path: its last holder may have removed it."""
        status = os.fstat(descriptor)
        try:
            now = self.path.lstat()
        except FileNotFoundError:
            return False
        return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)

    def _make_mark(self) -> bool:
        try:
            descriptor = safe_files.open_own(self.mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            self._forget_the_dead()
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(_about_us())
        self._mark = self.mark
        return True

    def _forget_the_dead(self) -> None:
        """Remove the marker of a process of this machine that has ended; the next attempt may get the lock."""
        said = _read(self.mark)
        if said is None or not _is_dead(said):
            return
        aside = self.mark.with_name(safe_files.temporary_name(self.mark.name))
        with suppress(FileNotFoundError):
            self.mark.rename(aside)
            if _read(aside) != said:  # another process was faster, and has it now
                with suppress(FileExistsError):
                    os.link(aside, self.mark, follow_symlinks=False)
            aside.unlink()


def _about_us() -> bytes:
    return f"{socket.gethostname()} {os.getpid()}\n".encode()


def _read(mark: Path) -> bytes | None:
    try:
        with safe_files.reading(mark) as file:
            return file.read(_LONGEST)
    except FileNotFoundError:
        return None


def _is_dead(said: bytes) -> bool:
    host, _, number = said.decode(errors="replace").strip().rpartition(" ")
    if host != socket.gethostname() or not number.isdecimal() or len(number) > 10:
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
