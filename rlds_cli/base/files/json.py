"""Read JSON from untrusted files. Length and depth are checked first: objects take twenty times the bytes of a text.

Files of others may have `LONGEST` bytes, and files that this program has written `OWN` bytes. The second limit is also
checked on writing, so that every file that is written can be read again.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rlds_cli.base.files import safe as safe_files
from rlds_cli.errors import CorruptArchive, NoPermission, RldsError

LONGEST = 16 << 20  # bytes; descriptions of datasets have thousands
_MOST_VALUES = 1 << 22  # of one document: each takes a hundred bytes of memory and more
OWN = 128 << 20  # bytes of what this program writes and reads again: a listing of 300,000 files


def loads(text: str | bytes, *, longest: int = LONGEST) -> Any:
    """Parse a JSON text.

    Raises
    ------
    ValueError
        It is not JSON, has more than ``longest`` characters or bytes or more values than any, or is nested as deeply
        as nobody writes it.
    """
    _check(text, longest)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check(text: str | bytes, longest: int) -> None:
    if len(text) > longest:
        raise ValueError(f"{len(text):,} bytes are too many for a description; at most {longest:,} are read")
    marks: tuple[Any, ...] = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    if sum(map(text.count, marks)) > _MOST_VALUES:  # an upper bound for the number of values
        raise ValueError(f"it has more than {_MOST_VALUES:,} values")


def dumps(values: Any, what: str, *, lines: bool = True) -> str:
    """Return the JSON text for a file that this program reads again; ``what`` names it in the error.

    With ``lines`` each value has a line of its own, for people.

    Raises
    ------
    RldsError
        The text is longer than reading accepts.
    """
    text = json.dumps(values, indent=1 if lines else None) + "\n"
    try:
        _check(text, OWN)
    except ValueError as e:
        raise RldsError(f"{what} is too large to be written: {e}.", hint="a part of the dataset has fewer files") from e
    return text


def load(path: Path, *, longest: int = LONGEST) -> Any:
    """Parse a JSON file; raises as `loads`, and OSError."""
    with path.open("rb") as file:
        return loads(read(file, longest=longest), longest=longest)


def read(file: BinaryIO, *, longest: int = LONGEST) -> bytes:
    """Read an open file; raises ValueError for a file that is too long, and OSError.

    Reading takes no more memory than a regular file has bytes.
    """
    status = os.fstat(file.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else longest
    if size <= longest and len(text := file.read(size + 1)) <= longest:
        return text
    raise ValueError(f"{size:,} bytes are too many for a description; at most {longest:,} are read")


def load_object(path: Path, *, longest: int = LONGEST) -> dict[str, Any]:
    """Read the JSON object in a file of an archive, of at most ``longest`` bytes.

    Raises
    ------
    CorruptArchive
        The file cannot be read, is not JSON, is not an object, or is too large for a description.
    NoPermission
        The file may not be read.
    """
    try:
        content = load(path, longest=longest)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e
    except (OSError, ValueError) as e:
        raise CorruptArchive(f"{path.name} is not JSON: {e}", hint=f"delete {path} and fetch it again") from e
    if not isinstance(content, dict):
        raise CorruptArchive(f"{path.name} is {type(content).__name__}; an object expected.")
    return content


def load_own(path: Path) -> dict[str, Any] | None:
    """Return the object in a file that this program wrote; None if there is none."""
    try:
        with safe_files.reading(path) as file:
            values = loads(read(file, longest=OWN), longest=OWN)
    except (OSError, ValueError, NoPermission):
        return None
    return values if isinstance(values, dict) else None


def save_own(path: Path, values: Mapping[str, Any], *, lines: bool = True) -> None:
    """Write a JSON file in one step, for its owner alone: it may hold addresses.

    Raises
    ------
    RldsError
        The text is too long to be read back.
    """
    safe_files.replace_text(path, dumps(values, path.name, lines=lines), mode=0o600)


def is_count(value: object) -> bool:
    """Return whether a value of untrusted JSON is a valid number of bytes or nanoseconds."""
    return type(value) is int and 0 <= value < 1 << 63
