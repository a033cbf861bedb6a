"""Check free space, explain failed writes, and link files: by hard link, else by reflink, else by copy."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.text import size_of
from rlds_cli.errors import DamagedDataset, NoPermission, NoSpace, RldsError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILING = {  # of a disk or the connection to one, and of limits of the system: not of this program
    getattr(errno, name)
    for name in (
        *("EIO", "ENXIO", "ENODEV", "ESTALE", "EREMOTEIO", "ETIMEDOUT", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN"),
        *("EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "EBADMSG", "EUCLEAN", "ENOMEDIUM", "EPROTO", "ECOMM", "EFBIG"),
        *("EMFILE", "ENFILE", "ENOLCK", "ENOMEM", "EDEADLK", "EINTR", "EBUSY", "ETXTBSY", "EOPNOTSUPP", "ENOSYS"),
    )
    if hasattr(errno, name)
}
_LOOK = "the disk or the connection to it fails, or a limit of the system is reached: dmesg may say more"
How = Literal["link", "reflink", "copy"]
_FICLONE = 0x40049409


def existing(path: Path) -> Path:
    """Return ``path``, or its nearest parent that exists."""
    return next(p for p in (path, *path.absolute().parents) if p.exists())


def free(path: Path) -> int:
    """Return the free bytes of the disk of ``path``, which need not exist."""
    return shutil.disk_usage(existing(path)).free


def check_space(needed: int, path: Path, *, kept: str = "Nothing was written.") -> None:
    """Raise NoSpace if ``needed`` bytes do not fit.

    Parameters
    ----------
    needed : int
        Bytes to write.
    path : Path
        Where to write them; the path need not exist.
    kept : str
        Files that stay on the disk, for the message.

    Raises
    ------
    NoSpace
        With the needed and the free bytes.
    """
    have = free(path)
    if needed > have:
        raise NoSpace(
            f"{size_of(needed)} are needed below {path}, {size_of(have)} are free there. {kept}",
            hint="free some (rlds du, rlds gc), or use another disk: --home DIR, or RLDS_HOME",
        )


def is_full(exc: OSError) -> bool:
    """Return whether a write failed because the disk, or the user's share of it, is full."""
    return exc.errno in _FULL


def is_failing(exc: OSError) -> bool:
    """Return whether a read or a write failed by the disk or the system, and not by what was asked of it."""
    return exc.errno in _FAILING


def failure(exc: OSError, *, kept: str = "What existed before is as it was.") -> RldsError:
    """Return the error for an error of `is_failing` of which nothing more is known than what the system says."""
    what = os.fsdecode(exc.filename) if isinstance(exc.filename, str | bytes) else "A file"
    return RldsError(f"{what} could not be read or written: {exc.strerror or exc}. {kept}", hint=_LOOK)


@contextmanager
def errors(path: Path, *, kept: str = "") -> Iterator[None]:
    """Turn errors of the file system into those for people, as `disk_error`."""
    try:
        yield
    except OSError as e:
        raise disk_error(e, path, kept=kept) from e


def disk_error(exc: OSError, path: Path, *, kept: str = "") -> RldsError:
    """Return the error for a failed write: NoSpace, NoPermission, or the system's own message."""
    if is_full(exc):
        return NoSpace(
            f"The disk is full: {path} could not be written ({size_of(free(path.parent))} free). {kept}".rstrip(),
            hint="free some space (rlds du, rlds gc) and run the same command again",
        )
    if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NoPermission(
            f"{path} may not be written: {exc.strerror}. {kept}".rstrip(),
            hint="use a directory of your own: --home DIR, or RLDS_HOME",
        )
    return RldsError(
        f"{path} could not be written: {exc.strerror or exc}. {kept}".rstrip(),
        hint=_LOOK if is_failing(exc) else None,
    )


def share(source: Path, target: Path, *, sealed: bool = False) -> How:
    """Put the bytes of ``source`` at ``target``, replacing any file there in one step; ``source`` is not modified.

    Only a regular file of this user gets a second name. A copy is readable for nobody who may not read ``source``; it
    is synced, the directory is not (``sync_directory``).

    Parameters
    ----------
    sealed : bool
        The result becomes read-only afterwards: link only files that are read-only already.

    Returns
    -------
    "link", "reflink" or "copy"

    Raises
    ------
    NoPermission
        ``source`` is not a regular file.
    DamagedDataset
        ``source`` is a symbolic link and ``sealed`` is set: the file behind it belongs to no dataset.
    OSError
        Not even a copy can be written; nothing is left behind.
    """
    if sealed and source.is_symlink():
        raise DamagedDataset(f"{source} is a symbolic link, and datasets have none. Nothing of it was read.")
    source = source.resolve(strict=True)  # a link to a symbolic link would not hold the bytes
    temporary = target.with_name(safe_files.temporary_name(target.name))
    try:
        with safe_files.reading(source) as read:
            how = _link(read, source, temporary, sealed) or _clone_or_copy(read, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)  # also after a rename onto the same inode, which does nothing
    return how


def link(source: Path, target: Path) -> bool:
    """Give a regular file of this user a second name; return False if it cannot have one."""
    with safe_files.reading(source) as read:
        return _link(read, source, target, sealed=False) is not None


def takes_links(directory: Path) -> bool:
    """Return whether files in a directory, which need not exist, can get second names.

    exFAT and some network file systems have none. It is tried with a file that is removed again; where none can be
    written, the answer is True.
    """
    file = existing(directory) / safe_files.temporary_name("links")
    second = file.with_name(f"{file.name}.2")
    try:
        safe_files.write_bytes(file, b"")
    except (OSError, NoPermission):
        return True
    try:
        os.link(file, second)
    except OSError:
        return False
    finally:
        file.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
    return True


def why_no_link(file: Path, target: Path) -> str:
    """Say why a file cannot have a second name at ``target``, after ``because`` or a colon."""
    if file.lstat().st_dev != existing(target).stat().st_dev:
        return "that is another disk"
    if not safe_files.is_own(file):
        return "the file belongs to another user"
    return "its file system has no hard links"


def _link(read: BinaryIO, source: Path, target: Path, sealed: bool) -> How | None:
    if not safe_files.is_own(source) or (sealed and os.fstat(read.fileno()).st_mode & 0o222):
        return None
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another disk, a file system without links
        return None
    return "link"


def _clone_or_copy(read: BinaryIO, target: Path) -> How:
    with target.open("xb") as write:
        target.chmod(target.stat().st_mode & (os.fstat(read.fileno()).st_mode | stat.S_IWUSR))
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


def write_at(descriptor: int, at: int, data: bytes | memoryview) -> None:
    """Write all bytes at a place of a file: a disk that fills up takes a part of them first."""
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, at)
        left, at = left[done:], at + done


def sync_directory(directory: Path) -> None:
    """Make a rename in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems do not sync directories
        pass
    finally:
        os.close(handle)


State = tuple[int, int, int, int, int]


def state(file: Path) -> State:
    """Return device, inode, size and times of a file: at least one differs once it was written or replaced."""
    s = os.stat(file)  # noqa: PTH116  (of thousands, several times each)
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def attempt() -> str:
    """Return a name that no other process gives to a file, of any machine that shares the disk."""
    import secrets
    import socket

    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}-{secrets.token_hex(2)}"


def boot_id() -> bytes:
    """Return what tells one start of the machine from another, at most 64 bytes; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:64]
    except OSError:
        return b""
