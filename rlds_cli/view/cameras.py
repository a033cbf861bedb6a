"""What a page knows of the cameras of an episode: which rows have frames, how large they are, and how to show them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.media import image_header
from rlds_cli.dataset import Rows
from rlds_cli.errors import RldsError
from rlds_cli.look import rank
from rlds_cli.store import Facts
from rlds_cli.ted import VIDEO, Field
from rlds_cli.view.decoding import Decoding
from rlds_cli.view.frames import frames_of, range_of
from rlds_cli.view.times import MOST_ROWS
from rlds_cli.view.videos import stream, turned

_DEEPEST = 65535.0
_PLAYED = ("avc1", "av01", "vp09", "vp8")  # codecs that most browsers play

Json = dict[str, Any]


def cameras(rows: Rows, number: int, by: Decoding, *, decode: bool) -> list[Json]:
    """Return the record of each camera; with ``decode`` none is played by the browser."""
    fields = sorted((f for f in rows.store.fields.values() if f.is_image), key=rank)
    found = [_told(rows, f, number, by, decode=decode) for f in fields]
    if any(_is_decoded(c, decode=decode) for c in found):
        by.begin()
    return found


def _told(rows: Rows, f: Field, number: int, by: Decoding, *, decode: bool) -> Json:
    """Return the record of a camera; of one whose tables are damaged, what is wrong with them."""
    try:
        return _camera(rows, f, number, by, decode=decode) | {"error": None}
    except RldsError as e:
        unknown = dict.fromkeys(("rows", "width", "height", "turned", "depth", "stream"))
        return {"field": f.name, "codec": _codec(f), **unknown, "error": e.message}


def _codec(f: Field) -> str:
    return "video" if f.codec == VIDEO else f.codec or "raw"


def _camera(rows: Rows, f: Field, number: int, by: Decoding, *, decode: bool) -> Json:
    start, count = int(rows.start[number]), int(rows.count(f)[number])
    of = np.arange(start, start + min(count, MOST_ROWS))
    there = frames_of(rows, f, of)
    known = [int(there[0]), int(there[-1]) + 1] if len(there) else None
    if count > len(of):
        known = [0, count]
    plays = f.codec == VIDEO and not decode and count == len(of)
    height, width = _sides(rows, f, start + there[:1])
    return {
        "field": f.name,
        "rows": known,
        "width": width,
        "height": height,
        "codec": _codec(f),
        "turned": f.codec == VIDEO and turned(rows.store, f.name, rows.at(f.name, of)),
        "depth": _depth(rows, f, start + there, by),
        "stream": stream(rows.store, f.name, rows.at(f.name, of)) if plays else None,
    }


def _is_decoded(camera: Json, *, decode: bool) -> bool:
    """Return whether frames of a camera will probably be asked for that are decoded here."""
    if camera["stream"] is not None:
        return not any(codec in camera["stream"]["mime"] for codec in _PLAYED)
    return camera["codec"] == "video" or camera["depth"] is not None or (decode and camera["codec"] != "raw")


def _sides(rows: Rows, f: Field, first: IntArray) -> tuple[int, int]:
    """Return height and width; of images whose sizes vary, those of the first one."""
    if f.kind == "array" and not (len(f.shape) == 2 or f.has_channels_last):
        return f.shape[1], f.shape[2]
    if f.shape[0] or not len(first):
        return f.shape[0], f.shape[1]
    header = image_header.read(rows.frames(f.name, first)[0])
    return (header.height, header.width) if header else (0, 0)


def _depth(rows: Rows, f: Field, there: IntArray, by: Decoding) -> Json | None:
    """Return the unit of a camera of depth, and the range in which its frames are shown at first."""
    if f.dtype != "uint16":
        return None
    unit = Facts(rows.store.manifest).depth.get(f.name, {}).get("unit")
    found = range_of(rows, f, there, by)
    low, high = (0.0, _DEEPEST) if found.low is None else (found.low, found.high)
    return {"unit": unit, "low": low, "high": high}
