"""``rlds.json``: what an export of rlds adds to a directory of another format, so that it can be read back exactly.

The files themselves hold all values. Formats have their own rules for names, and demand columns; the file says which
column is which field, and which columns were added for the format's sake. Other libraries ignore it.

::

    {"columns": {"action.0": {"field": "action", "placement": "root", "shape": []}},
     "added": ["timestamp"],
     "episodes": {"seed": "seed", "options": "options", "columns": {"success": "success"}}}

All keys may be missing; so may ``placement`` and ``shape``. The file may come from a stranger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from rlds_cli.base.files import json as documents
from rlds_cli.errors import CorruptArchive
from rlds_cli.ted import Field, Placement

EXPORTED = "rlds.json"
_LONGEST = 1024  # characters of a name
_MOST_SIDES = 32


@dataclass(frozen=True, slots=True)
class ExportedColumn:
    """The field that a column was before it was exported; None where the format's own rule holds."""

    field: str | None = None
    placement: Placement | None = None
    shape: tuple[int, ...] | None = None

    def of(self, f: Field) -> Field:
        """Return a field with this placement and shape; its name stays.

        Raises
        ------
        CorruptArchive
            The shape is another number of values, or the placement is impossible for the name.
        """
        placement = self.placement or f.placement
        shape = f.shape if self.shape is None else self.shape
        same = math.prod(shape) == math.prod(f.shape) or (f.kind == "frames" and shape[:2] == (0, 0))
        if not same or (placement == "next") != f.name.startswith("next/"):
            raise CorruptArchive(
                f"{EXPORTED}: {f.name} is not a field placed {placement} with the shape {list(shape)}."
            )
        return Field(f.name, f.dtype, shape, placement, f.kind, f.codec)


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """The content of the file. Without a file, nothing is said.

    ``columns`` are by key of the format. ``added`` are keys that are not fields. ``seed`` and ``options`` name columns
    of episodes, and ``own`` maps episode columns of the user's own to columns. ``last_step`` and ``unsplit`` are of
    RLDS: what an episode's last step is, and whether the dataset had no splits. ``found`` says that there is a file.
    """

    columns: Mapping[str, ExportedColumn] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    seed: str | None = None
    options: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    last_step: str | None = None
    unsplit: bool = False
    found: bool = False

    def names(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Return keys by field name: those that the user chose, and this file's for other keys."""
        taken = {*chosen.values()}
        mine = {c.field: key for key, c in self.columns.items() if c.field and key not in taken}
        return {**mine, **chosen}


NOTHING = ExportedFile()


def read(path: Path) -> ExportedFile:
    """Read the file, if it exists.

    Raises
    ------
    CorruptArchive
        It is not such a file.
    """
    if not path.is_file():
        return NOTHING
    content = documents.load_object(path)
    try:
        episodes = _object(content.get("episodes", {}))
        return ExportedFile(
            {_text(key): _column(_object(c)) for key, c in _object(content.get("columns", {})).items()},
            frozenset(map(_text, content.get("added", []))),
            _optional(episodes.get("seed")),
            _optional(episodes.get("options")),
            {_text(name): _text(key) for name, key in _object(episodes.get("columns", {})).items()},
            _optional(content.get("last_step")),
            content.get("unsplit") is True,
            found=True,
        )
    except (TypeError, ValueError, OverflowError) as e:
        raise CorruptArchive(f"{path} is not a file of an export: {e}", hint="delete it, or export again") from e


def _column(content: Mapping[str, Any]) -> ExportedColumn:
    name, placement, shape = (content.get(key) for key in ("field", "placement", "shape"))
    if name is not None and not all(_text(name).split("/")):
        raise ValueError(f"{name!r} is not a name of a field")
    if placement is not None and placement not in get_args(Placement):
        raise ValueError(f"{placement!r} is not a placement")
    if shape is not None and (
        not isinstance(shape, list)
        or len(shape) > _MOST_SIDES
        or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
    ):
        raise ValueError(f"{str(shape)[:80]} is not a shape")
    return ExportedColumn(name, placement, None if shape is None else tuple(shape))


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:80]} where an object is expected")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise TypeError(f"{str(value)[:80]} where a name is expected")
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)
