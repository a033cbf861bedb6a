"""Open files and make directories safely in places where other users may write, such as a shared home.

A user who may write to a directory can put a link there, a FIFO, or a second name of another user's file. The functions
here follow no link, and write only regular files of this user that have a single name. Directories above the root,
which the user has named, may be links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rlds_cli.errors import NoPermission

_CAREFUL = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # the last: a FIFO must not make us wait
_HINT = "remove it if it is not yours, or use a home of your own: --cache-dir DIR, or RLDS_HOME"
_LONGEST = 200  # bytes of a name that its temporary name keeps


def refused(path: Path, why: str) -> NoPermission:
    """Return the error for a file or directory that rlds has not made."""
    return NoPermission(f"{path} {why}. It was left as it is.", hint=_HINT)


# -- files


def open_own(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file for writing: a new one, or a regular one of this user with a single name.

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
        The path is a link, not a regular file, a file of another user, or one with several names.
    OSError
        The file system refuses.
    """
    descriptor = _open(path, flags, mode)
    try:
        _check_own(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_shared(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file of any user; raises as `open_own`."""
    descriptor = _open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refused(path, "is not a regular file")
    return descriptor


def reading(path: Path) -> BinaryIO:
    """Open a regular file of any user for reading; raises as `open_own`."""
    return os.fdopen(open_shared(path, os.O_RDONLY), "rb")


def updating(path: Path) -> BinaryIO:
    """Open an existing file of this user for reading and writing; raises as `open_own`."""
    return os.fdopen(open_own(path, os.O_RDWR), "r+b")


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a new file, or one of this user in place; raises as `open_own`."""
    with os.fdopen(open_own(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate(0)
        file.write(data)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a new file that replaces ``path`` in one step, unless an error occurs; a link itself is replaced.

    The new file gives no permission that the old one did not give.
    """
    temporary = path.with_name(temporary_name(path.name))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                old = path.lstat().st_mode
                if stat.S_ISREG(old):
                    os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & (old | stat.S_IWUSR))
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a text file in one step, as `replacing` does."""
    with replacing(path, mode=mode) as file:
        file.write(text.encode())


def followed(path: Path) -> Path:
    """Resolve a path that the user has named, through the user's own links; others' links raise NoPermission."""
    if path.is_symlink() and not _is_mine(path.lstat().st_uid, path.parent):
        raise refused(path, f"is a symbolic link of another user (uid {path.lstat().st_uid})")
    return path.resolve()


def temporary_name(name: str) -> str:
    """Return a hidden name like ``name`` that nobody can guess."""
    return f".{name.encode(errors='surrogateescape')[:_LONGEST].decode(errors='ignore')}.{os.urandom(8).hex()}"


def _open(path: Path, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags | _CAREFUL, mode)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.EMLINK) and path.is_symlink():
            raise refused(path, "is a symbolic link") from None
        if exc.errno in (errno.ENXIO, errno.EISDIR):
            raise refused(path, "is not a regular file") from None
        raise


def _check_own(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise refused(path, "is not a regular file")
    if not _is_mine(status.st_uid, path.parent):
        raise refused(path, f"belongs to another user (uid {status.st_uid})")
    if status.st_nlink > 1:
        raise refused(path, f"is a file with {status.st_nlink} names, and all of them would change")


# -- directories


def directory(path: Path, root: Path) -> Path:
    """Make a directory at or below ``root``, with all directories between, and return its path.

    Raises
    ------
    NoPermission
        A directory below ``root`` is a link.
    OSError
        A part of the path is not a directory, or the file system refuses.
    """
    root.mkdir(parents=True, exist_ok=True)
    for here in _down(path, root):
        with suppress(FileExistsError):
            here.mkdir()
        _check_directory(here)
    return path


def check_directories(path: Path, root: Path) -> None:
    """Raise NoPermission if a directory from ``root`` down to ``path`` is a link.

    A file in the place of a directory is a NotADirectoryError.
    """
    for here in _down(path, root):
        try:
            _check_directory(here)
        except FileNotFoundError:
            return


def work_directory(path: Path, root: Path) -> Path:
    """Make a directory that only this user may enter, or reuse the one of an earlier run.

    Its name can be guessed, so other users may have made it, or put something into it.

    Raises
    ------
    NoPermission
        The directory, or one above it, is a link; it belongs to another user; or it holds a link or files of others.
    OSError
        The file system refuses.
    """
    directory(path.parent, root)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        _close(path)
        _check_below(path)
    return path


def is_own_directory(path: Path) -> bool:
    """Return whether the path is a directory of this user, and not a link to one."""
    return _is_own(path, stat.S_ISDIR)


def is_own_file(path: Path) -> bool:
    """Return whether the path is a regular file of this user, and not a link to one."""
    return _is_own(path, stat.S_ISREG)


def _down(path: Path, root: Path) -> Iterator[Path]:
    """Yield the directories below ``root`` on the way to ``path``, from the top."""
    here = root
    for part in path.relative_to(root).parts:
        if part == "..":
            raise refused(path, f"leaves {root}")
        here = here / part
        yield here


def _kind(mode: int) -> str:
    return "is a symbolic link" if stat.S_ISLNK(mode) else "is not a regular file"


def _check_directory(path: Path) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise refused(path, "is a symbolic link")
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _close(path: Path) -> None:
    """Deny everybody else access to a directory of this user."""
    _check_directory(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _CAREFUL)
    try:
        status = os.fstat(descriptor)
        if not _is_mine(status.st_uid, path.parent):
            raise refused(path, f"belongs to another user (uid {status.st_uid})")
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _check_below(path: Path) -> None:
    """Raise NoPermission if a work directory holds anything that rlds never makes there."""
    own, waiting = path.lstat().st_uid, [path]
    while waiting:
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:  # another process of ours is at work
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(Path(entry.path))
                    elif not stat.S_ISREG(status.st_mode):
                        raise refused(Path(entry.path), _kind(status.st_mode))
                    if status.st_uid != own:
                        raise refused(Path(entry.path), f"belongs to another user (uid {status.st_uid})")


def _is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return kind(status.st_mode) and _is_mine(status.st_uid, path.parent)


def _is_mine(uid: int, directory: Path) -> bool:
    """Return whether ``uid`` is this user in a directory: on some network file systems the user has another number."""
    if uid == os.geteuid():
        return True
    probe = directory / temporary_name("owner")
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL, 0o600)
    except OSError:
        return False
    try:
        return os.fstat(descriptor).st_uid == uid
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)
