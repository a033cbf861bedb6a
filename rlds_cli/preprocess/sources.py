"""Find and hash the files that a function depends on: its source files, and the data files that it reads.

Source files are found by parsing import statements, without running them, so the result does not depend on other
imports. Libraries are not followed. Data files are those that arguments or ``depends_on`` name; a model saved again
under the same name makes another job.

A lock file may come from a stranger. It may name a built-in function, or a function defined in one of the user's own
source files, if that file and all files that it imports have the hashes in the lock; `find_locked` checks them before
anything is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import pickle
import site
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from rlds_cli.base import settings
from rlds_cli.base.files import names, trees
from rlds_cli.base.files.hashing import sha256_of
from rlds_cli.errors import PreprocessError, RldsError, WrongFingerprint
from rlds_cli.preprocess.builtin import get as get_builtin

Files = tuple[tuple[str, str], ...]  # (path below its root, sha256), sorted
Hashes = dict[str, str]  # a path as given, and the sha256 of its content

_COMPILED = (*EXTENSION_SUFFIXES, *BYTECODE_SUFFIXES)
_HERE = Path(__file__).resolve().parents[1]
_LIBRARIES = ("site-packages", "dist-packages")
_CACHE = "PYTHONPYCACHEPREFIX"
TORCH = b"torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModules:
    """The user's own modules that run when one of them is imported.

    Attributes
    ----------
    files : tuple
        The sources, by their paths below the directories that modules are searched in, and their sha256.
    compiled : tuple of Path
        Modules without a source.
    uses_torch : bool
        Whether a source mentions torch.
    """

    files: Files = ()
    compiled: tuple[Path, ...] = ()
    uses_torch: bool = False


def imported(file: Path, roots: Iterable[Path]) -> UserModules:
    """Return the module in ``file`` and those under ``roots`` that it imports, directly or not."""
    file = file.resolve()
    top = file.parent  # that the module is imported from: the parent of its outermost package
    while (top / "__init__.py").exists() and top != top.parent:
        top = top.parent
    tops = [top, *(r.resolve() for r in roots)]
    waiting = [file, *(p / "__init__.py" for p in file.parents if p.is_relative_to(top) and p != top)]
    seen: set[Path] = set()
    files: list[tuple[str, str]] = []
    compiled: list[Path] = []
    uses_torch = False
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.name.endswith(_COMPILED):
            compiled.append(path)
            continue
        data = path.read_bytes()
        below = next((t for t in tops if path.is_relative_to(t)), path.parent)
        files.append((path.relative_to(below).as_posix(), hashlib.sha256(data).hexdigest()))
        uses_torch |= TORCH in data
        waiting += filter(is_users, _imports(path, data, tops))
    return UserModules(files=tuple(sorted(files)), compiled=tuple(sorted(compiled)), uses_torch=uses_torch)


def of_module(module: str, roots: Iterable[Path]) -> UserModules:
    """Return what an import of a module runs that is imported already, as `imported` does; none without a source."""
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return imported(file, roots) if file.suffix == ".py" and file.is_file() else UserModules()


def is_users(path: Path) -> bool:
    """Return whether a source file is the user's own: part of no library and not of this program."""
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    outside = [_HERE, *(Path(p).resolve() for p in (*libraries, *site.getsitepackages(), site.getusersitepackages()))]
    return not any(path.is_relative_to(p) for p in outside)


def _imports(path: Path, data: bytes, tops: list[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name, tops)
        elif isinstance(node, ast.ImportFrom):
            above = [path.parents[node.level - 1]] if 0 < node.level <= len(path.parents) else tops
            for alias in node.names:
                yield from _files_of(".".join(filter(None, (node.module, alias.name))), above)


def _files_of(dotted: str, tops: list[Path]) -> Iterator[Path]:
    """Yield the modules that importing ``dotted`` runs, packages included; its last parts may be attributes."""
    for top in tops:
        at = top
        for part in dotted.split("."):
            yield from _modules(at, part)
            yield from _modules(at / part, "__init__")
            at = at / part


def _modules(directory: Path, name: str) -> Iterator[Path]:
    """Yield the files that Python may import for a module: extension first, then source, then bytecode."""
    source = directory / f"{name}.py"
    has_source = source.is_file()
    if has_source:
        yield source.resolve()
    for suffix in EXTENSION_SUFFIXES if has_source else _COMPILED:
        other = directory / f"{name}{suffix}"
        if other.is_file():
            yield other


def code_hash(files: Files, held: list[object]) -> str:
    """Hash source files, with values and functions outside of modules: code, defaults and closures, but not globals."""
    h = hashlib.sha256()
    for item in _parts(held):
        h.update(item + b"\0")
    of_files = hashlib.sha256(repr(files).encode()).hexdigest()
    return hashlib.sha256((of_files + h.hexdigest()).encode()).hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, FunctionType):
        yield from _code(value.__code__)
        for held in (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items())):
            yield from _parts(held)
        for cell in value.__closure__ or ():
            yield from _parts(cell.cell_contents)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item)
    else:
        yield _frozen(value)


def _frozen(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=4)
    except Exception:  # whatever an object's own __reduce__ raises
        return repr(value).encode()


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode()


def of(function: Callable[..., Any], args: Mapping[str, Any], depends_on: Sequence[str | os.PathLike[str]]) -> Hashes:
    """Hash the files that a function reads, by name; a directory with all files below it.

    Text in the arguments names a file if that file exists. Directories count only in ``depends_on``, since others may
    be for output. Arguments stored in a partial and attributes of a callable object count as well.

    Raises
    ------
    PreprocessError
        A file in ``depends_on`` does not exist, or one cannot be read.
    """
    found = {os.fspath(p): settings.expanded(p) for p in depends_on}
    for name, path in found.items():
        if not path.exists():
            raise PreprocessError(f"There is no {name}, which depends_on names.")
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
    """Yield the files that a value names."""
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
    except (OSError, ValueError):  # not a valid file name
        return None


def digest(path: Path) -> str:
    """Return the sha256 of a file, or of the names and hashes of all files below a directory."""
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


# -- functions that a lock file names


@dataclass(frozen=True, slots=True)
class LockedFunction:
    """A function in one of the user's files, whose hashes match the lock; it is not imported yet."""

    reference: str
    file: Path
    name: str
    files: Files


def find_locked(reference: str, files: Files) -> LockedFunction | None:
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
        if get_builtin(name) is None:
            raise refused(reference, "there is no built-in function of this name")
        return None
    is_file = target.endswith(".py") or "/" in target
    file = _file_below(reference, target) if is_file else _file_of_module(reference, target)
    if not is_users(file) or any(part in _LIBRARIES for part in file.parts):
        raise refused(reference, f"{file} belongs to a library")
    _check_defined(reference, file, name)
    own = imported(file, [Path.cwd()])
    if own.files != files:
        raise WrongFingerprint(f"{reference} has changed: {_difference(files, own.files)}.")
    if own.compiled:
        raise refused(reference, f"it imports {own.compiled[0]}, which has no source")
    return LockedFunction(reference, file, name, files)


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


def refused(reference: str, why: str) -> PreprocessError:
    """Return the error for a function that a lock may not name."""
    return PreprocessError(f"The lock names the function {reference}, which is not run: {why}.")


def _file_below(reference: str, target: str) -> Path:
    """Return a source file below the working directory."""
    try:
        names.safe(target)
    except RldsError:
        raise refused(reference, "its file must lie below the working directory, without `..`") from None
    if not target.endswith(".py"):
        raise refused(reference, f"{target} is not a source file (.py)")
    return _own(reference, Path.cwd().resolve(), target)


def _file_of_module(reference: str, target: str) -> Path:
    """Return the source file that an import of the module would find."""
    parts = target.split(".")
    if not all(part.isidentifier() for part in parts):
        raise refused(reference, f"{target} cannot be the name of a module")
    if parts[0] in sys.stdlib_module_names or parts[0] in sys.builtin_module_names:
        raise refused(reference, f"{parts[0]} is a module of Python itself")
    here = str(Path.cwd())
    search: list[str] | None = sys.path if here in sys.path else [here, *sys.path]  # as `files.modules.importable`
    origin: str | None = None
    for depth in range(len(parts)):
        origin, search = _located(reference, ".".join(parts[: depth + 1]), search)
    if origin is None:
        raise refused(reference, f"{target} has no source file")
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
            raise refused(reference, f"there is no module {name} in the working directory or on the search path")
    if origin is not None and not (spec is not None and isinstance(spec.loader, SourceFileLoader)):
        raise refused(reference, f"the module {name} has no source file")
    return origin, None if inside is None else list(inside)


def _own(reference: str, root: Path, relative: str) -> Path:
    """Return a regular file below ``root``, if no part of its path is a symbolic link."""
    at = root
    for part in relative.split("/"):
        at = at / part
        if at.is_symlink():
            raise refused(reference, f"{at} is a symbolic link")
    if not at.is_file():
        raise refused(reference, f"there is no file {at}")
    return at


def _check_defined(reference: str, file: Path, name: str) -> None:
    """Raise unless the source itself defines the function or class; imports and attributes do not count."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused(reference, f"{file} is not a Python source") from None
    body = tree.body
    for part in name.split("."):
        kinds = ast.FunctionDef | ast.ClassDef
        defined = next((n for n in body if isinstance(n, kinds) and n.name == part), None)
        if defined is None:
            raise refused(reference, f"{file} defines no function {name}")
        body = defined.body if isinstance(defined, ast.ClassDef) else []


def _difference(then: Files, now: Files) -> str:
    """Name the first file that differs, with both hashes."""
    before, after = dict(then), dict(now)
    if not then:
        return "the lock lists no files of it"
    name = next(n for n in sorted({*before, *after}) if before.get(n) != after.get(n))
    return f"{name} has sha256 {after.get(name, 'none')}, the lock says {before.get(name, 'none')}"
