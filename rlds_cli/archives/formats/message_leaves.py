"""The leaves of decoded messages: numbers and arrays of them, texts, encoded images and pixels.

A leaf is called by the names that lead to it, joined by ``/``. A list of messages has the leaves of one, with an axis
more::

    sensor_msgs/JointState       position, velocity, effort: arrays
    sensor_msgs/CompressedImage  "": the bytes of a PNG or JPEG
    foxglove.CompressedImage     "": the same
    sensor_msgs/Image            "": uint8 [H, W] or [H, W, 3], in RGB; uint16 [H, W] of depth
    std_msgs/Float64MultiArray   "": what is in ``data``
    foxglove.JointStates         joints/position: an array with a value of each joint

A single leaf has no name of its own: its column is called after the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlds_cli.archives.formats.text_tables import MAX_COLUMNS
from rlds_cli.base.array_types import Array
from rlds_cli.base.media import image_header
from rlds_cli.errors import UnknownLayout, UnsafeArchive

_PIXELS = {"rgb8": 3, "bgr8": 3, "mono8": 1, "8UC1": 1, "8UC3": 3, "16UC1": 1, "mono16": 1}
_RAW = frozenset(("height", "width", "encoding", "step", "data"))  # of sensor_msgs/Image
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_DESCRIBE = ("header", "layout", "format")  # of messages: stamps, names of frames and descriptions
_DESCRIBES, _PRIVATE = "it describes the message", "its name begins with an underscore"
_NO_FIELD, _DIFFER = "no field holds such a value", "the items of the list differ in it"


@dataclass(frozen=True, slots=True)
class NotKept:
    """A value of a message that becomes no leaf, and why; ``absent`` if other messages may have it."""

    why: str
    absent: bool = False


def leaves_of(value: Any, where: str) -> dict[str, Any]:
    """Return the leaves of a decoded message by name, and a `NotKept` for what is none.

    Raises
    ------
    UnknownLayout
        Pixels do not have the size that the message states, or two leaves have one name.
    UnsafeArchive
        It has too many values, or they are nested too deeply.
    """
    found: dict[str, Any] = {}
    try:
        for name, leaf in _walk(value, ()):
            if name in found:
                raise UnknownLayout(f"{where}: two of its values are called {name}.")
            found[name] = leaf
            if len(found) > MAX_COLUMNS:
                raise UnsafeArchive(f"{where}: a message of more than {MAX_COLUMNS:,} values; no more are read.")
    except RecursionError:
        raise UnsafeArchive(f"{where}: a message whose values are nested too deeply to be read.") from None
    for name, leaf in found.items():
        if isinstance(leaf, UnknownLayout):
            raise UnknownLayout(f"{where}: {name or 'it'} {leaf.message}")
    kept = [name for name, leaf in found.items() if not isinstance(leaf, NotKept) or leaf.absent]
    return {("" if [name] == kept else name): leaf for name, leaf in found.items()}


def _walk(value: Any, name: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, SimpleNamespace):  # of ROS 2: its fields are slots
        slots = {slot: getattr(value, slot) for slot in getattr(type(value), "__slots__", ())} | vars(value)
        value = {key: item for key, item in slots.items() if not key.startswith("_")}
    if isinstance(value, Mapping):
        if value.keys() >= _RAW:
            yield "/".join(name), _raw_image(value)
            return
        for key, item in value.items():
            why = _why_none(str(key), item)
            if why:
                yield "/".join((*name, str(key))), NotKept(why)
            else:
                yield from _walk(item, (*name, str(key)))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping | SimpleNamespace):
        for key, leaf in _stacked(value).items():
            yield "/".join((*name, key) if key else name), leaf
    else:
        yield "/".join(name), _leaf(value)


def _why_none(key: str, item: Any) -> str:
    """Return why a part of a message becomes no field; "" if it does.

    The time and the frame of coordinates of a message are in its header in ROS, beside its values in Foxglove's.
    """
    about = {"timestamp": Mapping | NotKept, "frame_id": str}.get(key)
    if key in _DESCRIBE or (about is not None and isinstance(item, about)):
        return _DESCRIBES
    return _PRIVATE if key.startswith("_") else ""


def _stacked(items: Sequence[Any]) -> dict[str, Any]:
    """Return the leaves of a list of messages: those of one, with an axis more."""
    of = [dict(_walk(item, ())) for item in items]
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for leaves in of for key in leaves):
        values = [leaves.get(key) for leaves in of]
        arrays = [v for v in values if isinstance(v, np.ndarray)]
        if not arrays:
            found[key] = values[0] if isinstance(values[0], NotKept) else NotKept(_NO_FIELD)
        elif len(arrays) < len(of) or len({v.shape for v in arrays}) > 1:
            found[key] = NotKept(_DIFFER)
        else:
            found[key] = np.stack(arrays)
    return found


def _leaf(value: Any) -> Any:
    """Return a value as it is stored, or why no field can hold it."""
    if isinstance(value, str | NotKept):
        return value
    if value is None:
        return NotKept("it is null", absent=True)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return data if data.startswith(_IMAGES) else np.frombuffer(data, np.uint8)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return NotKept(_NO_FIELD)
    if array.dtype == np.uint8 and array.ndim == 1 and array[:8].tobytes().startswith(_IMAGES):
        return array.tobytes()
    return array if array.dtype.kind in "biuf" else NotKept(_NO_FIELD)


def _raw_image(image: Mapping[str, Any]) -> Array | UnknownLayout:
    """Return the pixels of a sensor_msgs/Image, in RGB."""
    encoding, height, width, step = image["encoding"], image["height"], image["width"], image["step"]
    if encoding not in _PIXELS:
        return UnknownLayout(f"holds images of {encoding!r}; {', '.join(_PIXELS)} are read.")
    dtype = np.dtype(np.uint8) if encoding[:2] != "16" and encoding != "mono16" else np.dtype(np.uint16)
    dtype = dtype.newbyteorder(">" if image.get("is_bigendian") else "<")
    channels = _PIXELS[encoding]
    row = width * channels * dtype.itemsize
    data = np.frombuffer(bytes(image["data"]), np.uint8)
    if step < row or len(data) != height * step or not height * width:
        return UnknownLayout(f"holds an image of {height}x{width} in {len(data):,} bytes, with a step of {step:,}.")
    pixels = np.ascontiguousarray(data.reshape(height, step)[:, :row]).view(dtype).reshape(height, width, channels)
    pixels = pixels[..., ::-1] if encoding == "bgr8" else pixels
    return np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels).astype(dtype.newbyteorder("="))


def codec_of(leaf: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return codec and shape of an encoded image of 8 bits; None for other leaves."""
    if not isinstance(leaf, bytes):
        return None
    header = image_header.read(leaf)
    return None if header is None or header.bits != 8 else (header.codec, header.shape)
