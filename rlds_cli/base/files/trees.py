"""Walk and remove trees of directories without following links."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

_ASIDE = ".removed"


def below(directory: Path, *, strict: bool = False) -> Iterator[os.DirEntry[str]]:
    """Yield all entries below a directory; a directory comes before its own entries.

    Parameters
    ----------
    strict : bool
        Raise OSError for a directory that cannot be read; otherwise it is skipped.
    """
    left = [os.fspath(directory)]
    while left:
        with suppress(*() if strict else (OSError,)), os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                yield entry


def files(directory: Path, most: int | None = None) -> list[Path]:
    """Return all regular files below a directory, and links to regular files, in no order; at most ``most`` and one."""
    paths = (
        Path(e.path)
        for e in below(directory)
        if e.is_file(follow_symlinks=False) or (e.is_symlink() and Path(e.path).is_file())
    )
    return list(islice(paths, None if most is None else most + 1))


def set_aside(directory: Path) -> Path:
    """Give a directory that is about to be removed a hidden name that nobody guesses, and return it; raises OSError."""
    if is_aside(directory):
        return directory
    aside = directory.with_name(f".{directory.name}.{os.urandom(8).hex()}{_ASIDE}")
    directory.rename(aside)
    return aside


def is_aside(directory: Path) -> bool:
    """Return whether a directory was set aside, and its removal has not ended."""
    return directory.name.startswith(".") and directory.name.endswith(_ASIDE)


def remove_aside(directory: Path) -> None:
    """Remove a directory that was set aside, which another process may find and remove as well; raises OSError."""
    while os.path.lexists(directory):
        try:
            remove(directory)
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


def remove(directory: Path) -> None:
    """Remove a directory with all its content.

    Raises
    ------
    OSError
        The path is not a directory, or is a link to one; or an entry cannot be removed, or is nested too deeply.
    """
    try:
        shutil.rmtree(directory)
    except (RecursionError, OSError) as e:  # each level takes a call and a descriptor, before Python 3.13
        if isinstance(e, OSError) and e.errno != errno.EMFILE:
            raise
        raise OSError(errno.ENAMETOOLONG, "its directories are nested too deeply", str(directory)) from e


def discard(directory: Path) -> None:
    """Remove as much as possible of a directory; errors are ignored."""
    with suppress(RecursionError):
        shutil.rmtree(directory, ignore_errors=True)
