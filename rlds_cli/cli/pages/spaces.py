"""A space in a word, as Gymnasium prints it, from its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def in_words(space: Mapping[str, Any]) -> str:
    """Its type with its shape, its number of values, or the names of its parts."""
    inner = space.get("subspaces", ())
    if isinstance(inner, Mapping):
        size = ", ".join(f"{name}: {in_words(part)}" for name, part in inner.items())
    elif inner:
        size = ", ".join(map(in_words, inner))
    else:
        found = space.get("shape", space.get("nvec", space.get("n", "")))
        size = ", ".join(map(str, found)) if isinstance(found, list | tuple) else str(found)
    return f"{space.get('type')}({size})"
