"""Trees of directories, walked and removed however deep they are: nothing calls itself, and no link is followed.

A stranger's tree may be deeper than Python calls functions, and deeper than a path may be long.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def below(directory: Path, *, strict: bool = False) -> Iterator[os.DirEntry[str]]:
    """All that is below a directory, itself not among it; what is in a directory comes after it.

    Parameters
    ----------
    strict : bool
        Whether a directory that cannot be read is an OSError; else it is passed over.
    """
    left = [os.fspath(directory)]
    while left:
        with suppress(*() if strict else (OSError,)), os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                yield entry


def files(directory: Path) -> Iterator[Path]:
    """All regular files below a directory, and links to regular files; in no order."""
    for entry in below(directory):
        if entry.is_file(follow_symlinks=False) or (entry.is_symlink() and os.path.isfile(entry.path)):  # noqa: PTH113  (never raises)
            yield Path(entry.path)


def remove(directory: Path) -> None:
    """Remove a directory with all that is in it; what cannot be removed stays, and the rest goes.

    Raises
    ------
    OSError
        It is no directory, or a link to one; or something in it could not be removed: the first such.
    """
    removal = _Removal(directory)
    try:
        removal.run()
    finally:
        removal.close()
    if removal.failed is not None:
        raise removal.failed
    directory.rmdir()


def discard(directory: Path) -> None:
    """Remove of a directory what can be removed, if it is there at all."""
    with suppress(OSError):
        remove(directory)


class _Removal:
    """Empties a directory with one descriptor: down by names, up by ``..``, which must lead where it came from."""

    def __init__(self, top: Path) -> None:
        self.failed: OSError | None = None
        self._way = [os.fspath(top)]
        self._above: list[tuple[int, int]] = []
        self._here = os.open(top, _DIRECTORY)

    def close(self) -> None:
        os.close(self._here)

    def run(self) -> None:
        left = [self._clear()]  # names of directories, for each on the way
        while left:
            if left[-1]:
                if self._down(left[-1].pop()):
                    left.append(self._clear())
            else:
                left.pop()
                if left:
                    self._up()

    def _clear(self) -> list[str]:
        """Remove all that is no directory; the names of those that are."""
        with os.scandir(self._here) as entries:
            found = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        for name, is_directory in found:
            if not is_directory:
                with self._kept(name):
                    os.unlink(name, dir_fd=self._here)
        return [name for name, is_directory in found if is_directory]

    def _down(self, name: str) -> bool:
        inside = -1
        with self._kept(name):
            inside = os.open(name, _DIRECTORY, dir_fd=self._here)
        if inside < 0:
            return False
        self._above.append(_identity(self._here))
        self._way.append(name)
        self._go(inside)
        return True

    def _up(self) -> None:
        self._go(os.open("..", _DIRECTORY, dir_fd=self._here))
        name = self._way.pop()
        if _identity(self._here) != self._above.pop():
            raise OSError(errno.ESTALE, "was moved while it was removed", os.path.join(*self._way, name))  # noqa: PTH118
        with self._kept(name):
            os.rmdir(name, dir_fd=self._here)

    def _go(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor

    @contextmanager
    def _kept(self, name: str) -> Iterator[None]:
        """Note the first error over something that stays; what is gone already is none."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as e:
            self.failed = self.failed or OSError(e.errno, e.strerror, os.path.join(*self._way, name))  # noqa: PTH118


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
