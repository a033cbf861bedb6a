"""Single values of an archive, looked up where they stand, without the code that reads whole archives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Spot:
    """One step of one episode, by its place in the archive.

    Attributes
    ----------
    file : Path
    root : Path
        The directory that the manifest names files relative to.
    group : str
        The episode in the file, as the episode table has it.
    first : int
        The episode's first row there.
    step, length : int
        The step, from 0 to ``length`` - 1.
    facts, fields : mapping
        What the plan recorded, and what the user mapped, ``Archive.fields``.
    """

    file: Path
    root: Path
    group: str
    first: int
    step: int
    length: int
    facts: Mapping[str, Any]
    fields: Mapping[str, str]

    @property
    def name(self) -> str:
        """The file as the manifest names it."""
        return self.file.relative_to(self.root).as_posix()

    @property
    def is_last(self) -> bool:
        """Whether the episode ends with this step."""
        return self.step == self.length - 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One value.

    ``field`` is that of the dataset; ``next/observation`` also where the dataset keeps observations once. ``key`` is
    where it stands in the file, for people. ``value`` is an array of one row, the bytes of an encoded frame, or text.
    """

    field: str
    key: str
    value: Any
