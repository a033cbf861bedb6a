"""Messages that are Protobuf, JSON or of ROS 1, decoded by the schemas that the file holds; no code is made.

A Protobuf schema is a ``FileDescriptorSet``: every field keeps its type, enums are their numbers. A field that can be
unset, as a message inside a message, is a value where it is set: what a message lacks is not made up from defaults.

A JSON schema says what JSON does not: ``"contentEncoding": "base64"`` are bytes, and ``"type": "number"`` are floats,
also where they are written as whole numbers. https://mcap.dev/spec/registry has both encodings.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds_cli.archives.formats import ros1_messages
from rlds_cli.archives.formats.message_leaves import NotKept
from rlds_cli.errors import MissingPackage

PROTOBUF, JSON, JSON_SCHEMA, ROS1 = "protobuf", "json", "jsonschema", "ros1"
MAX_DEPTH = 32  # of a JSON schema, references included
_UNSET = NotKept("it is not set", absent=True)
Decode = Callable[[bytes], Any]


def decoder_for(encoding: str, schema: Any) -> Decode | None:
    """Return a function that decodes the messages of a channel; None if they are none of Protobuf, JSON and ROS 1.

    ``schema`` is the record of the file, with ``name``, ``encoding`` and ``data``; None for a channel without one.

    Raises
    ------
    MissingPackage
        ``protobuf`` is not installed.
    ValueError, TypeError, KeyError
        The schema cannot be read.
    """
    if encoding == JSON:
        if schema is None or schema.encoding != JSON_SCHEMA:
            return json.loads
        said = json.loads(bytes(schema.data) or b"{}")
        return lambda data: _typed(json.loads(data), said, said, 0)
    if encoding == ROS1 and schema is not None and schema.encoding == f"{ROS1}msg":
        return ros1_messages.decoder_of(schema.name, bytes(schema.data).decode())
    if encoding == PROTOBUF and schema is not None and schema.encoding == PROTOBUF:
        return _protobuf(schema.name, bytes(schema.data))
    return None


# -- Protobuf


def _protobuf(name: str, descriptors: bytes) -> Decode:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as e:
        raise MissingPackage("It holds messages of Protobuf.", hint="pip install 'rlds-cli[ros]'") from e
    found = descriptor_pb2.FileDescriptorSet()
    found.ParseFromString(descriptors)
    files = {f.name: f for f in found.file}
    pool = descriptor_pool.DescriptorPool()
    for file in [*files]:
        _add(file, files, pool)
    of = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    return lambda data: _fields(of.FromString(bytes(data)))


def _add(name: str, files: dict[str, Any], pool: Any) -> None:
    """Add a file to a pool, after those that it imports. Writers may leave out what comes with Protobuf itself."""
    waiting = [name]
    while waiting:
        file = files.get(waiting[-1])
        if file is None:  # added before, or of Protobuf itself
            waiting.pop()
            continue
        lacking = [d for d in file.dependency if d in files and d not in waiting]
        if lacking:
            waiting += lacking
            continue
        for dependency in file.dependency:
            if dependency.startswith("google/protobuf/") and not _has(pool, dependency):
                _add_own(dependency, pool)
        pool.Add(files.pop(waiting.pop()))


def _has(pool: Any, file: str) -> bool:
    try:
        pool.FindFileByName(file)
    except KeyError:
        return False
    return True


def _add_own(file: str, pool: Any) -> None:
    from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    for module in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        if file == module.DESCRIPTOR.name:
            copied = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(copied)
            pool.Add(copied)


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message by name: NumPy scalars and arrays, texts, bytes, and mappings of fields."""
    found: dict[str, Any] = {}
    for f in message.DESCRIPTOR.fields:
        value = getattr(message, f.name)
        inner = f.message_type
        if inner is not None and inner.GetOptions().map_entry:
            of = inner.fields_by_name["value"]
            found[f.name] = {str(key): _value(of, value[key]) for key in sorted(value)}
        elif _is_repeated(f):
            found[f.name] = _repeated(f, value)
        elif f.has_presence and not message.HasField(f.name):
            found[f.name] = _UNSET
        else:
            found[f.name] = _value(f, value)
    return found


def _is_repeated(f: Any) -> bool:
    """Return whether a field is a list; protobuf 5 and 6 say so by another attribute than 7."""
    said = getattr(f, "is_repeated", None)
    return bool(f.label == f.LABEL_REPEATED if said is None else said)


def _repeated(f: Any, values: Any) -> Any:
    if f.message_type is not None or f.cpp_type == f.CPPTYPE_STRING:
        return [_value(f, v) for v in values]
    return np.fromiter(values, _dtype(f), len(values))


def _value(f: Any, value: Any) -> Any:
    if f.message_type is not None:
        return _fields(value)
    return value if f.cpp_type == f.CPPTYPE_STRING else _dtype(f).type(value)


def _dtype(f: Any) -> np.dtype[Any]:
    name = {
        f.CPPTYPE_BOOL: "bool",
        f.CPPTYPE_DOUBLE: "f8",
        f.CPPTYPE_FLOAT: "f4",
        f.CPPTYPE_INT64: "i8",
        f.CPPTYPE_UINT32: "u4",
        f.CPPTYPE_UINT64: "u8",
    }.get(f.cpp_type, "i4")  # which enums are, too
    return np.dtype(name)


# -- JSON


def _typed(value: Any, schema: Any, root: Any, depth: int) -> Any:
    """Return a value of JSON with the types of its schema: bytes for base64, floats for numbers."""
    schema = _followed(schema, root)
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return value
    if isinstance(value, dict):
        inner = schema.get("properties")
        of = inner if isinstance(inner, Mapping) else {}
        return {key: _typed(item, of.get(key), root, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        of = _followed(schema.get("items"), root)
        if isinstance(of, Mapping) and of.get("type") == "number":
            return _floats(value)
        return [_typed(item, of, root, depth + 1) for item in value] if isinstance(of, Mapping) else value
    if isinstance(value, str) and schema.get("contentEncoding") == "base64":
        return base64.b64decode(value, validate=True)
    return float(value) if type(value) is int and schema.get("type") == "number" else value


def _floats(values: list[Any]) -> list[Any]:
    return [float(v) if type(v) is int else v for v in values]


def _followed(schema: Any, root: Any) -> Any:
    """Follow references inside a schema, as ``{"$ref": "#/$defs/Arm"}``; any other has no types."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(name := schema.get("$ref"), str):
            return schema
        schema = root if name.startswith("#") else None
        for part in name.split("/")[1:]:
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return None
