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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rlds_cli.base.text import is_below
from rlds_cli.errors import ArchiveError, InvalidArgument, MissingPackage
from rlds_cli.ted.fields import Field

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


@dataclass(frozen=True, slots=True)
class Space:
    """A space by its description, ``form``: Minari's JSON form, parsed; None where nothing is known of it."""

    form: Json | None

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> Self:
        """Describe a Gymnasium space; raises ArchiveError for a type that the JSON form does not have."""
        return cls(_described(space))

    @classmethod
    def given(cls, space: Any, what: str) -> Self:
        """Return a user's space: a Gymnasium space, or a JSON form, which is checked without Gymnasium.

        Raises
        ------
        InvalidArgument
            The value is neither, or of a type without JSON form.
        """
        if hasattr(space, "sample"):
            try:
                return cls.of(space)
            except ArchiveError as e:
                raise InvalidArgument(f"{what}: {e.message}", hint=e.hint) from e
        try:
            found = json.loads(space) if isinstance(space, str) else space
        except ValueError as e:
            raise InvalidArgument(f"{what} is a text, but not JSON: {e}") from e
        _check_form(found, what)
        return cls(dict(found))

    @classmethod
    def inferred(cls, fields: Sequence[Field], root: str) -> Self:
        """Infer the space of the fields at and below ``root``; nothing is known without such fields.

        Numbers become a Box bounded by their type (images by 0 and 255), strings a Text, fields with keys a Dict.
        """
        own = [f for f in fields if f.name == root]
        if own:
            return cls(_holding(own[0]))
        keys = {f.name[len(root) + 1 :].split("/")[0]: None for f in fields if f.name.startswith(f"{root}/")}
        parts = {k: cls.inferred(fields, f"{root}/{k}").form for k in keys}
        return cls({"type": "Dict", "subspaces": parts} if keys else None)

    @property
    def type(self) -> str | None:
        """Its type, such as ``Box``."""
        return (self.form or {}).get("type")

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """The shape of one value; None for Dict, Tuple and unknown types."""
        space = self.form or {}
        match self.type:
            case "Box":
                return tuple(space["shape"]) if "shape" in space else None
            case "Discrete" | "Text":
                return ()
            case "MultiDiscrete":
                return np.shape(space["nvec"]) if "nvec" in space else None
            case "MultiBinary":
                return (space["n"],) if isinstance(space["n"], int) else tuple(space["n"])
        return None

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """The shape of an image space, a Box of bytes with two axes or more that Minari encodes; else None."""
        shape = self.row_shape if self.form and self.type == "Box" and self.form.get("dtype") == "uint8" else None
        return shape if shape is not None and len(shape) > 1 else None

    def at(self, path: Sequence[str]) -> Self:
        """Return the part at ``path``: keys of Dict spaces, numbers of Tuple spaces (``1`` or ``_index_1``).

        A key that holds ``/`` may come in several components, as HDF5 splits it.
        """
        if not path or self.form is None:
            return self
        cls = type(self)
        inner = self.form.get("subspaces")
        if isinstance(inner, Mapping):
            for n in range(1, len(path) + 1):
                if "/".join(path[:n]) in inner:
                    return cls(inner["/".join(path[:n])]).at(path[n:])
        elif isinstance(inner, Sequence):
            number = path[0].removeprefix("_index_")
            if number.isdecimal() and int(number) < len(inner):
                return cls(inner[int(number)]).at(path[1:])
        return cls(None)

    def misfit(self, fields: Sequence[Field], root: str) -> str | None:
        """Describe how the space and the fields at and below ``root`` disagree; None if they fit."""
        own = [f for f in fields if is_below(f.name, root)]
        if not own:
            return f"there is no {root}"
        for f in own:
            shape = self.at(f.name.split("/")[1:]).row_shape
            if shape is None:
                return f"the space has no place for {f.name}"
            if f.kind != "text" and shape != f.shape:
                return f"a row of {f.name} has shape {list(f.shape)}, in the space {list(shape)}"
        return None

    def build(self) -> gymnasium.Space[Any]:
        """Build the Gymnasium space.

        Raises
        ------
        MissingPackage
            Gymnasium is not installed.
        ArchiveError
            The type is not defined by Minari, the description lacks a key, or the bounds would take hundreds of MiB of
            memory.

        Examples
        --------
        >>> Space({"type": "Discrete", "dtype": "int64", "start": -1, "n": 3}).build()
        Discrete(3, start=-1)
        """
        form, kind = self.form or {}, self.type
        if kind not in _BUILDERS:
            raise ArchiveError(
                f'A space of type "{kind}" cannot be rebuilt.',
                hint="its description is in the manifest: ds.manifest.spaces",
            )
        try:
            elements = _elements(form)
            if elements > _MOST_ELEMENTS:
                raise ArchiveError(
                    f"A {kind} space of {elements:,} elements is not built; at most {_MOST_ELEMENTS:,} are.",
                    hint="its description is in the manifest: ds.manifest.spaces",
                )
            return _BUILDERS[kind](_gymnasium(), form)
        except KeyError as e:
            raise ArchiveError(f"The description of a {kind} space lacks {e}.") from e
        except (TypeError, ValueError, AttributeError, AssertionError, OverflowError) as e:
            raise ArchiveError(f"A {kind} space cannot be rebuilt from its description: {e}.") from e


def _described(space: gymnasium.Space[Any]) -> dict[str, Any]:
    kind = type(space).__name__
    if kind not in _WRITERS:
        raise ArchiveError(f"A space of type {kind} has no JSON form.", hint=f"one of {', '.join(_WRITERS)}")
    return {"type": kind, **_WRITERS[kind](space)}


def _elements(space: Json) -> int:
    """Count the elements of all Boxes in a space, which alone take memory by their shape."""
    inner = space.get("subspaces", ())
    parts = inner.values() if isinstance(inner, Mapping) else inner
    own = math.prod(space.get("shape", ())) if space.get("type") == "Box" else 0
    return int(own) + sum(_elements(part) for part in parts)


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
    "Dict": lambda g, s: g.Dict({k: Space(v).build() for k, v in s["subspaces"].items()}),
    "Tuple": lambda g, s: g.Tuple([Space(v).build() for v in s["subspaces"]]),
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
    "Dict": lambda s: {"subspaces": {k: _described(v) for k, v in s.spaces.items()}},
    "Tuple": lambda s: {"subspaces": [_described(v) for v in s.spaces]},
    "Text": lambda s: {"max_length": s.max_length, "min_length": s.min_length, "charset": s.characters},
}
