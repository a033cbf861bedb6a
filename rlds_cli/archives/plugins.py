"""Readers that are not part of rlds: those that installed packages offer, and those in a Python file of the user.

::

    rig              an entry point of the group ``rlds_cli.readers`` of an installed package
    lab.py:RUNS      an object of a file; lab.py alone: its object READER, or else its functions

A file runs only if the user names it in this very command or call: the name that a manifest, a lock or a registry gives
is never loaded. A package's reader runs wherever it is named, since the user installed it.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rlds_cli.archives.libraries import READERS
from rlds_cli.base import settings
from rlds_cli.base.files import child, modules
from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import ReaderError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rlds_cli.readers"
PAGE = "docs/reference/writing-a-reader.md"
_FUNCTIONS = ("recognise", "plan", "read", "metadata", "choose", "look_up")
_OBJECT = "READER"  # of a module that is not the reader itself
# What a fault of a declaration raises in the code of an engine, where a damaged file hardly does.
_FAULTS = (AttributeError, NotImplementedError, TypeError, NameError)


@dataclass(frozen=True, slots=True)
class ReaderName:
    """The name of a reader, as a user or a manifest gives it: of rlds, of a package, or ``FILE.py:NAME``."""

    text: str

    @property
    def is_file(self) -> bool:
        """Whether it is that of a reader in a Python file."""
        return ":" in self.text or self.text.endswith(".py")

    @property
    def recorded(self) -> str:
        """The name as a manifest records it: without the directory of a file."""
        return self.text.rpartition("/")[2] if self.is_file else self.text

    def source(self) -> str:
        """Say which code it is: ``sha256:...`` of its file, or name and version of its package; empty for one of rlds.

        None of it runs.
        """
        if self.is_file:
            return f"sha256:{hashlib.sha256(_file(self.text).read_bytes()).hexdigest()}"
        if self.text in READERS:
            return ""
        at = installed().get(self.text)
        return "" if at is None or at.dist is None else f"{at.dist.name} {at.dist.version}"

    def resolved(self) -> str:
        """Return the name with the absolute path of its file, for other processes; names of packages stay.

        Raises
        ------
        ReaderError
            There is no such file.
        """
        name = self.text
        if not self.is_file:
            return name
        target, colon, attribute = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
        file = settings.expanded(target).absolute()
        if file.suffix != ".py" or not file.is_file():
            there = sorted(p.name for p in file.parent.glob("*.py")) if file.parent.is_dir() else []
            raise ReaderError(
                f"There is no file {file}.{did_you_mean(file.name, there, 0.5)}",
                hint="--reader takes FILE.py:NAME, as in lab.py:RUNS, or the name of a reader",
            )
        return f"{file}{colon}{attribute}"


def installed() -> Mapping[str, EntryPoint]:
    """Return the readers of installed packages by name; of two with one name, the first."""
    return _installed(tuple(sys.path))


@cache
def _installed(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import

    return {e.name: e for e in reversed(list(entry_points(group=GROUP)))}


def load(name: str) -> tuple[Any, str]:
    """Return the reader of a file or a package, and where its code is: a file, or the directory of a package.

    Raises
    ------
    ReaderError
        It cannot be imported, or is not a reader.
    """
    module, attribute = _imported(name)
    found: Any = module
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part, None)
    if found is None:
        own = {n: v if isinstance(v, type) else type(v) for n, v in vars(module).items()}
        there = [n for n, kind in own.items() if kind.__module__ == module.__name__ and not _lacks(kind)]
        more = f" Readers in it: {', '.join(there)}." if there else ""
        raise ReaderError(f"{name}: there is no {attribute}.{more}", hint=f"{PAGE} shows a reader")
    if isinstance(found, ModuleType):
        found = getattr(found, _OBJECT, found)
    lacking = _lacks(found)
    if lacking:
        raise ReaderError(f"{name} is not a reader: it has no {', '.join(lacking)}.", hint=f"{PAGE} shows a reader")
    return _made(name, found) if isinstance(found, type) else found, _code_of(module)


def _made(name: str, kind: type) -> Any:
    try:
        return kind()
    except TypeError as e:  # above all a method that a family has to have
        raise ReaderError(f"The reader {name} is not complete: {e}.", hint=f"{PAGE} shows a reader") from e


def _imported(name: str) -> tuple[ModuleType, str]:
    """Import the module of a reader; return it with the name of the object in it."""
    try:
        if ReaderName(name).is_file:
            file = _file(name)
            child.show()
            with modules.importable((str(file.parent),)):
                return modules.load(file, "reader"), name[len(str(file)) + 1 :]
        at = installed()[name]
        return import_module(at.module), at.attr
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        raise ReaderError(
            f"The reader {name} cannot be imported: {type(e).__name__}: {e}{modules.line_of_import(e)}.",
            hint="--reader NAME reads files by another one" if not ReaderName(name).is_file else None,
        ) from e


def _file(name: str) -> Path:
    return Path(name if name.endswith(".py") else name.rpartition(":")[0])


def _lacks(found: Any) -> list[str]:
    """Name what a reader has, and ``found`` lacks."""
    missing = [f for f in _FUNCTIONS if not callable(getattr(found, f, None))]
    return missing if isinstance(getattr(found, "VERSION", None), int) else ["VERSION", *missing]


def _code_of(module: ModuleType) -> str:
    file = Path(str(module.__file__))
    depth = module.__name__.count(".") + (file.name == "__init__.py")  # below the directory of the package
    return str(file.parents[depth - 1] if depth else file)


def place_of(e: BaseException, code: str) -> str:
    """Say at which line a reader failed; empty if the error is not from its code, but from a file that it reads.

    Parameters
    ----------
    e : BaseException
    code : str
        As `load` returns it.
    """
    frames = traceback.extract_tb(e.__traceback__)
    own = [f for f in frames if f.filename == code or f.filename.startswith(f"{code}/")]
    at = own[-1] if own else frames[-1] if isinstance(e, _FAULTS) else None
    return "" if at is None else f"{Path(at.filename).name}, line {at.lineno}, in {at.name}"
