"""Open files and make directories where other users may write too, such as a shared home.

A user who may write to a directory can put a link there, a FIFO, or a second name of another user's file. The functions
below follow no link, and write only regular files with a single name. Who may read or write a file, the file system
decides. Directories above the root, which the user has named, may be links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rlds_cli.errors import NoPermission

_CAREFUL = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # the last: a FIFO must not make us wait
_PROTECTED = Path("/proc/sys/fs/protected_hardlinks")
_HINT = "remove it if it is not yours, or use a home of your own: --home DIR, or RLDS_HOME"
FILE, DIRECTORY = 0o664, 0o775  # modes of what is new, before the umask: nothing is for everybody to write
_LONGEST = 200  # bytes of a name that its temporary name keeps


def refused(path: Path, why: str) -> NoPermission:
    """Return the error for a file or directory that rlds has not made."""
    return NoPermission(f"{path} {why}. It was left as it is.", hint=_HINT)


def is_own(path: Path) -> bool:
    """Return whether a file, directory or link exists and belongs to this user."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


# -- files


def open_own(path: Path, flags: int, mode: int = FILE) -> int:
    """Open a file for writing: a new one, or a regular one with a single name.

    Parameters
    ----------
    flags : int
        Those of ``os.open``, without O_TRUNC, which would come before the checks.

    Returns
    -------
    int
        The descriptor.

    Raises
    ------
    NoPermission
        The path is a link, not a regular file, one with several names, or one of another user for everybody.
    OSError
        The file system refuses.
    """
    descriptor, status = _opened(path, flags, mode)
    why = ""
    if status.st_nlink > 1:
        why = f"is a file with {status.st_nlink} names, and all of them would change"
    elif status.st_uid != os.geteuid() and status.st_mode & stat.S_IWOTH:
        why = f"belongs to another user (uid {status.st_uid}), and everybody may write it"
    if why:
        os.close(descriptor)
        raise refused(path, why)
    return descriptor


def open_shared(path: Path, flags: int, mode: int = FILE) -> int:
    """Open a regular file with any number of names; otherwise as `open_own`."""
    return _opened(path, flags, mode)[0]


def _opened(path: Path, flags: int, mode: int) -> tuple[int, os.stat_result]:
    try:
        descriptor = os.open(path, flags | _CAREFUL, mode)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.EMLINK) and path.is_symlink():
            raise refused(path, "is a symbolic link") from None
        if exc.errno in (errno.ENXIO, errno.EISDIR):
            raise refused(path, "is not a regular file") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise refused(path, "is not a regular file")
    return descriptor, status


def reading(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises as `open_shared`."""
    return os.fdopen(open_shared(path, os.O_RDONLY), "rb")


def updating(path: Path, *, linked: bool = False) -> BinaryIO:
    """Open an existing file for reading and writing; raises as `open_own`.

    One that is ``linked`` may have several names, if `has_own_links` says so of its directory.
    """
    opened = open_shared if linked and has_own_links(path.parent) else open_own
    return os.fdopen(opened(path, os.O_RDWR), "r+b")


def has_own_links(directory: Path) -> bool:
    """Return whether nobody can have linked a file there that only others may write.

    The directory is this user's alone, or the system protects hard links.
    """
    status = directory.stat()
    if status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    try:
        return _PROTECTED.read_text().strip() == "1"
    except OSError:
        return False


def write_bytes(path: Path, *data: bytes | memoryview) -> None:
    """Write a new file, or an existing one in place: pieces end to end. Raises as `open_own`."""
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.ftruncate(descriptor, 0)
        for piece in data:
            left = memoryview(piece)
            while left:  # a disk that fills up takes a part first
                left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, *, mode: int = FILE) -> Iterator[BinaryIO]:
    """Write a new file that replaces ``path`` in one step, unless an error occurs; a link itself is replaced.

    The new file gives no permission that the old one did not give.
    """
    temporary = path.with_name(temporary_name(path.name))
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL, mode), "wb") as file:
            if path.is_file() and not path.is_symlink():
                temporary.chmod(temporary.stat().st_mode & (path.stat().st_mode | stat.S_IWUSR))
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str, *, mode: int = FILE) -> None:
    """Write a text file in one step, as `replacing` does."""
    with replacing(path, mode=mode) as file:
        file.write(text.encode())


def temporary_name(name: str) -> str:
    """Return a hidden name like ``name`` that nobody can guess."""
    return f".{name.encode(errors='surrogateescape')[:_LONGEST].decode(errors='ignore')}.{os.urandom(8).hex()}"


# -- directories


def check_directories(path: Path, root: Path) -> None:
    """Check that no directory below ``root`` on the way to ``path``, which may be missing, is a link.

    Raises
    ------
    NoPermission
        One is a link, or the path leaves ``root``.
    NotADirectoryError
        One is a file.
    """
    parts = path.relative_to(root).parts
    if ".." in parts:
        raise refused(path, f"leaves {root}")
    directory = root
    for part in parts:
        directory /= part
        with suppress(FileNotFoundError):
            mode = directory.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise refused(directory, "is a symbolic link")
            if not stat.S_ISDIR(mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))


def directory(path: Path, root: Path) -> Path:
    """Make a directory at or below ``root``, with all directories between, and return its path.

    Raises
    ------
    NoPermission, NotADirectoryError
        As `check_directories`.
    OSError
        The file system refuses.
    """
    check_directories(path, root)
    make(path)
    return path


def make(path: Path) -> None:
    """Make a directory with all those above it; also without a umask, not everybody may write there."""
    where = os.fspath(path)
    try:
        os.mkdir(where, DIRECTORY)  # noqa: PTH102  (a Path takes twice as long, and a dataset has many directories)
    except FileExistsError:
        if not os.path.isdir(where):  # noqa: PTH112
            raise
    except FileNotFoundError:
        make(path.parent)
        path.mkdir(DIRECTORY, exist_ok=True)


def work_directory(path: Path, root: Path) -> Path:
    """Make a directory that only this user may enter, or reuse the one of an earlier run.

    Raises
    ------
    NoPermission
        The directory, or one above it, is a link, or it belongs to another user.
    OSError
        As `directory`.
    """
    directory(path.parent, root)
    check_directories(path, root)
    path.mkdir(0o700, exist_ok=True)
    try:
        path.chmod(0o700)
    except PermissionError:
        raise refused(path, "belongs to another user") from None
    return path
