"""Records of what files that are not datasets hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.ted import Field


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

    def suggestion_as(self, id: str) -> str | None:
        """Return the suggested command with another id."""
        return self.suggestion and self.suggestion.replace(f" --name local/{name_for(self.path)} ", f" --name {id} ")


@dataclass(frozen=True, slots=True)
class Node:
    """One array of a file; ``shape`` is None for an empty HDF5 dataset."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str


def name_for(path: Path) -> str:
    """Derive the name of a dataset from the name of a file."""
    return re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower()).strip("-") or "mine"
