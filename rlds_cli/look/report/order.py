"""The order of fields on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlds_cli.base.text import is_below, natural
from rlds_cli.ted import FLAGS, REWARD, Field

if TYPE_CHECKING:
    from rlds_cli.store.manifest import StoredField

_ORDER = ("observation", "action", "next/observation", REWARD, *FLAGS, "next", "", "info", "next/info")


def rank(f: Field | StoredField) -> tuple[Any, ...]:
    """Sort key of fields on a page."""
    known = [i for i, name in enumerate(_ORDER) if name and is_below(f.name, name)]
    return max(known, default=_ORDER.index("")), natural(f.name)
