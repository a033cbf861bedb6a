"""Files that a function reads beside its source: those that its arguments name, and those that it is said to need.

What is in them is part of what a result depends on, so a model saved anew under the same name makes another job.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_cli import settings, trees
from rlds_cli.errors import PreprocessError
from rlds_cli.hashing import sha256_of

Hashes = dict[str, str]  # a path as it was given, and the sha256 of what is there


def of(function: Callable[..., Any], args: Mapping[str, Any], depends_on: Sequence[str | os.PathLike[str]]) -> Hashes:
    """The files and their hashes, by name; of a directory the hash of all files below it.

    A text in the arguments names a file where there is one. Directories count in ``depends_on`` alone: others may be
    for what is written meanwhile. Arguments that a partial of the function holds, and attributes of an object that is
    called, count as well.

    Raises
    ------
    PreprocessError
        A file of ``depends_on`` is not there, or one cannot be read.
    """
    found = {os.fspath(p): settings.expanded(p) for p in depends_on}
    for name, path in found.items():
        if not path.exists():
            raise PreprocessError(f"There is no {name}, which the function is said to depend on.")
    found |= {name: path for value in _held(function, args) for name, path in named(value)}
    return {name: digest(found[name]) for name in sorted(found)}


def _held(function: Callable[..., Any], args: Mapping[str, Any]) -> Iterator[Any]:
    yield dict(args)
    while isinstance(function, functools.partial):
        yield list(function.args)
        yield dict(function.keywords)
        function = function.func
    if not isinstance(function, type) and not hasattr(function, "__qualname__"):
        yield dict(getattr(function, "__dict__", {}))


def named(value: Any) -> Iterator[tuple[str, Path]]:
    """The files that a value names."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from named(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from named(item)
    elif isinstance(value, str | Path) and value != "":
        path = _there(str(value))
        if path is not None:
            yield str(value), path


def _there(name: str) -> Path | None:
    try:
        path = settings.expanded(name)
        return path if path.is_file() else None
    except (OSError, ValueError):  # no name that a file can have
        return None


def digest(path: Path) -> str:
    """The sha256 of a file; of a directory, that of the names and hashes of all files below it."""
    try:
        if path.is_file():
            return sha256_of(path)
        below = sorted(trees.files(path))
        listed = [(p.relative_to(path).as_posix(), sha256_of(p)) for p in below]
    except OSError as e:
        raise PreprocessError(
            f"{e.filename or path}, which the function depends on, cannot be read: {e.strerror}."
        ) from e
    return hashlib.sha256(repr(listed).encode()).hexdigest()
