"""Depth cameras: their marks in ``info.json``, the unit of their values, and the decoding of depth images.

A depth video holds codes of 12 bits, and ``info.json`` the formula of the codes. An image holds
distances as they were measured: PNG or TIFF of 16 bits, or TIFF of floats. PNG stay encoded, and TIFF are decoded.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.archives.lerobot.names import CODE_BITS, DEPTH_FORMULA
from rlds_cli.base.array_types import Array
from rlds_cli.base.media import mp4
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.base.media.mp4 import Track
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.ted import EncodedFrames

_UNITS = ("m", "mm")
_BITS = re.compile(r"(\d+)(?:le|be)")
_TIFF = (b"II*\x00", b"MM\x00*")
_DTYPES = {"I;16": "uint16", "I;16L": "uint16", "I;16B": "uint16", "F": "float32"}  # by Pillow's modes


class Depth(NamedTuple):
    """The dtype and shape of images of depth."""

    dtype: str
    shape: tuple[int, int, int]


def is_depth_map(feature: Mapping[str, Any]) -> bool:
    """Tell whether a feature is a depth map; versions of LeRobot mark it at three places."""
    info, video = _info(feature), feature.get("video_info")
    marks = [info.get("is_depth_map"), info.get("video.is_depth_map")]
    marks += [video.get("video.is_depth_map")] if isinstance(video, Mapping) else []
    return any(mark is True for mark in marks)


def video_bits(feature: Mapping[str, Any], track: Track) -> int:
    """Return the bits of a value of a video: by the file, else by the pixel format in ``info.json``, else 8."""
    return mp4.bits(track) or _named_bits(feature)


def _named_bits(feature: Mapping[str, Any]) -> int:
    named = _BITS.search(str(_info(feature).get("video.pix_fmt") or ""))
    return int(named[1]) if named else 8


def of_video(key: str, feature: Mapping[str, Any], bits: int) -> dict[str, Any]:
    """Describe the values of a depth video: parameters of the formula, or a unit for more than 12 bits.

    Raises
    ------
    UnknownLayout
        The parameters are not numbers, or leave the formula undefined.
    """
    info = _info(feature)
    if bits > CODE_BITS:
        return {"bits": bits, "unit": _unit(info, "uint16")}
    found = {name: info.get(f"video.{name}", info.get(name)) for name in DEPTH_FORMULA}
    found = {name: DEPTH_FORMULA[name] if value is None else value for name, value in found.items()}
    numbers = [found[name] for name in ("depth_min", "depth_max", "shift")]
    real = all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers)
    if not real or not isinstance(found["use_log"], bool) or numbers[0] >= numbers[1]:
        raise UnknownLayout(f"info.json: the depth of {key} was encoded with {found}, which is not a formula.")
    if found["use_log"] and numbers[0] + numbers[2] <= 0:
        raise UnknownLayout(f"info.json: the depth of {key} was encoded with {found}: the logarithm is not defined.")
    return {"bits": CODE_BITS, **found}


def of_images(feature: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the unit of depth images: millimetres or metres."""
    return {"unit": _unit(_info(feature), dtype)}


def _unit(info: Mapping[str, Any], dtype: str) -> str:
    """Return the recorded unit, or that of lerobot's rule: floats are metres, integers millimetres."""
    said = info.get("depth_unit")
    return str(said) if said in _UNITS else "m" if np.dtype(dtype).kind == "f" else "mm"


def _info(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    found = feature.get("info")
    return found if isinstance(found, Mapping) else {}


# -- images


def image(data: bytes) -> Depth | None:
    """Return the dtype and shape of a TIFF image of depth; None for other images, which stay encoded.

    Raises
    ------
    CorruptArchive, UnsafeArchive
        It cannot be read, or is too large.
    """
    if data[:4] not in _TIFF:
        return None
    with _opened(data, "an image of depth") as found:
        dtype = _DTYPES.get(found.mode)
        return Depth(dtype, (found.height, found.width, 1)) if dtype else None


def decode(images: EncodedFrames, wanted: Depth, where: str) -> Array:
    """Decode images of depth to an array [n, H, W, 1].

    Raises
    ------
    CorruptArchive, UnsafeArchive
        One cannot be decoded, or is another than ``wanted``.
    """
    out = np.zeros((len(images), *wanted.shape), wanted.dtype)
    stops = np.cumsum(images.lengths)
    for row, (stop, size) in enumerate(zip(stops.tolist(), images.lengths.tolist(), strict=True)):
        out[row] = decode_one(images.data[stop - size : stop].tobytes(), wanted, f"{where}, row {row} of a block")
    return out


def decode_one(data: bytes, wanted: Depth, name: str) -> Array:
    """Decode an image of depth to an array [H, W, 1]; raises as `decode`."""
    with _opened(data, name) as found:
        shown = Depth(_DTYPES.get(found.mode, found.mode), (found.height, found.width, 1))
        if shown != wanted:
            raise CorruptArchive(f"{name}: {shown.dtype} {list(shown.shape)}; the first is {list(wanted)}.")
        return _values(found, name).reshape(wanted.shape)


def _opened(data: bytes, name: str) -> Any:
    from PIL import Image

    try:
        found = Image.open(io.BytesIO(data), formats=("TIFF",))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
        raise CorruptArchive(f"{name}: {len(data):,} bytes are not a TIFF image: {e}") from e
    if found.width * found.height > MAX_PIXELS:
        raise UnsafeArchive(f"{name}: an image of {found.height}x{found.width} is not decoded.")
    return found


def _values(found: Any, name: str) -> Array:
    try:
        return np.asarray(found)
    except (OSError, SyntaxError, ValueError) as e:
        raise CorruptArchive(f"{name} does not decode: {e}") from e
