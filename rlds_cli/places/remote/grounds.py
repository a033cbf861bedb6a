"""Grounds: where the files of a remote dataset are, in a directory or in memory; locks on their bytes, and holes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import RldsError
from rlds_cli.places.remote.leases import Lease

_FLOCK = struct.Struct("hhqqi4x")
_SET, _GET = getattr(fcntl, "F_OFD_SETLK", None), getattr(fcntl, "F_OFD_GETLK", None)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)


def check_system() -> None:
    """Raise RldsError where the system lacks the locks and files that remote datasets need."""
    if _SET is None or sys.platform != "linux":
        raise RldsError(
            "Remote datasets are read on Linux only, whose locks and sparse files they need.",
            hint="rlds download ADDRESS --name local/NAME",
        )


class Ground(Protocol):
    """A place for the files of one remote dataset."""

    def open(self, name: str, size: int | None = None) -> int:
        """Return a new descriptor of a file, which is made if it is not there, with ``size`` bytes."""
        ...

    def allocate(self, descriptor: int, at: int, size: int) -> None:
        """Have the disk give room to a part of a file that will be written through a map; raises OSError."""
        ...


class DirectoryGround:
    """Files in a directory, which stays while this object has its ``lease``."""

    def __init__(self, root: Path, lease: Lease | None = None) -> None:
        self.root, self.lease = root, lease
        self._paths: dict[str, Path] = {}  # files are opened for each request

    def open(self, name: str, size: int | None = None) -> int:
        """Return a new descriptor of a file; raises NoPermission and OSError."""
        if name not in self._paths:
            self._paths[name] = self.root / name
        path = self._paths[name]
        descriptor = safe_files.open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            if size is not None and os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def allocate(self, descriptor: int, at: int, size: int) -> None:
        """Have the disk give room to a part of a file; raises OSError."""
        os.posix_fallocate(descriptor, at, size)

    def __str__(self) -> str:
        return str(self.root)


class MemoryGround:
    """Anonymous files, which end with the last process that has them; forked processes share them."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()
        self._owned: list[int] = []

    def __del__(self) -> None:
        for descriptor in self._owned:
            with suppress(OSError):
                os.close(descriptor)

    def open(self, name: str, size: int | None = None) -> int:
        """Return a new descriptor of a file."""
        with self._lock:
            if name not in self._files:
                made = os.memfd_create(f"rlds {name}")
                self._files[name] = made
                self._owned.append(made)
            own = self._files[name]
            if size is not None and os.fstat(own).st_size < size:
                os.ftruncate(own, size)
            return os.open(f"/proc/self/fd/{own}", os.O_RDWR | os.O_CLOEXEC)  # with locks of its own

    def allocate(self, descriptor: int, at: int, size: int) -> None:
        """Nothing: memory has no disk that is full."""

    def __str__(self) -> str:
        return "memory"


def punch(descriptor: int, at: int, size: int) -> None:
    """Give the disk back that a range of a file takes, which reads as zeros then; raises OSError."""
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_longlong(at), ctypes.c_longlong(size)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def lock_bytes(descriptor: int, first: int, count: int) -> bool:
    """Lock bytes of a file for this open file; return False if another one has a lock on some of them."""
    assert _SET is not None
    try:
        fcntl.fcntl(descriptor, _SET, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, count, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock_bytes(descriptor: int, first: int, count: int) -> None:
    """End the locks of this open file on bytes."""
    assert _SET is not None
    fcntl.fcntl(descriptor, _SET, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, first, count, 0))


def is_locked(descriptor: int, first: int, count: int) -> bool:
    """Return whether another open file has a lock on some of the bytes."""
    assert _GET is not None
    answer = fcntl.fcntl(descriptor, _GET, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, count, 0))
    return bool(_FLOCK.unpack(answer[: _FLOCK.size])[0] != fcntl.F_UNLCK)
