"""Load functions that a lock file names: find their sources, compare the hashes, and only then import them.

A lock file may come from a stranger. It may name a built-in function, or a function defined in one of the user's own
source files, if that file and all files that it imports have the hashes in the lock.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from rlds_cli import settings
from rlds_cli.errors import PreprocessError, RldsError, WrongFingerprint
from rlds_cli.files import names
from rlds_cli.preprocess import builtin, functions, sources
from rlds_cli.preprocess.functions import Function
from rlds_cli.preprocess.sources import Files

_LIBRARIES = ("site-packages", "dist-packages")
_CACHE = "PYTHONPYCACHEPREFIX"


@dataclass(frozen=True, slots=True)
class LockedFunction:
    """A function in one of the user's files, whose hashes match the lock; it is not imported yet."""

    reference: str
    file: Path
    name: str
    files: Files


def find(reference: str, files: Files) -> LockedFunction | None:
    """Find the source of a function without importing it; None for a built-in function.

    Parameters
    ----------
    reference : str
        Its name in the lock: ``module:function``, ``file.py:function`` or the name of a built-in function.
    files : tuple
        Its source files and their sha256, from the lock.

    Raises
    ------
    PreprocessError
        A lock may not name this function; the message says why.
    WrongFingerprint
        Its files have changed.
    """
    target, colon, name = reference.rpartition(":")
    if not colon:
        if builtin.get(name) is None:
            raise _refused(reference, "there is no built-in function of this name")
        return None
    is_file = target.endswith(".py") or "/" in target
    file = _file(reference, target) if is_file else _module(reference, target)
    if not sources.is_users(file) or any(part in _LIBRARIES for part in file.parts):
        raise _refused(reference, f"{file} belongs to a library")
    _check_defined(reference, file, name)
    now = sources.made_of(file, [Path.cwd()])
    if now != files:
        raise WrongFingerprint(f"{reference} has changed: {_difference(files, now)}.")
    if compiled := sources.compiled(file, [Path.cwd()]):
        raise _refused(reference, f"it imports {compiled[0]}, which has no source")
    return LockedFunction(reference, file, name, files)


def load(found: LockedFunction) -> Function:
    """Import the function; call it inside `from_source`.

    Raises
    ------
    PreprocessError
        It cannot be imported, or the import is not the file that was found.
    """
    function = functions.find(found.reference)
    call = function.call
    module = sys.modules.get(str(getattr(call, "__module__", "")))
    where = getattr(module, "__file__", None)
    if function.files != found.files or where is None or Path(where).resolve() != found.file:
        raise _refused(found.reference, f"what is imported under that name is not defined in {found.file}")
    return function


@contextmanager
def from_source() -> Iterator[None]:
    """Import modules from their sources only, in child processes too.

    A file in ``__pycache__`` may have been compiled from another source.
    """
    kept, variable = sys.pycache_prefix, os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory(prefix="rlds-pycache-") as empty:
        sys.pycache_prefix = os.environ[_CACHE] = empty
        try:
            yield
        finally:
            sys.pycache_prefix = kept
            if variable is None:
                del os.environ[_CACHE]
            else:
                os.environ[_CACHE] = variable


def files_read(args: Mapping[str, Any], depends: Mapping[str, str]) -> list[str]:
    """List the files that a function reads: its dependencies, and the files that its arguments name."""
    return list(dict.fromkeys([*depends, *(name for name, _ in sources.named(args))]))


def is_allowed(name: str, allowed: Sequence[str | os.PathLike[str]]) -> bool:
    """Return whether a lock may name this file: it lies below the working directory or an allowed path."""
    try:
        path = settings.expanded(name).resolve()
        roots = [Path.cwd(), *(settings.expanded(p) for p in allowed)]
        return any(path.is_relative_to(root.resolve()) for root in roots)
    except (OSError, ValueError, RuntimeError):  # not a valid file name, or a loop of links
        return False


def _refused(reference: str, why: str) -> PreprocessError:
    return PreprocessError(f"The lock names the function {reference}, which is not run: {why}.")


def _file(reference: str, target: str) -> Path:
    """Return a source file below the working directory."""
    try:
        names.safe(target)
    except RldsError:
        raise _refused(reference, "its file must lie below the working directory, without `..`") from None
    if not target.endswith(".py"):
        raise _refused(reference, f"{target} is no source file (.py)")
    return _own(reference, Path.cwd().resolve(), target)


def _module(reference: str, target: str) -> Path:
    """Return the source file that an import of the module would find."""
    parts = target.split(".")
    if not all(part.isidentifier() for part in parts):
        raise _refused(reference, f"{target} cannot be the name of a module")
    if parts[0] in sys.stdlib_module_names or parts[0] in sys.builtin_module_names:
        raise _refused(reference, f"{parts[0]} is a module of Python itself")
    here = str(Path.cwd())
    search: list[str] | None = sys.path if here in sys.path else [here, *sys.path]  # as `functions.importable`
    origin: str | None = None
    for depth in range(len(parts)):
        origin, search = _located(reference, ".".join(parts[: depth + 1]), search)
    if origin is None:
        raise _refused(reference, f"{target} has no source file")
    root = Path(origin).parents[len(parts) - (Path(origin).name != "__init__.py")]
    return _own(reference, root.resolve(), Path(origin).relative_to(root).as_posix())


def _located(reference: str, name: str, search: list[str] | None) -> tuple[str | None, list[str] | None]:
    """Return the source file of a module (None for a namespace package) and the paths of its submodules."""
    if (module := sys.modules.get(name)) is not None:  # an import returns it, wherever it came from
        spec = module.__spec__
        origin, inside = getattr(module, "__file__", None), getattr(module, "__path__", None)
    else:
        spec = PathFinder.find_spec(name, search) if search is not None else None
        origin, inside = (spec.origin, spec.submodule_search_locations) if spec else (None, None)
        if spec is None:
            raise _refused(reference, f"there is no module {name} in the working directory or on the search path")
    if origin is not None and not (spec is not None and isinstance(spec.loader, SourceFileLoader)):
        raise _refused(reference, f"the module {name} has no source file")
    return origin, None if inside is None else list(inside)


def _own(reference: str, root: Path, relative: str) -> Path:
    """Return a regular file below ``root``, if no part of its path is a symbolic link."""
    at = root
    for part in relative.split("/"):
        at = at / part
        if at.is_symlink():
            raise _refused(reference, f"{at} is a symbolic link")
    if not at.is_file():
        raise _refused(reference, f"there is no file {at}")
    return at


def _check_defined(reference: str, file: Path, name: str) -> None:
    """Raise unless the source itself defines the function or class; imports and attributes do not count."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(reference, f"{file} is no Python source") from None
    body = tree.body
    for part in name.split("."):
        kinds = ast.FunctionDef | ast.ClassDef
        defined = next((n for n in body if isinstance(n, kinds) and n.name == part), None)
        if defined is None:
            raise _refused(reference, f"{file} defines no function {name}")
        body = defined.body if isinstance(defined, ast.ClassDef) else []


def _difference(then: Files, now: Files) -> str:
    """Name the first file that differs, with both hashes."""
    before, after = dict(then), dict(now)
    if not then:
        return "the lock lists no files of it"
    name = next(n for n in sorted({*before, *after}) if before.get(n) != after.get(n))
    return f"{name} has sha256 {after.get(name, 'none')}, the lock says {before.get(name, 'none')}"
