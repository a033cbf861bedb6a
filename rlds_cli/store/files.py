"""Read the files of a dataset that may come from a stranger, and turn field names into paths.

A dataset holds directories and regular files, nothing else: a symbolic link could lead out of it, and a pipe would wait
for a writer for ever. Needs neither NumPy nor zarr.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import string
from collections.abc import Iterable, Set
from pathlib import Path

from rlds_cli.errors import DamagedDataset, NoPermission, RldsError
from rlds_cli.files import safe as safe_files

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


def content(path: Path, longest: int) -> bytes:
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
        return b"".join(iter(lambda: file.read(size + 1), b""))


def check_tree(directory: Path) -> None:
    """Refuse a dataset with anything but directories and regular files in it.

    The path of the dataset may lead through links, which are the user's own choice.

    Raises
    ------
    DamagedDataset
        Names the first; or the directory cannot be read, or holds more files than any dataset.
    """
    left, seen = [(os.fspath(directory), 0)], 0
    try:
        while left:
            here, depth = left.pop()
            if depth > _DEEPEST:
                raise DamagedDataset(f"{directory} holds directories more than {_DEEPEST} deep; no dataset does.")
            with os.scandir(here) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        left.append((entry.path, depth + 1))
                    elif not entry.is_file(follow_symlinks=False):
                        raise _foreign(Path(entry.path), entry.stat(follow_symlinks=False).st_mode)
            if seen > _MOST:
                raise DamagedDataset(f"{directory} holds more than {_MOST:,} files; no dataset does.")
    except OSError as e:
        raise DamagedDataset(f"{directory} cannot be read: {e.strerror}: {e.filename}") from e


def _foreign(path: Path, mode: int) -> DamagedDataset:
    what = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
    return DamagedDataset(f"{path} is {what}; a dataset holds files and directories only.")


# Names beside the fields in a dataset's directory.
RESERVED = frozenset({"episodes", "metadata", "text", "video", "digests", "sources"})
_PLAIN = frozenset(string.ascii_letters + string.digits + "-_.+=@,~")
_MAX_BYTES = 200
_MOST_LEVELS, _LONGEST = 64, 1500  # of a path that is written: systems take 1,024 to 4,096 bytes, with the home's
_MOST_READ, _LONGEST_READ = 512, 4096
_COMPONENT = re.compile(r"(?!\.|__|zarr\.json$)[A-Za-z0-9\-_.+=@,~%]{1,250}", re.IGNORECASE)


def component(text: str) -> str:
    """Return a directory name for one component of a field name, percent-encoding all unusual characters."""
    encoded = "".join(c if c in _PLAIN else "".join(f"%{b:02X}" for b in c.encode()) for c in text)
    if not encoded:
        return "%"
    if encoded[0] == "." or encoded.startswith("__") or encoded == "zarr.json":
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded) > _MAX_BYTES:
        encoded = f"{encoded[: _MAX_BYTES - 17]}~{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return encoded


def components(name: str) -> list[str]:
    """Return the directory names for a field name with ``/``.

    Raises
    ------
    RldsError
        It is deeper, or longer, than a file system takes.
    """
    parts = [component(c) for c in name.split("/")]
    if len(parts) > _MOST_LEVELS or sum(map(len, parts)) > _LONGEST:
        raise RldsError(
            f'The name "{name[:60]}..." of {len(parts):,} levels and {len(name):,} characters cannot be stored.',
            hint=f"a name has at most {_MOST_LEVELS} levels, and about {_LONGEST:,} characters",
        )
    return parts


def paths(names: Iterable[str]) -> dict[str, str]:
    """Return a path for each field name. Paths differ by more than case, and none lies below another.

    Raises
    ------
    RldsError
        As of `components`.
    """
    taken: set[str] = set()
    above: set[str] = set()  # directories that hold fields
    result = {}
    for name in sorted(names):
        parts = components(name)
        if parts[0].lower() in RESERVED:
            parts[0] = f"%{ord(parts[0][0]):02X}{parts[0][1:]}"
        for k in range(1, len(parts)):
            parts[:k] = _numbered(parts[:k], taken)
            above.add("/".join(parts[:k]).lower())
        path = "/".join(_numbered(parts, taken | above))
        taken.add(path.lower())
        result[name] = path
    return result


def _numbered(parts: list[str], taken: Set[str]) -> list[str]:
    """Return the path, with a number added to its last part if the path is taken in any case of letters."""
    path, n = parts, 1
    while "/".join(path).lower() in taken:
        n += 1
        path = [*parts[:-1], f"{parts[-1]}~{n}"]
    return path


def is_field_path(path: str) -> bool:
    """Return whether a field can have this path: relative, canonical, made by `component`, not reserved."""
    parts = path.split("/")
    if len(path) > _LONGEST_READ or len(parts) > _MOST_READ:
        return False
    return all(_COMPONENT.fullmatch(part) for part in parts) and parts[0].lower() not in RESERVED
