"""Observation and action spaces: Minari's JSON form, and Gymnasium spaces built from it on demand.

====================  ==============================================================
Box                   ``type dtype shape low high``; bounds nested lists, or one number for all
Discrete              ``type dtype start n``
MultiDiscrete         ``type dtype nvec start``
MultiBinary           ``type n``; a number or a shape
Dict, Tuple           ``type subspaces``; an object, a list
Text                  ``type max_length min_length charset``
====================  ==============================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.text import is_below
from rlds_cli.errors import ArchiveError, InvalidArgument, MissingPackage
from rlds_cli.ted import Field

if TYPE_CHECKING:
    import gymnasium

Json = Mapping[str, Any]

# Length of a Text space without a limit in the archive: Gymnasium needs one.
_ANY_LENGTH = 1 << 20
_MOST_ELEMENTS = 1 << 24  # of a space that is built: Gymnasium keeps several arrays of each Box
_NEEDED: Mapping[Any, tuple[str, ...]] = {
    "Box": ("dtype", "shape", "low", "high"),
    "Discrete": ("n",),
    "MultiDiscrete": ("nvec",),
    "MultiBinary": ("n",),
    "Dict": ("subspaces",),
    "Tuple": ("subspaces",),
    "Text": ("max_length",),
}
_PRINTABLE = "".join(map(chr, range(32, 127)))


def from_json(space: Json | str) -> gymnasium.Space[Any]:
    """Build the Gymnasium space that ``space`` describes.

    Parameters
    ----------
    space : mapping or str
        Minari's JSON form, parsed or as text; infinite bounds as numbers or as ``"Infinity"``.

    Raises
    ------
    MissingPackage
        Gymnasium is not installed.
    ArchiveError
        The type is not defined by Minari, the description lacks a key, or the bounds would take hundreds of MiB of
        memory.

    Examples
    --------
    >>> from_json({"type": "Discrete", "dtype": "int64", "start": -1, "n": 3})
    Discrete(3, start=-1)
    """
    found = json.loads(space) if isinstance(space, str) else space
    kind = found.get("type")
    if kind not in _BUILDERS:
        raise ArchiveError(
            f'A space of type "{kind}" cannot be rebuilt.',
            hint="its description is in the manifest: ds.manifest.spaces",
        )
    try:
        elements = _elements(found)
        if elements > _MOST_ELEMENTS:
            raise ArchiveError(
                f"A {kind} space of {elements:,} elements is not built; at most {_MOST_ELEMENTS:,} are.",
                hint="its description is in the manifest: ds.manifest.spaces",
            )
        return _BUILDERS[kind](_gymnasium(), found)
    except KeyError as e:
        raise ArchiveError(f"The description of a {kind} space lacks {e}.") from e
    except (TypeError, ValueError, AttributeError, AssertionError, OverflowError) as e:
        raise ArchiveError(f"A {kind} space cannot be rebuilt from its description: {e}.") from e


def _elements(space: Json) -> int:
    """Count the elements of all Boxes in a space, which alone take memory by their shape."""
    inner = space.get("subspaces", ())
    parts = inner.values() if isinstance(inner, Mapping) else inner
    own = math.prod(space.get("shape", ())) if space.get("type") == "Box" else 0
    return int(own) + sum(_elements(part) for part in parts)


def to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """Describe a Gymnasium space in Minari's JSON form; raises ArchiveError for a type that it does not define."""
    kind = type(space).__name__
    if kind not in _WRITERS:
        raise ArchiveError(f"A space of type {kind} has no JSON form.", hint=f"one of {', '.join(_WRITERS)}")
    return {"type": kind, **_WRITERS[kind](space)}


def described(space: Any, what: str) -> dict[str, Any]:
    """Return the JSON form of a user's space: a Gymnasium space, or a JSON form, which is checked without Gymnasium.

    Raises
    ------
    InvalidArgument
        The value is neither, or of a type without JSON form.
    """
    if hasattr(space, "sample"):
        try:
            return to_json(space)
        except ArchiveError as e:
            raise InvalidArgument(f"{what}: {e.message}", hint=e.hint) from e
    try:
        found = json.loads(space) if isinstance(space, str) else space
    except ValueError as e:
        raise InvalidArgument(f"{what} is a text, but not JSON: {e}") from e
    _check_form(found, what)
    return dict(found)


def _check_form(space: Any, what: str) -> None:
    if not isinstance(space, Mapping) or space.get("type") not in _NEEDED:
        given = space.get("type") if isinstance(space, Mapping) else type(space).__name__
        hint = f'a Gymnasium space, or its JSON form, {{"type": ...}}, of type {", ".join(_NEEDED)}'
        raise InvalidArgument(f"{what}: {given!r} is not a space.", hint=hint)
    lacking = [key for key in _NEEDED[space["type"]] if key not in space]
    if lacking:
        raise InvalidArgument(f"{what}: the description of a {space['type']} space lacks {', '.join(lacking)}.")
    inner = space.get("subspaces", ())
    for key, part in inner.items() if isinstance(inner, Mapping) else enumerate(inner):
        _check_form(part, f"{what}/{key}")


def misfit(space: Json, fields: Sequence[Field], root: str) -> str | None:
    """Describe how a space and the fields at and below ``root`` disagree; None if they fit."""
    own = [f for f in fields if is_below(f.name, root)]
    if not own:
        return f"there is no {root}"
    for f in own:
        part = subspace(space, f.name.split("/")[1:])
        shape = row_shape(part)
        if part is None or shape is None:
            return f"the space has no place for {f.name}"
        if f.kind != "text" and shape != f.shape:
            return f"a row of {f.name} has shape {list(f.shape)}, in the space {list(shape)}"
    return None


def subspace(space: Json | None, path: Sequence[str]) -> Json | None:
    """Return the part of ``space`` at ``path``: keys of Dict spaces, numbers of Tuple spaces (``1`` or ``_index_1``).

    A key that holds ``/`` may come in several components, as HDF5 splits it.
    """
    if not path or space is None:
        return space
    inner = space.get("subspaces")
    if isinstance(inner, Mapping):
        for n in range(1, len(path) + 1):
            if "/".join(path[:n]) in inner:
                return subspace(inner["/".join(path[:n])], path[n:])
    elif isinstance(inner, Sequence):
        number = path[0].removeprefix("_index_")
        if number.isdecimal() and int(number) < len(inner):
            return subspace(inner[int(number)], path[1:])
    return None


def row_shape(space: Json | None) -> tuple[int, ...] | None:
    """Return the shape of one value of a space; None for Dict, Tuple and unknown types."""
    match (space or {}).get("type"):
        case "Box":
            return tuple(space["shape"]) if space and "shape" in space else None
        case "Discrete" | "Text":
            return ()
        case "MultiDiscrete":
            return np.shape(space["nvec"]) if space and "nvec" in space else None
        case "MultiBinary":
            n = space["n"] if space else 0
            return (n,) if isinstance(n, int) else tuple(n)
    return None


def image_shape(space: Json | None) -> tuple[int, ...] | None:
    """Return the shape of an image space, a Box of bytes with two axes or more that Minari encodes; else None."""
    shape = row_shape(space) if space and space.get("type") == "Box" and space.get("dtype") == "uint8" else None
    return shape if shape is not None and len(shape) > 1 else None


def infer(fields: Sequence[Field], root: str) -> dict[str, Any] | None:
    """Infer a space for the fields at and below ``root``; None without such fields.

    Numbers become a Box bounded by their type (images by 0 and 255), strings a Text, fields with keys a Dict.
    """
    own = [f for f in fields if f.name == root]
    if own:
        return _holding(own[0])
    keys = {f.name[len(root) + 1 :].split("/")[0]: None for f in fields if f.name.startswith(f"{root}/")}
    return {"type": "Dict", "subspaces": {k: infer(fields, f"{root}/{k}") for k in keys}} if keys else None


def _holding(f: Field) -> dict[str, Any]:
    if f.kind == "text":
        return {"type": "Text", "max_length": _ANY_LENGTH, "min_length": 0, "charset": _PRINTABLE}
    dtype = np.dtype(f.dtype)
    low, high = (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    sides = f.shape if math.prod(f.shape) <= _MOST_ELEMENTS else ()  # one number for all of many
    return {
        "type": "Box",
        "dtype": "int8" if dtype.kind == "b" else f.dtype,
        "shape": list(f.shape),
        "low": np.full(sides, low, object).tolist(),
        "high": np.full(sides, high, object).tolist(),
    }


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as e:
        raise MissingPackage(
            "Spaces are built with Gymnasium, which is not installed.", hint="pip install 'rlds-cli[spaces]'"
        ) from e
    return gymnasium.spaces


def _box(g: Any, s: Json) -> Any:
    shape, dtype = tuple(s["shape"]), np.dtype(s["dtype"])
    return g.Box(_bound(s["low"], shape, dtype), _bound(s["high"], shape, dtype), shape, dtype)


def _bound(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        value = np.array(value, object).astype(dtype)  # an array of objects, as "Infinity" may be among the numbers
    return np.broadcast_to(np.array(value, dtype), shape).copy()


def _discrete(g: Any, s: Json) -> Any:
    start, dtype = s.get("start", 0), s.get("dtype", "int64")
    return (
        g.Discrete(s["n"], start=start) if dtype == "int64" else g.Discrete(s["n"], start=start, dtype=np.dtype(dtype))
    )


def _multi_discrete(g: Any, s: Json) -> Any:
    return g.MultiDiscrete(s["nvec"], dtype=np.dtype(s.get("dtype", "int64")), start=s.get("start"))


def _text(g: Any, s: Json) -> Any:
    charset = {"charset": s["charset"]} if "charset" in s else {}
    return g.Text(s["max_length"], min_length=s.get("min_length", 1), **charset)


_BUILDERS: Mapping[str | None, Callable[[Any, Json], Any]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda g, s: g.MultiBinary(s["n"]),
    "Dict": lambda g, s: g.Dict({k: from_json(v) for k, v in s["subspaces"].items()}),
    "Tuple": lambda g, s: g.Tuple([from_json(v) for v in s["subspaces"]]),
    "Text": _text,
}

_WRITERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "Box": lambda s: {
        "dtype": str(s.dtype),
        "shape": list(s.shape),
        "low": s.low.tolist(),
        "high": s.high.tolist(),
    },
    "Discrete": lambda s: {"dtype": str(s.dtype), "start": int(s.start), "n": int(s.n)},
    "MultiDiscrete": lambda s: {"dtype": str(s.dtype), "nvec": s.nvec.tolist(), "start": s.start.tolist()},
    "MultiBinary": lambda s: {"n": int(s.n) if np.ndim(s.n) == 0 else [int(n) for n in s.n]},
    "Dict": lambda s: {"subspaces": {k: to_json(v) for k, v in s.spaces.items()}},
    "Tuple": lambda s: {"subspaces": [to_json(v) for v in s.spaces]},
    "Text": lambda s: {"max_length": s.max_length, "min_length": s.min_length, "charset": s.characters},
}
