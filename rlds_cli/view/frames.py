"""Frames of rows as pictures: as stored where a browser shows them, else decoded and encoded anew."""

from __future__ import annotations

import hashlib
import io

import numpy as np
from PIL import Image
from starlette.responses import Response

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.media import image_header
from rlds_cli.base.media.image_header import MAX_PIXELS
from rlds_cli.dataset import Rows
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.ted import VIDEO, Field
from rlds_cli.view.query import NotThere, Query
from rlds_cli.view.ranges import KEPT, is_known

_SMALL = 64  # images with sides up to this are pixel art, which JPEG would blur
_QUALITY = 88
_HIGHEST = 4320  # pixels
_FEW = 4  # frames that tell the range of a camera of depth
_TYPES = {"jpeg": "image/jpeg", "png": "image/png"}
_NONE = (None, None)

Range = tuple[float | None, float | None]


def frame(query: Query) -> Response:
    """Answer with the frame of a row."""
    ds = query.dataset
    rows, number, at = query.once(ds, Rows), query.episode(ds), query.integer("step")
    f = ds.field(query.text("field"))
    height = query.integer("height", None)
    depth = (query.number("low"), query.number("high"))
    if not f.is_image:
        raise InvalidArgument(f"{f.name} holds no images.")
    if height is not None and not 1 <= height <= _HIGHEST:
        raise InvalidArgument(f"The parameter height is {height:,}, not from 1 to {_HIGHEST:,}.")
    if not 0 <= at < int(rows.count(f)[number]):
        raise NotThere(f"Episode {number:,} has no {f.name} at row {at:,}: it has {int(rows.count(f)[number]):,}.")
    row = np.array([int(rows.start[number]) + at])
    named = (ds.store.version_id, f.name, int(rows.stored(row)[0]), height, depth, query.decode)
    etag = f'"{hashlib.sha256(repr(named).encode()).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": KEPT}
    if is_known(etag, query.headers):
        return Response(status_code=304, headers=headers)
    data, kind = picture(rows, f, row, height=height, depth=depth, decode=query.decode)
    return Response(data, headers=headers, media_type=kind)


def picture(
    rows: Rows, f: Field, row: IntArray, *, height: int | None, depth: Range, decode: bool
) -> tuple[bytes, str]:
    """Return the frame of a row as bytes for a browser, and their media type."""
    if f.kind == "frames" and not rows.sizes(f.name, row)[0]:
        raise NotThere(f"{f.name} has no frame at this row.", hint="rlds check ID names such steps")
    if f.kind == "frames" and f.codec != VIDEO and f.dtype == "uint8" and height is None and not decode:
        data = rows.frames(f.name, row)[0]
        header = image_header.read(data)
        if header is not None and header.height * header.width <= MAX_PIXELS:
            return data, _TYPES[header.codec]
    values = rows.values(f.name, row)[0]
    return encoded(shown(f, values, depth), height)


def shown(f: Field, values: Array, depth: Range) -> Array:
    """Return uint8 [H, W] or [H, W, 3] of the values of a frame."""
    if values.dtype != np.uint8:
        return grey(values.reshape(values.shape[:2]), depth)
    if values.ndim == 2:
        return values
    if f.kind == "array" and not f.has_channels_last:
        values = np.moveaxis(values, 0, -1)
        is_stack = values.shape[2] == 4
    else:
        is_stack = f.kind == "array" and values.shape[2] == 4 and bool((values[..., 3] != 255).any())
    newest: Array = values[..., -1]  # of a stack of grey frames
    return newest if is_stack else _of_channels(values)


def _of_channels(values: Array) -> Array:
    found: Array = values[..., 0] if values.shape[2] < 3 else values[..., :3]
    return found


def grey(values: Array, depth: Range) -> Array:
    """Return values in a range from black to white; without one, from the least to the greatest."""
    low, high = depth
    low = float(values.min(initial=0)) if low is None else low
    high = float(values.max(initial=0)) if high is None else high
    scaled = (values.astype(np.float32) - low) * (255 / max(high - low, 1e-9))
    found: Array = np.clip(scaled, 0, 255).astype(np.uint8)
    return found


def encoded(values: Array, height: int | None) -> tuple[bytes, str]:
    """Encode an image, at most ``height`` pixels high: as PNG if it is small, else as JPEG."""
    image = Image.fromarray(np.ascontiguousarray(values))
    if height is not None and image.height > height:
        image = image.resize((max(1, round(image.width * height / image.height)), height), Image.Resampling.BOX)
    codec = "png" if max(image.size) <= _SMALL else "jpeg"
    file = io.BytesIO()
    image.save(file, codec, **({"quality": _QUALITY} if codec == "jpeg" else {}))
    return file.getvalue(), _TYPES[codec]


def range_of(rows: Rows, f: Field, there: IntArray) -> Range:
    """Return the 1st and the 99th percentile of the values of a few frames of depth, without 0: it stands for none."""
    chosen = there[np.unique(np.linspace(0, len(there) - 1, _FEW).astype(np.int64))] if len(there) else there
    try:
        values = np.ravel(rows.values(f.name, chosen))
    except RldsError:
        return _NONE
    values = values[values > 0]
    if not len(values):
        return _NONE
    low, high = np.percentile(values, [1, 99])
    return float(low), float(high)
