"""Walk and remove trees of directories of any depth, without recursion and without following links.

An untrusted tree may be deeper than Python's stack, and deeper than the longest path that the system takes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def below(directory: Path, *, strict: bool = False) -> list[os.DirEntry[str]]:
    """Return all entries below a directory; a directory comes before its own entries.

    Parameters
    ----------
    strict : bool
        Raise OSError for a directory that cannot be read; otherwise it is skipped.
    """
    return list(_walk(directory, strict=strict))


def files(directory: Path, most: int | None = None) -> list[Path]:
    """Return all regular files below a directory, and links to regular files, in no order; at most ``most`` and one."""
    found = (Path(entry.path) for entry in _walk(directory, strict=False) if _is_file(entry))
    return list(islice(found, None if most is None else most + 1))


def _walk(directory: Path, *, strict: bool) -> Iterator[os.DirEntry[str]]:
    left = [os.fspath(directory)]
    while left:
        with suppress(*() if strict else (OSError,)), os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                yield entry


def _is_file(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False):
        return True
    return entry.is_symlink() and os.path.isfile(entry.path)  # noqa: PTH113  (never raises)


def remove(directory: Path) -> None:
    """Remove a directory with all its content, as far as it can be removed.

    Raises
    ------
    OSError
        The path is no directory, or a link to one; or an entry could not be removed, of which this is the first error.
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
    """Remove a directory as far as possible; errors are ignored."""
    with suppress(OSError):
        remove(directory)


class _Removal:
    """Empties a directory with one descriptor: down by names, and up by ``..``, which must lead back."""

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
        """Remove all files here, and return the names of the directories."""
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
        """Record the first error; an entry that is gone already is no error."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as e:
            self.failed = self.failed or OSError(e.errno, e.strerror, os.path.join(*self._way, name))  # noqa: PTH118


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
