"""What a function is made of: the source files under the user's path that its module needs, and their hashes.

Files are found by reading import statements, not by running them, so the answer does not depend on what else is
imported. Libraries are not followed.
"""

from __future__ import annotations

import ast
import hashlib
import pickle
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

Files = tuple[tuple[str, str], ...]  # (path below its root, sha256), sorted

_HERE = Path(__file__).resolve().parents[1]


def made_of(file: Path, roots: Iterable[Path]) -> Files:
    """``file`` and the files under ``roots`` that it imports, directly or not, with the sha256 of each."""
    file = file.resolve()
    top = package_root(file)
    tops = [top, *(r.resolve() for r in roots)]
    found: dict[Path, str] = {}
    waiting = [file, *(p / "__init__.py" for p in file.parents if p.is_relative_to(top) and p != top)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            data = path.read_bytes()
            found[path] = hashlib.sha256(data).hexdigest()
            waiting += [p for p in _imports(path, data, tops) if is_users(p)]
    return tuple(sorted((_relative(p, tops), sha) for p, sha in found.items()))


def package_root(file: Path) -> Path:
    """The directory that a module is imported from: above its outermost package."""
    directory = file.parent
    while (directory / "__init__.py").exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def _relative(path: Path, tops: list[Path]) -> str:
    top = next((t for t in tops if path.is_relative_to(t)), path.parent)
    return path.relative_to(top).as_posix()


def is_users(path: Path) -> bool:
    """Whether a source file is the user's own: of no library, and not of this program."""
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
                yield from _files_of(".".join(p for p in (node.module, alias.name) if p), above)


def _files_of(dotted: str, tops: list[Path]) -> Iterator[Path]:
    """The modules that importing ``dotted`` runs, packages included; its last parts may be names in a module."""
    for top in tops:
        at = top
        for part in dotted.split("."):
            yield from (p.resolve() for p in (at / f"{part}.py", at / part / "__init__.py") if p.is_file())
            at = at / part


def module_files(module: str, roots: Iterable[Path]) -> Files:
    """The files of an imported module, as ``made_of``; none where it has no source."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return made_of(Path(file), roots) if file and Path(file).suffix == ".py" and Path(file).is_file() else ()


def files_hash(files: Files) -> str:
    """One hash of all of them."""
    return hashlib.sha256(repr(files).encode()).hexdigest()


def code_hash(value: object) -> str:
    """Hash of values and of functions that are in no module: code, defaults, what they close over; not globals."""
    h = hashlib.sha256()
    for item in _parts(value):
        h.update(item + b"\0")
    return h.hexdigest()


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
