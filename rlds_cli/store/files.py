"""Read the files of a dataset that may come from a stranger.

A dataset holds directories and regular files, nothing else: a symbolic link could lead out of it, and a pipe would wait
for a writer for ever. Needs neither NumPy nor zarr.
"""

from __future__ import annotations

import io
import os
import stat
from contextlib import nullcontext, suppress
from pathlib import Path

from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import DamagedDataset, NoPermission

_REMOTE = ".remote"  # in the directory of a dataset whose rows are at an address: that address
_MOST = 1 << 20  # files and directories of one dataset
_DEEPEST = 600  # directories inside each other


def open_regular(path: Path) -> io.FileIO:
    """Open a regular file for reading, unbuffered. Symbolic links are refused.

    Raises
    ------
    DamagedDataset
        It is a link, or no regular file.
    OSError
        It cannot be opened.
    """
    try:
        return io.FileIO(safe_files.open_shared(path, os.O_RDONLY))
    except NoPermission as e:
        raise _foreign(path, path.lstat().st_mode) from e


def note_address(dataset: Path, address: str) -> None:
    """Write the address of the rows of a dataset into its directory, if that has none yet."""
    if not (dataset / _REMOTE).exists():
        safe_files.replace_text(dataset / _REMOTE, f"{address}\n")


def missing(path: Path) -> DamagedDataset | None:
    """Return the error for a file that is not here because its dataset is at an address; None for any other file."""
    for directory in path.parents:
        try:
            address = read_regular(directory / _REMOTE, 4096).decode(errors="replace").strip()
        except (OSError, ValueError, DamagedDataset):
            continue
        return DamagedDataset(
            f"{path.relative_to(directory)} is at {address}, and this needs it on this disk.",
            hint=f"rlds download {address} --name local/NAME",
        )
    return None


def read_regular(path: Path, longest: int) -> bytes:
    """Read a regular file of at most ``longest`` bytes.

    Raises
    ------
    DamagedDataset
        It is a link, or no regular file.
    OSError
        It cannot be read.
    ValueError
        It is longer.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > longest:
            raise ValueError(f"{size:,} bytes; at most {longest:,} are read")
        return file.readall()


def check_tree(directory: Path, *, changing: bool = False, named: str = "") -> list[Path]:
    """Refuse a dataset with anything but directories and regular files in it; return the files of a name.

    The path of the dataset may lead through links, which are the user's own choice. In a dataset that is ``changing``,
    files may vanish while they are looked at.

    Raises
    ------
    DamagedDataset
        Names the first; or the directory cannot be read, or holds more files than any dataset.
    """
    left, seen, found = [(os.fspath(directory), 0)], 0, list[Path]()
    try:
        while left:
            here, depth = left.pop()
            if depth > _DEEPEST:
                raise DamagedDataset(f"{directory} holds directories more than {_DEEPEST} deep; no dataset does.")
            with suppress(FileNotFoundError) if changing and depth else nullcontext(), os.scandir(here) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        left.append((entry.path, depth + 1))
                    elif not entry.is_file(follow_symlinks=False):
                        raise _foreign(Path(entry.path), entry.stat(follow_symlinks=False).st_mode)
                    elif entry.name == named:
                        found.append(Path(entry.path))
            if seen > _MOST:
                raise DamagedDataset(f"{directory} holds more than {_MOST:,} files; no dataset does.")
    except OSError as e:
        raise DamagedDataset(f"{directory} cannot be read: {e.strerror}: {e.filename}") from e
    return found


def _foreign(path: Path, mode: int) -> DamagedDataset:
    what = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
    return DamagedDataset(f"{path} is {what}; a dataset holds files and directories only.")
