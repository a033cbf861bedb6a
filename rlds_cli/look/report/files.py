"""Description of files that are not datasets: what a reader would make of them, or their arrays and a command to try.

Another process reads the files (`files.child`), with `file_content.describe`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.base import ids
from rlds_cli.base.files import child
from rlds_cli.base.settings import StrPath
from rlds_cli.ted import Field

READER = "rlds_cli.look.report.file_content"  # the module whose function reads the files
_MOST_FILES = 50_000


@dataclass(frozen=True, slots=True)
class FileReport:
    """Description of the files at a path.

    ``reader`` is the reader that recognises them, and ``fields`` to ``facts`` describe the dataset that it would make.
    Without a reader, ``why`` lists what the readers miss, ``tree`` has the arrays, and ``suggestion`` is a command that
    may import them.
    """

    path: Path
    files: int
    bytes: int
    what: str
    reader: str | None = None
    fields: tuple[Field, ...] = ()
    episodes_by: str | None = None
    episodes: int | None = None
    rows: int | None = None
    facts: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    why: str | None = None
    tree: tuple[Node, ...] = ()
    groups: int = 0
    guessed: Mapping[str, str] | None = None
    suggestion: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One array of a file; ``shape`` is None for an empty HDF5 dataset."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str


def describe_file(path: StrPath, *, reader: str | None = None) -> FileReport:
    """Describe a file, a directory or a glob of files; nothing is written, and no more is read than needed.

    Parameters
    ----------
    path : path
    reader : str, optional
        As in `importing.plan_import`.

    Raises
    ------
    ArchiveError
        There is no file; it is damaged, or an HTML page under an archive's name (CorruptArchive); it would execute code
        or refers to files outside itself, or needs more memory than an archive may (UnsafeArchive).
    """
    with child.reading(READER):  # which starts while this process imports what it needs
        from rlds_cli.archives import plugins
        from rlds_cli.make import files_to_import

        files = files_to_import([path], ids.parse("local/x"), most=_MOST_FILES).files
        asked: dict[str, Any] = {"names": files, "types": (FileReport, Node, Field)}
        named = None if reader is None else plugins.resolved(reader)
        found: FileReport = child.ask(f"{READER}.describe", Path(path), files, named, **asked)
        return found


def name_for(path: Path) -> str:
    """Derive the name of a dataset from the name of a file."""
    return re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower()).strip("-") or "mine"
