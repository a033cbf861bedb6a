"""MCAP files with messages of ROS 2, one for each episode, which Foxglove and the tools of ROS 2 play.

::

    <directory>/episode_0000.mcap
        /observation/q      std_msgs/Float32MultiArray     rows 0 to T of fields placed both, at k / fps seconds
        /observation/top    sensor_msgs/CompressedImage    JPEG and PNG as they are
        /observation/map    sensor_msgs/Image              uint8 [H, W, 3], rgb8
        /action             std_msgs/Float64MultiArray     rows 0 to T-1
        /next/reward        std_msgs/Float64MultiArray     the result of step k, at (k + 1) / fps
        /note               std_msgs/String                texts
        metadata "rlds"                                    what messages do not say: see `archives.recorded_episode`

A topic is called after its field. Values are exact: numbers have an array of their own type or of a wider one, whole
numbers of 8 bits and flags Int16MultiArray, since readers take bytes for images.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.exports.content import PIECE
from rlds_cli.archives.exports.format import Unit, sync
from rlds_cli.archives.exports.recorded import KEY, RECORD, RecordedFormat
from rlds_cli.errors import MissingPackage
from rlds_cli.ted import Field

_SECOND = 1_000_000_000  # nanoseconds
_LIMIT = "\n" + "=" * 80 + "\nMSG: "
_HEADER = f"{_LIMIT}std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id"
_HEADER += f"{_LIMIT}builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_LAYOUT = f"{_LIMIT}std_msgs/MultiArrayLayout\nMultiArrayDimension[] dim\nuint32 data_offset"
_LAYOUT += f"{_LIMIT}std_msgs/MultiArrayDimension\nstring label\nuint32 size\nuint32 stride\n"
_ARRAYS = {  # NumPy's type: that of the message, and of its data
    **{name: (name.title().replace("Ui", "UI"), name) for name in ("int16", "int32", "int64", "uint16", "uint32")},
    "uint64": ("UInt64", "uint64"),
    "float32": ("Float32", "float32"),
    "float64": ("Float64", "float64"),
    "float16": ("Float32", "float32"),
    **dict.fromkeys(("uint8", "int8", "bool"), ("Int16", "int16")),
}


class Mcap(RecordedFormat):
    """A recording for each episode."""

    name = "mcap"
    suffix = ".mcap"

    def notes(self) -> Sequence[str]:
        """Say that times count steps where nobody knows how many a second has."""
        if self.known_rate is not None:
            return super().notes()
        counted = "no rate is known, so that steps are 1 s apart: rlds label ID --set fps=20 states it"
        return (*super().notes(), counted)

    def check(self) -> None:
        """Refuse to write without the package of MCAP."""
        try:
            import mcap_ros2.writer  # noqa: F401
        except ImportError as e:
            raise MissingPackage("MCAP files are written by mcap.", hint="pip install 'rlds-cli[ros]'") from e

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the recordings of some episodes."""
        from mcap_ros2.writer import Writer

        for k in range(unit.first, unit.stop):
            path = self.file(directory, k)
            with path.open("wb") as f:
                writer = Writer(f)
                writer.add_metadata(RECORD, {KEY: json.dumps(self.said(k))})
                schemas = {name: writer.register_msgdef(*_type_of(f)) for name, f in self.content.fields.items()}
                for time, name, message in self._messages(k):
                    writer.write_message(f"/{name}", schemas[name], message, log_time=time, publish_time=time)
                writer.finish()
            sync(path)
        return None

    def _messages(self, episode: int) -> Iterator[tuple[int, str, Any]]:
        """Yield time, field and message, in the order of time."""
        start, steps = int(self.content.starts[episode]), int(self.content.table.length[episode])
        final = bool(self.content.table.observed[episode])
        size = max(1, PIECE // max(1, sum(f.row_bytes for f in self.content.fields.values())))
        for a in range(0, steps + 1, size):
            b = min(a + size, steps + 1)
            values = {name: self.rows(f, episode, start + a, start + b) for name, f in self.content.fields.items()}
            before = {n: self.rows(f, episode, start + a - 1, start + a) for n, f in self._next.items()} if a else {}
            for k in range(a, b):
                time = round(k * _SECOND / self.rate)
                for name, f in self.content.fields.items():
                    if f.placement == "next":
                        if k:
                            of = values[name][k - 1 - a] if k > a else before[name][0]
                            yield time, name, _message(f, of, time)
                    elif k < steps or (f.placement == "both" and final):
                        yield time, name, _message(f, values[name][k - a], time)

    @property
    def _next(self) -> dict[str, Field]:
        return {name: f for name, f in self.content.fields.items() if f.placement == "next"}


def _type_of(f: Field) -> tuple[str, str]:
    """Return name and definition of the messages of a field."""
    if f.kind == "text":
        return "std_msgs/msg/String", "string data\n"
    if f.kind == "frames":
        return "sensor_msgs/msg/CompressedImage", f"std_msgs/Header header\nstring format\nuint8[] data{_HEADER}"
    if _is_image(f):
        fields = "uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data"
        return "sensor_msgs/msg/Image", f"std_msgs/Header header\n{fields}{_HEADER}"
    name, data = _ARRAYS[f.dtype]
    return f"std_msgs/msg/{name}MultiArray", f"MultiArrayLayout layout\n{data}[] data{_LAYOUT}"


def _is_image(f: Field) -> bool:
    return f.dtype == "uint8" and len(f.shape) == 3 and f.shape[2] == 3


def _message(f: Field, value: Any, time: int) -> Mapping[str, Any]:
    header = {"stamp": {"sec": time // _SECOND, "nanosec": time % _SECOND}, "frame_id": ""}
    if f.kind == "text":
        return {"data": value or ""}
    if f.kind == "frames":
        return {"header": header, "format": f.codec, "data": value}
    if _is_image(f):
        height, width, _ = f.shape
        shape = {"height": height, "width": width, "encoding": "rgb8", "is_bigendian": 0, "step": 3 * width}
        return {"header": header, **shape, "data": np.ascontiguousarray(value).tobytes()}
    sides = [*f.shape] or [1]
    strides = np.cumprod(sides[::-1])[::-1].tolist()
    dim = [{"label": "", "size": n, "stride": s} for n, s in zip(sides, strides, strict=True)]
    kind = _ARRAYS[f.dtype][1]
    return {"layout": {"dim": dim, "data_offset": 0}, "data": np.asarray(value).astype(kind).ravel().tolist()}
