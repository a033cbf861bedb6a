"""MCAP files of messages in Protobuf and JSON, made by the libraries of both: mcap and protobuf, with schemas that are
laid out as Foxglove's are (https://github.com/foxglove/foxglove-sdk/tree/main/schemas)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, timestamp_pb2
from mcap.writer import Writer

_TYPES = {name: number for number, name in enumerate(["double", "float", "int64", "uint64", "int32"], 1)} | {
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
}
STAMP = "google.protobuf.Timestamp"
MESSAGES: Mapping[str, Mapping[str, str]] = {  # "*" is repeated, "?" optional
    "foxglove.CompressedImage": {"timestamp": STAMP, "frame_id": "string", "data": "bytes", "format": "string"},
    "foxglove.RawImage": {
        "timestamp": STAMP,
        "frame_id": "string",
        "width": "uint32",
        "height": "uint32",
        "encoding": "string",
        "step": "uint32",
        "data": "bytes",
    },
    "foxglove.JointStates": {"timestamp": STAMP, "joints": "*foxglove.JointState"},
    "foxglove.JointState": {"name": "string", "position": "?double", "velocity": "?double"},
    "foxglove.Vector3": {"x": "double", "y": "double", "z": "double"},
    "lab.Command": {"torque": "*float", "mode": "int32", "tip": "foxglove.Vector3", "on": "bool"},
}


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """Descriptions of all ``MESSAGES`` and of the file that they import."""
    found = descriptor_pb2.FileDescriptorSet()
    packages = {name.rpartition(".")[0] for name in MESSAGES}
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    for package in sorted(packages):
        file = found.file.add(name=f"{package}.proto", package=package, syntax="proto3")
        file.dependency.extend(["google/protobuf/timestamp.proto"] + ["foxglove.proto"] * (package != "foxglove"))
        for name, fields in MESSAGES.items():
            if name.rpartition(".")[0] == package:
                made = file.message_type.add(name=name.rpartition(".")[2])
                for number, (field, kind) in enumerate(fields.items(), 1):
                    _add_field(made, field, kind, number)
    return found


def _add_field(made: Any, name: str, kind: str, number: int) -> None:
    of = kind.lstrip("*?")
    f = made.field.add(name=name, number=number, label=3 if kind[0] == "*" else 1, type=_TYPES.get(of, 11))
    if of not in _TYPES:
        f.type_name = f".{of}"
    if kind[0] == "?":
        f.proto3_optional, f.oneof_index = True, len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{name}")


_POOL = descriptor_pool.DescriptorPool()
for _file in descriptors().file:
    _POOL.Add(_file)


def protobuf(kind: str, values: Mapping[str, Any]) -> bytes:
    """A message of ``MESSAGES``; values are those of Protobuf's JSON, bytes in base64."""
    of = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(kind))
    return json_format.ParseDict(dict(values), of()).SerializeToString()  # type: ignore[no-any-return]


class Channel:
    """A topic: the encoding of its messages and of their schema, its name, the schema, and (nanoseconds, message)."""

    def __init__(
        self, topic: str, encoding: str, messages: Sequence[tuple[int, bytes]], kind: str = "", schema: bytes = b""
    ) -> None:
        self.topic, self.encoding, self.messages, self.kind, self.schema = topic, encoding, messages, kind, schema


def of_protobuf(topic: str, kind: str, messages: Sequence[tuple[int, Mapping[str, Any]]]) -> Channel:
    """A topic of Protobuf."""
    return Channel(
        topic,
        "protobuf",
        [(t, protobuf(kind, m)) for t, m in messages],
        kind,
        descriptors().SerializeToString(),
    )


def of_json(topic: str, messages: Sequence[tuple[int, Any]], schema: Mapping[str, Any] | None = None) -> Channel:
    """A topic of JSON, with or without a schema."""
    said = json.dumps(schema).encode() if schema is not None else b""
    return Channel(topic, "json", [(t, json.dumps(m).encode()) for t, m in messages], "lab.Json" if said else "", said)


def write(path: Path, channels: Sequence[Channel]) -> None:
    """Write all messages in the order of their times."""
    encodings = {"protobuf": "protobuf", "json": "jsonschema", "cdr": "ros2msg"}
    with path.open("wb") as f:
        writer = Writer(f)
        writer.start()
        sent = []
        for c in channels:
            schema = writer.register_schema(c.kind, encodings.get(c.encoding, ""), c.schema) if c.kind else 0
            number = writer.register_channel(c.topic, c.encoding, schema)
            sent += [(t, number, data) for t, data in c.messages]
        for t, number, data in sorted(sent, key=lambda m: m[0]):
            writer.add_message(number, log_time=t, data=data, publish_time=t)
        writer.finish()
