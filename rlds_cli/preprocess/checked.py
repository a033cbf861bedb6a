"""Functions that a lock file names: found without importing anything, compared with their hashes, imported only then.

A lock is a stranger's. What it may name is a function that comes with rlds, or one that is defined in a source file of
the user's own, whose content is what the lock says, with all files that it imports.
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
    """A function of the user's, in ``file``, which is as it was; nothing of it is imported yet."""

    reference: str
    file: Path
    name: str
    files: Files


def find(reference: str, files: Files) -> LockedFunction | None:
    """Where a function is; None where it is a built-in one.

    Parameters
    ----------
    reference : str
        As the lock names it: ``module:function``, ``file.py:function`` or a built-in one's name.
    files : tuple
        The files that it was made of, and their sha256.

    Raises
    ------
    PreprocessError
        It is no function that a lock may name; the message says why.
    WrongFingerprint
        Its files have another content now.
    """
    target, colon, name = reference.rpartition(":")
    if not colon:
        if builtin.get(name) is None:
            raise _refused(reference, "no built-in function is called so")
        return None
    is_file = target.endswith(".py") or "/" in target
    file = _file(reference, target) if is_file else _module(reference, target)
    if not sources.is_users(file) or any(part in _LIBRARIES for part in file.parts):
        raise _refused(reference, f"{file} is a library's, not yours")
    _check_defined(reference, file, name)
    now = sources.made_of(file, [Path.cwd()])
    if now != files:
        raise WrongFingerprint(f"{reference} has another source now: {_difference(files, now)}.")
    if compiled := sources.compiled(file, [Path.cwd()]):
        raise _refused(reference, f"it imports {compiled[0]}, which has no source")
    return LockedFunction(reference, file, name, files)


def load(found: LockedFunction) -> Function:
    """Import the function; inside `from_source`.

    Raises
    ------
    PreprocessError
        It cannot be imported, or what is imported is not what was found.
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
    """Import modules from their sources alone, also in processes that are started meanwhile.

    A compiled file in ``__pycache__`` need not be what its source says.
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
    """The names of files that a function reads: those that it depends on, and those that its arguments name."""
    return list(dict.fromkeys([*depends, *(name for name, _ in sources.named(args))]))


def is_allowed(name: str, allowed: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether a file that a lock names may be read: below the working directory, or among those that are allowed."""
    try:
        path = settings.expanded(name).resolve()
        roots = [Path.cwd(), *(settings.expanded(p) for p in allowed)]
        return any(path.is_relative_to(root.resolve()) for root in roots)
    except (OSError, ValueError, RuntimeError):  # no name that a file can have, links in a circle
        return False


def _refused(reference: str, why: str) -> PreprocessError:
    return PreprocessError(f"The lock names the function {reference}, which is not run: {why}.")


def _file(reference: str, target: str) -> Path:
    """A source file below the working directory."""
    try:
        names.safe(target)
    except RldsError:
        raise _refused(reference, "its file must lie below the working directory, without `..`") from None
    if not target.endswith(".py"):
        raise _refused(reference, f"{target} is no source file (.py)")
    return _own(reference, Path.cwd().resolve(), target)


def _module(reference: str, target: str) -> Path:
    """The source file of a module, where an import would find it."""
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
    """The source file of a module, None for a directory without one; and where its submodules are."""
    if (module := sys.modules.get(name)) is not None:  # an import gives it, wherever it came from
        spec = module.__spec__
        origin, inside = getattr(module, "__file__", None), getattr(module, "__path__", None)
    else:
        spec = PathFinder.find_spec(name, search) if search is not None else None
        origin, inside = (spec.origin, spec.submodule_search_locations) if spec else (None, None)
        if spec is None:
            raise _refused(reference, f"there is no module {name} in the working directory, nor where Python searches")
    if origin is not None and not (spec is not None and isinstance(spec.loader, SourceFileLoader)):
        raise _refused(reference, f"the module {name} has no source file")
    return origin, None if inside is None else list(inside)


def _own(reference: str, root: Path, relative: str) -> Path:
    """A regular file below ``root``, with no symbolic link on the way."""
    at = root
    for part in relative.split("/"):
        at = at / part
        if at.is_symlink():
            raise _refused(reference, f"{at} is a symbolic link")
    if not at.is_file():
        raise _refused(reference, f"there is no file {at}")
    return at


def _check_defined(reference: str, file: Path, name: str) -> None:
    """A function, or a class, that the source defines itself: not one that it imports, nor an attribute of one."""
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
    """In words: the first file that is another, and both hashes."""
    before, after = dict(then), dict(now)
    if not then:
        return "the lock names no file of it"
    name = next(n for n in sorted({*before, *after}) if before.get(n) != after.get(n))
    return f"{name} has sha256 {after.get(name, 'none')}, the lock says {before.get(name, 'none')}"
