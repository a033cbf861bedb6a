"""The libraries that have a folder here, as the folders say.

A folder has ``write.py`` (datasets in the library's formats on disk), whose classes its ``__init__`` lists as
``FORMATS``; ``dropin.py`` (its functions and objects, as `rlds_cli.interop.NAME`); and ``read.py``, a reader of its
files, where no family of `rlds_cli.archives` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library: ``formats`` maps names on the command line to classes of its module ``write``."""

    formats: Mapping[str, str]
    dropin: bool


def _has(folder: Path, part: str) -> bool:
    return (folder / f"{part}.py").is_file() or (folder / part / "__init__.py").is_file()


def _of_folder(folder: Path) -> Library:
    formats = import_module(f"rlds_cli.bridges.{folder.name}").FORMATS if _has(folder, "write") else {}
    return Library(formats=formats, dropin=_has(folder, "dropin"))


_FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/__init__.py"))
LIBRARIES = {f.name: _of_folder(f) for f in _FOLDERS if _has(f, "write") or _has(f, "dropin")}
