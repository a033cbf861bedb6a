"""Numbers, shapes and spaces as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def number(x: float | None, dtype: str = "float64") -> str:
    """Format a value of a field: ``-9.98``, ``1.2e-05``; integers without a point, ``·`` for None and NaN."""
    if x is None or x != x:
        return "·"
    if dtype.startswith(("int", "uint", "bool")) and abs(x) < 1e6:
        return f"{int(x):,}"
    return f"{x:.1e}" if x and not 5e-3 <= abs(x) < 1e5 else f"{x:,.2f}"


def figure(x: float) -> str:
    """Format a return or a length with about three digits: ``3,222``, ``15.2``."""
    return f"{x:,.0f}" if abs(x) >= 100 or x == int(x) else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def shape(dims: Sequence[int]) -> str:
    """Format a shape: ``[11]``; ``[]`` for a scalar."""
    return str(list(dims))


def space_text(space: Mapping[str, Any]) -> str:
    """Format a Gymnasium space in its JSON form as its type and size: ``Box(17)``, ``Dict(a: Box(2), b: ...)``."""
    inner = space.get("subspaces", ())
    if isinstance(inner, Mapping):
        size = ", ".join(f"{name}: {space_text(part)}" for name, part in inner.items())
    elif inner:
        size = ", ".join(map(space_text, inner))
    else:
        found = space.get("shape", space.get("nvec", space.get("n", "")))
        size = ", ".join(map(str, found)) if isinstance(found, list | tuple) else str(found)
    return f"{space.get('type')}({size})"
