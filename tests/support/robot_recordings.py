"""Recordings of a robot arm as ROS 2 makes them: MCAP files by mcap's own writer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mcap_ros2.writer import Writer
from PIL import Image

HEADER = "\n" + "=" * 80 + "\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
ARRAY = "float64[] data\n"
TYPES = {
    "sensor_msgs/msg/JointState": "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] effort\n"
    + HEADER,
    "std_msgs/msg/Float64MultiArray": ARRAY,
    "sensor_msgs/msg/CompressedImage": "std_msgs/Header header\nstring format\nuint8[] data\n" + HEADER,
    "sensor_msgs/msg/Image": "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\n"
    "uint8 is_bigendian\nuint32 step\nuint8[] data\n" + HEADER,
    "std_msgs/msg/String": "string data\n",
    "std_msgs/msg/Bool": "bool data\n",
    "geometry_msgs/msg/Twist": "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular\n\n" + "=" * 80 + "\n"
    "MSG: geometry_msgs/Vector3\nfloat64 x\nfloat64 y\nfloat64 z\n",
}
JOINTS, CAMERA, DEPTH, COMMAND, TASK = "/joint_states", "/wrist/compressed", "/depth", "/arm/command", "/task"
START, MS = 1_700_000_000_000_000_000, 1_000_000
STAMP = {"stamp": {"sec": 1, "nanosec": 2}, "frame_id": "base"}
Sent = dict[str, list[tuple[int, Any]]]
Event = tuple[float, str, str, Any]


def write(path: Path, events: Sequence[Event]) -> None:
    """Write messages as (milliseconds, topic, type, message)."""
    with path.open("wb") as f:
        writer = Writer(f)
        schemas = {kind: writer.register_msgdef(kind, TYPES[kind]) for kind in dict.fromkeys(e[2] for e in events)}
        for ms, topic, kind, message in sorted(events, key=lambda e: e[0]):
            at = START + round(ms * MS)
            writer.write_message(topic, schemas[kind], message, log_time=at, publish_time=at)
        writer.finish()


def jpeg(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (24, 32, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def record(path: Path, *, seconds: float = 1.0, seed: int = 0, more: Sequence[Event] = ()) -> Sent:
    """Record an arm with joints at 100 Hz, commands at 50 Hz, cameras at 10 and 5 Hz; return values by topic."""
    rng, events, sent = np.random.default_rng(seed), [*more], Sent()

    def send(ms: float, topic: str, kind: str, message: Any, value: Any) -> None:
        events.append((ms, topic, kind, message))
        sent.setdefault(topic, []).append((START + round(ms * MS), value))

    send(1, TASK, "std_msgs/msg/String", {"data": "press"}, "press")
    for k in range(int(seconds * 100)):
        q = rng.normal(size=2)
        message = {"header": STAMP, "name": ["a", "b"], "position": q.tolist(), "effort": []}
        send(10 * k + float(rng.uniform(0, 3)), JOINTS, "sensor_msgs/msg/JointState", message, q)
    for k in range(int(seconds * 50)):
        q = rng.normal(size=3)
        send(20 * k + float(rng.uniform(0, 3)), COMMAND, "std_msgs/msg/Float64MultiArray", {"data": q.tolist()}, q)
    for k in range(int(seconds * 10)):
        data = jpeg(100 * seed + k)
        message = {"header": STAMP, "format": "jpeg", "data": data}
        send(100 * k + 5, CAMERA, "sensor_msgs/msg/CompressedImage", message, np.asarray(Image.open(io.BytesIO(data))))
    for k in range(int(seconds * 5)):
        pixels = rng.integers(0, 255, (4, 16), np.uint8)  # a step of 16 bytes, of which 15 are pixels
        message = {"header": STAMP, "height": 4, "width": 5, "encoding": "bgr8", "is_bigendian": 0, "step": 16}
        value = pixels[:, :15].reshape(4, 5, 3)[..., ::-1]
        send(200 * k + 7, DEPTH, "sensor_msgs/msg/Image", message | {"data": pixels.tobytes()}, value)
    write(path, events)
    return sent


def write_desk(directory: Path) -> None:
    """Write the files that docs/reference/recordings.md speaks of: an arm on a base that drives."""
    for name in ("run_0.mcap", "run_1.mcap", "run_7.mcap"):
        twist = {"linear": {"x": 0.5, "y": 0.0, "z": 0.0}, "angular": {"x": 0.0, "y": 0.0, "z": 0.1}}
        base = [(20 * k, "/cmd_vel", "geometry_msgs/msg/Twist", twist) for k in range(50)]
        base += [(10 * k, "/odom", "std_msgs/msg/Float64MultiArray", {"data": [k / 100, 0.0]}) for k in range(100)]
        record(directory / name, more=base)
