"""Messages of ROS 1, decoded by the text of their definition; no code is made of it.

Values lie one behind the other, in little endian and without padding; texts and lists of any length have their number
before them. http://wiki.ros.org/msg has the definitions, http://wiki.ros.org/ROS/Connection%20Header the separator::

    Header header               # the first message: fields, and constants as int8 DEBUG=1
    float64[] position
    ================================================================================
    MSG: std_msgs/Header        # each message that it names
    uint32 seq
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMBERS = {
    "bool": "?",
    "byte": "i1",
    "char": "u1",
    "int8": "i1",
    "uint8": "u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float32": "<f4",
    "float64": "<f8",
}
_TIMES = {"time": "<u4", "duration": "<i4"}
_FIELD = re.compile(r"([A-Za-z]\w*(?:/\w+)?)(?:\[(\d*)\])?\s+([A-Za-z]\w*)$")
_SEPARATOR = re.compile(r"^=+$", re.M)


@dataclass(frozen=True, slots=True)
class _FieldOf:
    """A field of a message. ``count`` is None for one value, -1 for a list of any length."""

    name: str
    type: str
    count: int | None


_Types = Mapping[str, tuple[_FieldOf, ...]]


def decoder_of(name: str, definition: str) -> Callable[[bytes], Any]:
    """Return a function that decodes messages of a type, as ``sensor_msgs/JointState``.

    Raises
    ------
    ValueError
        The definition cannot be read, or names a message that it lacks.
    """
    types = _types(name, definition)

    def decode(data: bytes) -> Any:
        found, end = _message(types, name, memoryview(data), 0)
        if end != len(data):
            raise ValueError(f"{len(data) - end:,} bytes are left behind its values")
        return found

    return decode


def _types(name: str, definition: str) -> _Types:
    texts = {}
    for k, text in enumerate(_SEPARATOR.split(definition)):
        head, _, rest = text.strip().partition("\n")
        if k == 0:
            texts[name] = text
        elif head.startswith("MSG:"):
            texts[head[4:].strip()] = rest
    return {of: tuple(_fields(of, text, texts)) for of, text in texts.items()}


def _fields(of: str, text: str, known: Mapping[str, str]) -> list[_FieldOf]:
    found = []
    for line in text.splitlines():
        said = line.partition("#")[0].strip()
        if not said or "=" in said:  # a constant
            continue
        if (match := _FIELD.match(said)) is None:
            raise ValueError(f"{said[:80]!r} is not a field")
        kind, count, name = match.groups()
        if kind not in _NUMBERS and kind not in _TIMES and kind != "string":
            package = "std_msgs" if kind == "Header" else of.partition("/")[0]
            kind = kind if "/" in kind else f"{package}/{kind}"
            if kind not in known:
                raise ValueError(f"it names {kind}, which is not defined")
        found.append(_FieldOf(name, kind, None if count is None else int(count or -1)))
    return found


def _message(types: _Types, name: str, data: memoryview, at: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    for f in types[name]:
        if f.count is None:
            found[f.name], at = _value(types, f.type, data, at)
        else:
            found[f.name], at = _list(types, f, data, at)
    return found, at


def _value(types: _Types, kind: str, data: memoryview, at: int) -> tuple[Any, int]:
    if kind in _NUMBERS:
        values, at = _numbers(_NUMBERS[kind], 1, data, at)
        return values[0], at
    if kind in _TIMES:
        (seconds, rest), at = _numbers(_TIMES[kind], 2, data, at)
        return {"secs": seconds, "nsecs": rest}, at
    if kind == "string":
        size, at = _size(data, at)
        return str(data[at : at + size], "utf-8"), at + size
    return _message(types, kind, data, at)


def _list(types: _Types, f: _FieldOf, data: memoryview, at: int) -> tuple[Any, int]:
    count = f.count or 0
    if count < 0:
        (values, at) = _numbers("<u4", 1, data, at)
        count = int(values[0])
    if f.type in _NUMBERS:
        values, at = _numbers(_NUMBERS[f.type], count, data, at)
        return (values.tobytes() if f.type == "uint8" else values), at
    if count > len(data) - at:
        raise ValueError(f"{f.name} states {count:,} items where {len(data) - at:,} bytes are left")
    found = []
    for _ in range(count):
        value, at = _value(types, f.type, data, at)
        found.append(value)
    return found, at


def _numbers(dtype: str, count: int, data: memoryview, at: int) -> tuple[Any, int]:
    size = count * np.dtype(dtype).itemsize
    if size > len(data) - at:
        raise ValueError(f"it states {size:,} bytes where {len(data) - at:,} are left")
    return np.frombuffer(data, dtype, count, at).astype(np.dtype(dtype).newbyteorder("=")), at + size


def _size(data: memoryview, at: int) -> tuple[int, int]:
    values, at = _numbers("<u4", 1, data, at)
    if (size := int(values[0])) > len(data) - at:
        raise ValueError(f"it states {size:,} bytes where {len(data) - at:,} are left")
    return size, at
