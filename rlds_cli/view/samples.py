"""What a page shows of a batch of a loader: its fields, and the values and images of some samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.responses import Response

from rlds_cli.base.array_types import Array
from rlds_cli.errors import InvalidArgument
from rlds_cli.view.batches import BatchField, ShownBatches
from rlds_cli.view.pictures import TYPES, Showing, draw
from rlds_cli.view.query import NotThere, Query, record

_MOST_SAMPLES = 64
_MOST_ELEMENTS = 64  # of a field that are shown
_MOST_VALUES = 200_000  # of an answer
_HIGHEST = 1080  # pixels
_LONGEST = 400  # characters of a text


def batch(query: Query) -> Response:
    """Answer with some samples of a batch."""
    batches = _of(query)
    number = query.integer("n", batches.next)
    first, count = query.integer("first", 0), query.integer("count", 8)
    if first < 0 or not 0 <= count <= _MOST_SAMPLES:
        raise InvalidArgument(f"{count:,} samples from {first:,} on cannot be shown.", hint=f"at most {_MOST_SAMPLES}")
    columns = batches.columns(number)
    size = max(len(c.values) for c in columns.values())
    each = sum(_count(c) for c in columns.values()) or 1
    stop = min(size, first + max(1, min(count, _MOST_VALUES // each)))
    samples = [{"number": k, **_sample(columns, k)} for k in range(first, stop)]
    fields = [_field(c) for c in columns.values()]
    of = {"of": batches.count, **batches.described}
    return record(query, {"number": number, "size": size, "fields": fields, "samples": samples, **of})


def _of(query: Query) -> ShownBatches:
    batches: ShownBatches | None = query.subjects.batches
    if batches is None:
        raise NotThere("This viewer shows no loader.", hint="loader.view() shows the batches of one")
    return batches


def _count(column: BatchField) -> int:
    """Return the number of values that are sent of a sample."""
    if column.kind == "image":
        return 0
    steps = 1 if column.mask is None else column.mask.shape[1]
    return steps * min(_MOST_ELEMENTS, int(np.prod(column.row, dtype=np.int64)))


def _field(column: BatchField) -> dict[str, Any]:
    elements = int(np.prod(column.row, dtype=np.int64))
    return {
        "name": column.name,
        "kind": column.kind,
        "dtype": "text" if column.values.dtype == object else str(column.values.dtype),
        "shape": column.values.shape,
        "steps": None if column.mask is None else column.mask.shape[1],
        "elements": min(_MOST_ELEMENTS, elements),
        "hidden": max(0, elements - _MOST_ELEMENTS),
        "low": column.low,
        "high": column.high,
    }


def _sample(columns: dict[str, BatchField], number: int) -> dict[str, Any]:
    here = {name: c for name, c in columns.items() if number < len(c.values)}
    shown = {name: c for name, c in here.items() if c.kind != "image"}
    return {
        "values": {name: _values(c, number) for name, c in shown.items()},
        "mask": {name: c.mask[number] for name, c in here.items() if c.mask is not None and not c.mask[number].all()},
    }


def _values(column: BatchField, number: int) -> Any:
    """Return [steps][elements] of a field with steps, else [elements]; texts are cut."""
    steps = 1 if column.mask is None else column.mask.shape[1]
    rows = column.values[number].reshape(steps, -1)[:, :_MOST_ELEMENTS]
    if rows.dtype == object:
        rows = np.array([[None if v is None else str(v)[:_LONGEST] for v in row] for row in rows], object)
    return rows if column.mask is not None else rows[0]


def image(query: Query) -> Response:
    """Answer with an image of a sample: that of a step, if the field has steps."""
    batches = _of(query)
    name = query.text("field")
    number, sample, step = query.integer("n"), query.integer("sample"), query.integer("step", 0)
    height = query.integer("height", None)
    if height is not None and not 1 <= height <= _HIGHEST:
        raise InvalidArgument(f"The parameter height is {height:,}, not from 1 to {_HIGHEST:,}.")
    column = batches.columns(number).get(name)
    f = column.image if column is not None else None
    if column is None or f is None:
        raise NotThere(f"Batch {number:,} has no images {name}.")
    steps = 1 if column.mask is None else column.mask.shape[1]
    if not (0 <= sample < len(column.values) and 0 <= step < steps):
        raise NotThere(f"Batch {number:,} has no {name} of sample {sample:,}, step {step:,}.")
    values = column.values[sample] if column.mask is None else column.values[sample, step]
    data, codec = draw(as_pixels(values, column), Showing(field=f, height=height))
    return Response(data, headers={"cache-control": "no-store"}, media_type=TYPES[codec])


def as_pixels(values: Array, column: BatchField) -> Array:
    """Return values as uint8: numbers in [0, 1] or [0, 255] by these ranges, others by the range of the batch."""
    if values.dtype == np.uint8:
        return values
    low, high = column.low or 0.0, column.high or 0.0
    if low >= 0:
        low, high = 0.0, 1.0 if high <= 1 else max(255.0, high)
    scaled = (values.astype(np.float32) - low) * (255 / max(high - low, 1e-9))
    found: Array = np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8)
    return found
