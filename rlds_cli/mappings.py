"""Mapping files: which key of a user's file each field is read from, written once instead of typed each time.

::

    {"fields": {"observation": "state/q", "action": "cmd"}, "episodes_by": "field:trial"}   JSON, or the same in TOML
    {"observation": "state/q", "action": "cmd"}                                             the fields alone
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlds_cli import documents
from rlds_cli.errors import RldsError
from rlds_cli.settings import StrPath

KEYS = ("fields", "episodes_by")


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a mapping file says: keys by field, and the rule for ends if it has one."""

    fields: Mapping[str, str] = field(default_factory=dict)
    episodes_by: str | None = None


def read(path: StrPath) -> Mapped:
    """Read a mapping file, TOML by its suffix, else JSON.

    Raises
    ------
    RldsError
        It is not there, not JSON or TOML, or says something else.

    Examples
    --------
    >>> read("press.json")  # doctest: +SKIP
    Mapped(fields={'observation': 'state/q', 'action': 'cmd'}, episodes_by='field:trial')
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        said: Any = tomllib.loads(text) if file.suffix == ".toml" else documents.loads(text)
    except (OSError, ValueError, RecursionError) as e:
        raise RldsError(f"{file} cannot be read as a mapping: {e}", hint='as in {"observation": "state/q"}') from e
    if not isinstance(said, dict):
        raise RldsError(f"{file} holds no mapping.", hint='as in {"observation": "state/q", "action": "cmd"}')
    fields = said.get("fields", {k: v for k, v in said.items() if k not in KEYS})
    rule = said.get("episodes_by")
    odd = sorted(set(said) - set(KEYS)) if "fields" in said else []
    if odd or not isinstance(fields, dict) or not isinstance(rule, str | None):
        raise RldsError(
            f"{file}: {', '.join(odd) or 'fields or episodes_by'} is not understood.", hint=f"{' and '.join(KEYS)} are"
        )
    wrong = [k for k, v in fields.items() if not isinstance(v, str)]
    if wrong:
        raise RldsError(f"{file}: {wrong[0]} is {fields[wrong[0]]!r}; the name of a key is expected.")
    return Mapped(fields, rule)
