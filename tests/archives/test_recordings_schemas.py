"""Recordings whose messages are Protobuf or JSON with a schema, beside those of ROS 2, by the libraries of these."""

from __future__ import annotations

import base64
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from robot_recordings import jpeg

from rlds_cli import import_files, verify
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.make import importing

pytest.importorskip("google.protobuf")
import mcap_messages
from mcap_messages import MESSAGES, Channel, of_json, of_protobuf

MS = 1_000_000
MULTIARRAY = b"float64[] data\n"
PLAN = {"properties": {"goal": {"type": "array", "items": {"type": "number"}}, "note": {"type": "string"}}}
ON = {"goal": [1, 2.5], "note": "on"}
IMAGE = {"properties": {"data": {"type": "string", "contentEncoding": "base64"}, "format": {"type": "string"}}}


def cdr(*values: float) -> bytes:
    """A std_msgs/Float64MultiArray, with no more than its data, in CDR."""
    return b"\0\1\0\0" + struct.pack("<I4x", len(values)) + struct.pack(f"<{len(values)}d", *values)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def joints(k: int) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "joints": [{"name": n, "position": k + i} for i, n in enumerate("ab")]}


def command(k: int, **more: Any) -> dict[str, Any]:
    return {"torque": [k / 2, 0.5, -k], "mode": k, "tip": {"x": k, "y": 0, "z": 0.5}, "on": k % 2 == 0} | more


def arm() -> list[Channel]:
    """Commands at 50 Hz and joints at 100 Hz in Protobuf, a base of ROS 2 and a plan in JSON, cameras of both kinds."""
    pixels = bytes(range(24))
    raw = {"width": 2, "height": 3, "encoding": "bgr8", "step": 8, "data": text(pixels)}
    return [
        of_protobuf("/cmd", "lab.Command", [((20 * k + 2) * MS, command(k)) for k in range(10)]),
        of_protobuf("/joints", "foxglove.JointStates", [(10 * k * MS, joints(k)) for k in range(20)]),
        of_protobuf("/top", "foxglove.CompressedImage", [(1 * MS, {"data": text(jpeg(1)), "format": "jpeg"})]),
        of_protobuf("/depth", "foxglove.RawImage", [(1 * MS, raw | {"frame_id": "lens"})]),
        of_json("/wrist", [(50 * k * MS, {"data": text(jpeg(k)), "format": "jpeg"}) for k in range(5)], IMAGE),
        of_json("/plan", [(1 * MS, {"goal": [1, 2], "note": "go"}), (90 * MS, ON), (170 * MS, ON)], PLAN),
        Channel("/base", "cdr", [(40 * k * MS, cdr(k, -k)) for k in range(5)], "std_msgs/msg/Any", MULTIARRAY),
    ]


def test_channels_of_three_encodings_have_one_rule_of_time(tmp_path: Path) -> None:
    mcap_messages.write(tmp_path / "arm.mcap", arm())
    ds = import_files(tmp_path / "arm.mcap", "local/arm", progress=False)
    e, now = ds.episode(0), [20 * k + 2 for k in range(7)]  # the base ends at 160 ms, and 142 is the last row
    assert e["action/cmd/torque"].tolist() == [[k / 2, 0.5, -k] for k in range(7)]
    assert e["action/cmd/mode"].ravel().tolist() == [*range(7)] and e["action/cmd/on"].ravel().tolist() == [
        1,
        0,
        1,
        0,
        1,
        0,
        1,
    ]
    assert e["action/cmd/tip/x"].ravel().tolist() == [*range(7)]
    types = {n: ds.schema[f"action/cmd/{n}"].dtype for n in ("torque", "mode", "tip/x", "on")}
    assert types == {"torque": "float32", "mode": "int32", "tip/x": "float64", "on": "bool"}
    assert e["observation/joints/joints/position"].tolist() == [[t // 10, t // 10 + 1] for t in now]
    assert e["observation/base"].tolist() == [[t // 40, -(t // 40)] for t in now]
    assert e["observation/plan/goal"].tolist() == [[1, 2.5 if t >= 90 else 2] for t in now]
    assert list(e["observation/plan/note"]) == ["on" if t >= 90 else "go" for t in now]
    np.testing.assert_allclose(e["info/age/wrist"].ravel(), [t % 50 / 1000 for t in now], atol=1e-6)
    shown = [np.asarray(Image.open(io.BytesIO(jpeg(t // 50)))) for t in now]
    assert np.array_equal(e["observation/wrist"], shown) and ds.schema["observation/wrist"].codec == "jpeg"
    assert np.array_equal(e["observation/top"][3], np.asarray(Image.open(io.BytesIO(jpeg(1)))))
    pixels = np.arange(24, dtype=np.uint8).reshape(3, 8)[:, :6].reshape(3, 2, 3)[..., ::-1]
    assert np.array_equal(e["observation/depth"][0], pixels)
    assert verify("local/arm").ok


def test_the_fate_of_every_part_of_a_message_is_told(tmp_path: Path) -> None:
    messages = [(20 * k * MS, command(k, **({"tip": None} if k < 2 else {}))) for k in range(4)]
    images = [(k * MS, {"data": text(b"RIFF" + bytes(k)), "format": "webp"}) for k in range(3)]
    channels = [
        of_protobuf("/cmd", "lab.Command", messages),
        of_protobuf("/joints", "foxglove.JointStates", [(10 * k * MS, joints(k)) for k in range(9)]),
        of_protobuf("/webp", "foxglove.CompressedImage", images),
        of_json("/late", [(0, {"a": 1}), (9 * MS, {"a": 1, "b": 2, "c": ["x"], "_d": 1})]),
        Channel("/odd", "cbor", [(0, b"\xa0")], "lab.Odd", b""),
        Channel("/bad", "protobuf", [(0, b"")], "lab.Gone", b"\x0a\x03abc"),
        of_json("/none", []),
    ]
    mcap_messages.write(tmp_path / "arm.mcap", channels)
    account = importing.plan_import(tmp_path / "arm.mcap", "local/x").account
    said = {e.name: (e.kind, e.left_out) for e in account if not e.used_as}
    lacking = "not every message of the topic has it"
    assert said["/cmd/tip/x"] == ("column", lacking) and said["/late/b"] == ("column", lacking)
    assert said["/joints/joints/velocity"] == ("column", "it is not set")
    assert said["/joints/joints/name"] == said["/late/c"] == ("column", "no field holds such a value")
    assert said["/joints/timestamp"] == ("column", "it describes the message")
    assert said["/webp"] == ("topic", "its values have different shapes or kinds")
    assert said["/odd"] == ("topic", "its messages are cbor of ")
    assert said["/bad"][1].startswith("its definition cannot be read") and said["/none"][1] == "it has no messages"
    assert said["/late/_d"] == ("column", "its name begins with an underscore")
    used = {e.name for e in account if e.used_as}
    assert used == {"arm.mcap", "/cmd/torque", "/cmd/mode", "/cmd/on", "/joints/joints/position"}


@pytest.mark.parametrize("where", ["protobuf", "base64", "json", "pixels", "twice", "deep", "many"])
def test_messages_that_are_damaged_or_do_harm_are_refused(tmp_path: Path, where: str) -> None:
    raw = {"width": 9, "height": 3, "encoding": "bgr8", "step": 8, "data": text(bytes(24))}
    deep = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    bad = {
        "protobuf": Channel("/bad", "protobuf", [(0, b"\x0a\xff")], "lab.Command", arm()[0].schema),
        "base64": of_json("/bad", [(0, {"data": "a!b", "format": ""})], IMAGE),
        "json": Channel("/bad", "json", [(0, b'{"a": ')]),
        "pixels": of_protobuf("/bad", "foxglove.RawImage", [(0, raw)]),
        "twice": of_json("/bad", [(0, {"a/b": 1, "a": {"b": 2}, "c": 3})]),
        "deep": Channel("/bad", "json", [(0, deep)]),
        "many": of_json("/bad", [(0, {f"k{k}": k for k in range(5_000)})]),
    }[where]
    mcap_messages.write(tmp_path / "arm.mcap", [*arm()[:2], bad])
    kinds = {"pixels": UnknownLayout, "twice": UnknownLayout, "many": UnsafeArchive}
    with pytest.raises(kinds.get(where, CorruptArchive), match=r"arm\.mcap: /bad at 0\.000 s"):
        importing.plan_import(tmp_path / "arm.mcap", "local/x")


def test_schemas_may_lack_what_comes_with_protobuf_and_name_each_other(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    command_of, states = arm()[:2]
    found = descriptor_pb2.FileDescriptorSet.FromString(states.schema)
    kept = [f for f in found.file if f.name != "google/protobuf/timestamp.proto"]
    states.schema = descriptor_pb2.FileDescriptorSet(file=kept[::-1]).SerializeToString()
    assert {f.package for f in kept} == {name.rpartition(".")[0] for name in MESSAGES}
    mcap_messages.write(tmp_path / "arm.mcap", [command_of, states])
    fields = {f.name for f in importing.plan_import(tmp_path / "arm.mcap", "local/x").fields}
    assert "observation/joints/joints/position" in fields


def test_references_of_a_json_schema_are_followed_within_it(tmp_path: Path) -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "http://x/y"}, "c": {"$ref": "#/$defs/C"}},
        "$defs": {"A": {"properties": {"x": {"type": "number"}}}, "C": {"$ref": "#/$defs/C"}},
    }
    messages = [(20 * k * MS, {"a": {"x": k}, "b": k, "c": k}) for k in range(3)]
    mcap_messages.write(tmp_path / "arm.mcap", [arm()[0], of_json("/pose", messages, schema)])
    types = {f.name: f.dtype for f in importing.plan_import(tmp_path / "arm.mcap", "local/x").fields}
    assert [types[f"observation/pose/{n}"] for n in ("a/x", "b", "c")] == ["float64", "int64", "int64"]
