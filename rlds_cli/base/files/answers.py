"""Values as plain data: JSON and the bytes of arrays, which a process takes from another one that it does not trust.

Reading them runs no code, unlike reading a pickle. Besides JSON there are tuples, bytes, paths, arrays of numbers and
texts, and dataclasses of a list that the reading side names. A dataclass that occurs again is written once: an account
of thousands of files has few different fates. One that refers to another one so is never referred to itself: references
to references would make a value of any size of a few bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_KINDS = "biufcSUmM"  # of NumPy's types: numbers and texts, and no objects


def dump(value: object) -> tuple[bytes, list[memoryview]]:
    """Return a value as JSON, and the bytes that it refers to by their numbers.

    Raises
    ------
    TypeError
        A value is not plain data.
    """
    writing = _Writing(buffers=[], known={}, again=[])
    return json.dumps(_written(value, writing)).encode(), writing.buffers


def load(
    text: bytes, buffers: Sequence[bytearray], types: Mapping[str, type], paths: Mapping[str, Path] | None = None
) -> Any:
    """Return the value that `dump` wrote.

    Parameters
    ----------
    text : bytes
    buffers : sequence of bytearray
        They become the memory of the arrays.
    types : mapping of str to type
        The dataclasses that may occur, by name.
    paths : mapping of str to Path, optional
        Paths that may occur, by their texts: making thousands of them again takes long.

    Raises
    ------
    ValueError, KeyError, TypeError, IndexError
        The data are not such a value.
    """
    return _read(json.loads(text), _Reading(buffers=buffers, types=types, paths=paths or {}, known=[], again=[]))


@dataclass(frozen=True, slots=True)
class _Writing:
    """The bytes that were referred to, and the dataclasses that were written, with their numbers, by identity.

    ``again`` are the numbers of those that occurred again.
    """

    buffers: list[memoryview]
    known: dict[int, tuple[int, object]]
    again: list[int]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What may be referred to and occur, see `load`; the dataclasses that were read, and numbers of them."""

    buffers: Sequence[bytearray]
    types: Mapping[str, type]
    paths: Mapping[str, Path]
    known: list[Any]
    again: list[int]


def _written(value: object, to: _Writing) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_written(v, to) for v in value]
    if isinstance(value, tuple):
        if value and all(isinstance(v, Path) for v in value):
            return {"paths": [*map(str, value)]}
        return {"tuple": [_written(v, to) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_written(k, to) for k in value], [_written(v, to) for v in value.values()]]}
    kind: Any = type(value)
    if (names := _names(kind)) is not None:
        if (known := to.known.get(id(value))) is not None:
            to.again.append(known[0])
            return {"same": known[0]}
        before = len(to.again)
        said = {kind.__name__: [_written(getattr(value, n), to) for n in names]}
        if len(to.again) == before:
            to.known[id(value)] = len(to.known), value  # which keeps it: another one could get its identity
        return said
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        to.buffers.append(memoryview(value).cast("B") if len(value) else memoryview(b""))
        return {"bytes": len(to.buffers) - 1}
    return _array(value, to)


@lru_cache(1 << 8)
def _names(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass; None for another type."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None


def _array(value: object, to: _Writing) -> Any:
    import numpy as np

    if isinstance(value, str):  # np.str_
        return str(value)
    if isinstance(value, Sequence):
        return [_written(v, to) for v in value]
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{type(value).__name__} is not plain data.")
    array = np.asarray(value)
    if array.dtype.kind == "O":
        return {"objects": [list(array.shape), [_written(v, to) for v in array.ravel().tolist()]]}
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"{array.dtype} is not plain data.")
    flat = np.ascontiguousarray(array)
    to.buffers.append(flat.reshape(-1).view(np.uint8).data if flat.nbytes else memoryview(b""))
    name = "array" if isinstance(value, np.ndarray) else "scalar"
    return {name: [array.dtype.str, list(array.shape), len(to.buffers) - 1]}


def _read(value: Any, of: _Reading) -> Any:
    if isinstance(value, list):
        return [_read(v, of) for v in value]
    if not isinstance(value, dict):
        return value
    ((name, inner),) = value.items()
    match name:
        case "same":
            of.again.append(inner)
            return of.known[inner]
        case "tuple":
            return tuple([_read(v, of) for v in inner])
        case "dict":
            keys, values = inner
            return {_read(k, of): _read(v, of) for k, v in zip(keys, values, strict=True)}
        case "path":
            return Path(inner)
        case "paths":
            return tuple([of.paths.get(text) or Path(text) for text in inner])
        case "bytes":
            return bytes(of.buffers[inner])
        case "array" | "scalar" | "objects":
            return _read_array(name, inner, of)
    kind, before = of.types[name], len(of.again)
    found = kind(**{n: _read(v, of) for n, v in zip(_names(kind) or (), inner, strict=True)})
    if len(of.again) == before:
        of.known.append(found)
    return found


def _read_array(name: str, inner: Any, of: _Reading) -> Any:
    import numpy as np

    if name == "objects":
        shape, values = inner
        out = np.empty(len(values), object)
        out[:] = [_read(v, of) for v in values]
        return out.reshape(shape)
    said, shape, number = inner
    dtype = np.dtype(str(said))
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    array = np.frombuffer(of.buffers[number], dtype).reshape(shape)
    return array if name == "array" else array[()]
